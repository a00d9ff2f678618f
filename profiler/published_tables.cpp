#include "profiler/published_tables.hpp"

#include <cmath>

#include "profiler/gemm_model.hpp"

namespace moeplan {
namespace {

ProductRates rates_of(const Profile& profile, const KernelCurve& curve) {
    return curve.measured_on ? product_rates(profile.roofline, curve.precision, *curve.measured_on)
                             : product_rates(profile.roofline, curve.precision, 1);
}

}  // namespace

bool corrects_a_model(const Profile& profile, const KernelCurve& curve, const KernelName& kernel) {
    if (curve.basis != Basis::published || profile.roofline.num_sms <= 1) return false;
    if (kernel.family == KernelFamily::gemm)
        return profile.roofline.gemm_model && kernel.gemm == GemmKind::forward;
    return kernel.family == KernelFamily::attention && !kernel.backward &&
           profile.roofline.attention_model;
}

std::vector<ResidualPoint> residuals_of(const Profile& profile, const KernelCurve& curve,
                                        const KernelName& kernel, const CurveColumns& columns) {
    const Roofline& roofline = profile.roofline;
    const ProductRates rates = rates_of(profile, curve);
    const int time = columns.need("median_s");
    std::vector<ResidualPoint> points;
    const auto add = [&](std::size_t row, double a, double b, double c, Seconds model) {
        points.push_back({{std::log2(a), std::log2(b), std::log2(c)},
                          std::log(columns.value(row, time) / model.value)});
    };
    if (kernel.family == KernelFamily::gemm) {
        const int m = columns.need("m"), n = columns.need("n"), k = columns.need("k");
        for (std::size_t row = 0; row < curve.rows.size(); ++row) {
            const Product product{columns.value(row, m), columns.value(row, n),
                                  columns.value(row, k)};
            add(row, product.rows, product.columns, product.depth,
                product_time(*roofline.gemm_model, rates, product, gemm_elements(curve.precision),
                             0));
        }
        return points;
    }
    const int batch = columns.need("batch"), sequence = columns.need("sequence"),
              heads = columns.need("num_heads"), kv = columns.need("num_kv_heads"),
              size = columns.need("head_size");
    for (std::size_t row = 0; row < curve.rows.size(); ++row) {
        const AttentionShape shape{
            std::llround(columns.value(row, batch)), std::llround(columns.value(row, sequence)),
            std::llround(columns.value(row, heads)), std::llround(columns.value(row, kv)),
            std::llround(columns.value(row, size)),  std::nullopt};
        add(row, static_cast<double>(shape.sequence),
            static_cast<double>(shape.batch * shape.num_heads),
            static_cast<double>(shape.head_size),
            attention_model_time(*roofline.attention_model, rates, shape,
                                 roofline.memory_efficiency, 1, 1));
    }
    return points;
}

}  // namespace moeplan
