/// A kernel's price. Where the profile measured it: floor over efficiency, the floor counting the
/// work (work_floor.hpp), the efficiency from the nearest lines (curve_index.hpp). Where a GPU has
/// a model (gemm_model.hpp): its time, corrected by published tables (residual_surface.hpp). Else
/// the roofline's stated efficiency.

#include <algorithm>
#include <cassert>
#include <cmath>

#include "profiler/curve_index.hpp"
#include "profiler/gemm_model.hpp"
#include "profiler/profile.hpp"
#include "profiler/work_floor.hpp"

namespace moeplan {
namespace {

const EfficiencyTable kNoTable;

const EfficiencyTable& table_of(const Profile& profile, int kernel, Precision precision) {
    if (!profile.index) return kNoTable;
    const auto& by_precision = profile.index->tables[static_cast<std::size_t>(kernel)];
    const EfficiencyTable& own = by_precision[static_cast<std::size_t>(precision)];
    if (!own.lines.empty()) return own;
    // fp16 and bf16 run on the same units at the same rate wherever both exist; mxfp8 at fp8's.
    const auto same_rate = [&](Precision other) -> const EfficiencyTable& {
        return peak_of(profile.roofline, other) == peak_of(profile.roofline, precision)
                   ? by_precision[static_cast<std::size_t>(other)]
                   : kNoTable;
    };
    if (precision == Precision::fp16) return same_rate(Precision::bf16);
    if (precision == Precision::bf16) return same_rate(Precision::fp16);
    if (precision == Precision::mxfp8) return same_rate(Precision::fp8);
    return own;
}

/// Of an attention backward that no curve was measured for.
double backward_efficiency(const Profile& profile) {
    return profile.roofline.attention_backward *
           (profile.host_overlap > 0 ? profile.calibration[Constant::attention_backward] : 1);
}

/// Whether the compute floor or the memory floor binds decides which stated efficiency applies.
Seconds stated_time(const Roofline& roofline, Seconds compute, Seconds memory,
                    double compute_efficiency) {
    return std::max(compute / compute_efficiency, memory / roofline.memory_efficiency) +
           roofline.kernel_overhead;
}

double gemm_efficiency(const Roofline& roofline, double depth) {
    return roofline.gemm_efficiency * depth / (depth + roofline.gemm_half_depth);
}

/// Curves of the same product under its other names, where its own was not measured: a gradient is
/// a product too.
struct GemmSource {
    const EfficiencyTable* table = &kNoTable;
    std::array<double, 3> shape{};
};  ///< m, n, k to look up under

GemmSource gemm_source(const Profile& profile, const KernelName& kernel, Precision precision,
                       double m, double n, double k) {
    const EfficiencyTable& own = table_of(profile, kernel.index, precision);
    if (!own.lines.empty()) return {&own, {m, n, k}};
    static const int forward = kernel_named("gemm").index,
                     grouped = kernel_named("grouped_gemm").index;
    const Product product = product_of(kernel.gemm, m, n, k);
    if (kernel.family == KernelFamily::grouped_gemm) {
        const EfficiencyTable& same = table_of(profile, grouped, precision);
        if (!same.lines.empty() && kernel.gemm != GemmKind::weight_gradient)
            return {&same, {product.rows, product.columns, product.depth}};
    }
    return {&table_of(profile, forward, precision), {product.rows, product.columns, product.depth}};
}

const ResidualSurface kNoSurface;

/// The table of this precision, or of the 16-bit one: narrow formats have tables of inference
/// kernels at best, and training's are held to run as bf16's do, at their own rate.
const ResidualSurface& surface_of(const std::array<ResidualSurface, kNumPrecisions>& surfaces,
                                  Precision precision) {
    for (const Precision candidate : {precision, Precision::bf16, Precision::fp16})
        if (const auto& own = surfaces[static_cast<std::size_t>(candidate)]; !own.empty())
            return own;
    return kNoSurface;
}

/// A model's time, corrected.
PricedTime corrected(const ResidualSurface& surface, std::array<double, 3> shape, Seconds model,
                     bool same_precision) {
    for (double& size : shape) size = std::log2(size);
    const bool known = same_precision && surface.covers(shape);
    return {model * surface.ratio(shape), known ? Basis::published : Basis::roofline};
}

const CurveIndex kNoCurves;
const CurveIndex& curves_of(const Profile& profile) {
    return profile.index ? *profile.index : kNoCurves;
}

bool has_own(const ResidualSurface& surface,
             const std::array<ResidualSurface, kNumPrecisions>& surfaces, Precision precision) {
    if (&surface == &surfaces[static_cast<std::size_t>(precision)]) return true;
    return precision == Precision::fp16 || precision == Precision::bf16;
}

/// What long training runs hold: of every product by `sustained`; of narrow ones by their share of
/// it too, which is the narrow rate's alone, so that they are never slower than 16-bit ones.
ProductRates training_rates(const Profile& profile, Precision precision) {
    const double own = sustained(profile, precision), wide = sustained(profile, Precision::bf16);
    ProductRates rates = product_rates(profile.roofline, precision, wide);
    rates.narrow = rates.narrow > 1 ? std::max(1.0, rates.narrow * own / wide) : 1;
    return rates;
}

PricedTime modelled_gemm(const Profile& profile, const KernelName& kernel, Precision precision,
                         const Product& product) {
    const auto& surfaces = curves_of(profile).products;
    const ResidualSurface& surface = surface_of(surfaces, precision);
    const Seconds model =
        product_time(*profile.roofline.gemm_model, training_rates(profile, precision), product,
                     gemm_elements(precision), extra_output_bytes(kernel.gemm, precision));
    return corrected(surface, {product.rows, product.columns, product.depth}, model,
                     has_own(surface, surfaces, precision));
}

/// All experts' tiles fill the GPU as one product of as many rows does, and are corrected as it is.
PricedTime modelled_grouped(const Profile& profile, const KernelName& kernel, Precision precision,
                            const GroupedGemm& shape, double rows, double active) {
    const auto& surfaces = curves_of(profile).products;
    const ResidualSurface& surface = surface_of(surfaces, precision);
    const Seconds model = grouped_product_time(
        *profile.roofline.gemm_model, training_rates(profile, precision), kernel.gemm, shape,
        gemm_elements(precision), extra_output_bytes(kernel.gemm, precision));
    const double n = static_cast<double>(shape.n), k = static_cast<double>(shape.k);
    const Product one = product_of(kernel.gemm, rows / active, n, k);
    const PricedTime priced = corrected(surface, {one.rows * active, one.columns, one.depth}, model,
                                        has_own(surface, surfaces, precision));
    return {priced.time, std::max(priced.basis, Basis::published)};
}

PricedTime gemm_time(const Profile& profile, const KernelName& kernel, Precision precision,
                     const Gemm& shape) {
    if (shape.m <= 0 || shape.n <= 0 || shape.k <= 0) return {};
    const Roofline& roofline = profile.roofline;
    const FlopsPerSecond peak = peak_of(roofline, precision);
    const double m = static_cast<double>(shape.m), n = static_cast<double>(shape.n),
                 k = static_cast<double>(shape.k);
    const Product product = product_of(kernel.gemm, m, n, k);
    const ElementSizes element = gemm_elements(precision);
    const double extra = extra_output_bytes(kernel.gemm, precision);
    const GemmSource source = gemm_source(profile, kernel, precision, m, n, k);
    if (source.table->lines.empty() && roofline.gemm_model)
        return modelled_gemm(profile, kernel, precision, product);
    if (!source.table->lines.empty()) {
        const NearLines near =
            near_lines(*source.table, {std::log(source.shape[1]), std::log(source.shape[2])});
        const Efficiency efficiency = efficiency_along(near, std::log(source.shape[0]));
        const Seconds floor = product_floor(roofline, peak, product, element, extra);
        return {floor / (efficiency.value * sustained(profile, precision)), efficiency.basis};
    }
    Roofline unlimited = roofline;
    unlimited.memory_bandwidth = {1e300};
    const Seconds compute = product_floor(unlimited, peak, product, element, extra);
    const Seconds memory =
        Bytes{(product.rows * product.depth + product.depth * product.columns) * element.in +
              product.rows * product.columns * (element.out + extra)} /
        roofline.memory_bandwidth;
    return {stated_time(roofline, compute, memory,
                        gemm_efficiency(roofline, product.depth) * sustained(profile, precision)),
            Basis::roofline};
}

/// A CPU runs its experts one after another: each expert's product has a time of its own.
PricedTime expert_by_expert(const Profile& profile, const KernelName& kernel, Precision precision,
                            const GroupedGemm& shape, const GemmSource& source) {
    const Roofline& roofline = profile.roofline;
    const FlopsPerSecond peak = peak_of(roofline, precision);
    const ElementSizes element = gemm_elements(precision);
    const double extra = extra_output_bytes(kernel.gemm, precision);
    const double n = static_cast<double>(shape.n), k = static_cast<double>(shape.k);
    const bool along_rows =
        source.shape[0] == 1;  // the weight gradient borrows "gemm": m is then its depth
    const NearLines near =
        near_lines(*source.table, {std::log(source.shape[1]), std::log(source.shape[2])});
    PricedTime total{{}, Basis::measured};
    for (const std::uint32_t m : shape.m) {
        if (m == 0) continue;
        const Seconds floor =
            product_floor(roofline, peak, product_of(kernel.gemm, m, n, k), element, extra);
        Efficiency efficiency;
        if (along_rows) {
            efficiency = efficiency_along(near, std::log(static_cast<double>(m)));
        } else {
            const Product product = product_of(kernel.gemm, m, n, k);
            efficiency = efficiency_along(
                near_lines(*source.table, {std::log(product.columns), std::log(product.depth)}),
                std::log(product.rows));
        }
        total.time += floor / (efficiency.value * sustained(profile, precision));
        total.basis = std::max(total.basis, efficiency.basis);
    }
    return total;
}

PricedTime grouped_time(const Profile& profile, const KernelName& kernel, Precision precision,
                        const GroupedGemm& shape) {
    double rows = 0, active = 0;
    for (const std::uint32_t m : shape.m) {
        rows += m;
        active += m > 0;
    }
    if (rows == 0 || shape.n <= 0 || shape.k <= 0) return {};
    const Roofline& roofline = profile.roofline;
    const double n = static_cast<double>(shape.n), k = static_cast<double>(shape.k);
    const GemmSource source = gemm_source(profile, kernel, precision, 1, n, k);
    if (source.table->lines.empty() && roofline.gemm_model)
        return modelled_grouped(profile, kernel, precision, shape, rows, active);
    if (!source.table->lines.empty() && roofline.num_sms <= 1)
        return expert_by_expert(profile, kernel, precision, shape, source);

    const FlopsPerSecond peak = peak_of(roofline, precision);
    const ElementSizes element = gemm_elements(precision);
    const double extra = extra_output_bytes(kernel.gemm, precision);
    static const int grouped = kernel_named("grouped_gemm").index;
    const EfficiencyTable& own = table_of(profile, kernel.index, precision);
    const EfficiencyTable& forward = table_of(profile, grouped, precision);
    if (!own.lines.empty() || !forward.lines.empty()) {
        // One launch of all experts' tiles; the rows of its active experts say how far each tile's
        // operands are reused.
        const EfficiencyTable& table = own.lines.empty() ? forward : own;
        const Efficiency efficiency = efficiency_along(
            near_lines(table, {std::log(n), std::log(k)}), std::log(rows / active));
        const Seconds floor = grouped_floor(roofline, peak, kernel.gemm, shape, element, extra);
        return {floor / (efficiency.value * sustained(profile, precision)), efficiency.basis};
    }
    if (!source.table->lines.empty()) {
        // All experts' tiles fill the GPU as one product of as many rows does.
        const Product product = product_of(kernel.gemm, rows, n, k);
        const bool deep = kernel.gemm == GemmKind::weight_gradient;
        const Efficiency efficiency = efficiency_along(
            near_lines(*source.table,
                       {std::log(product.columns), std::log(deep ? rows / active : product.depth)}),
            std::log(deep ? product.rows * active : product.rows));
        const Seconds floor = grouped_floor(roofline, peak, kernel.gemm, shape, element, extra);
        return {floor / (efficiency.value * sustained(profile, precision)),
                std::max(efficiency.basis, Basis::interpolated)};
    }
    Roofline unlimited = roofline;
    unlimited.memory_bandwidth = {1e300};
    const Seconds compute = grouped_floor(unlimited, peak, kernel.gemm, shape, element, extra);
    Roofline unbounded = roofline;
    unbounded.num_sms = 0;
    const Seconds memory = grouped_floor(unbounded, {1e300}, kernel.gemm, shape, element, extra);
    const double depth = product_of(kernel.gemm, rows / active, n, k).depth;
    return {stated_time(roofline, compute, memory,
                        gemm_efficiency(roofline, depth) * sustained(profile, precision)),
            Basis::roofline};
}

/// A backward pass recomputes the scores and forms four products: 2.5 times the forward's two
/// (FlashAttention-2, §3.1).
constexpr double kBackwardWork = 2.5;

PricedTime attention_time(const Profile& profile, const KernelName& kernel, Precision recipe,
                          const AttentionShape& shape) {
    if (shape.batch <= 0 || shape.sequence <= 0 || shape.num_heads <= 0 || shape.head_size <= 0)
        return {};
    const Precision precision = attention_precision(recipe);
    const Roofline& roofline = profile.roofline;
    const FlopsPerSecond peak = peak_of(roofline, precision);
    const double work = kernel.backward ? kBackwardWork : 1;
    const Seconds compute = work * attention_flops(shape) / peak;
    const Seconds memory =
        work * attention_bytes(shape, gemm_elements(precision).out) / roofline.memory_bandwidth;
    static const int forward = kernel_named("attention_forward").index;
    const EfficiencyTable& own = table_of(profile, kernel.index, precision);
    const EfficiencyTable& table = own.lines.empty() ? table_of(profile, forward, precision) : own;
    const double s = static_cast<double>(shape.sequence);
    if (table.lines.empty() && roofline.attention_model) {
        const auto& surfaces = curves_of(profile).attention;
        const ResidualSurface& surface = surface_of(surfaces, precision);
        const Seconds model = attention_model_time(
            *roofline.attention_model,
            product_rates(roofline, precision, sustained(profile, precision)), shape,
            roofline.memory_efficiency, work, kernel.backward ? backward_efficiency(profile) : 1);
        return corrected(surface,
                         {s, static_cast<double>(shape.batch * shape.num_heads),
                          static_cast<double>(shape.head_size)},
                         model, has_own(surface, surfaces, precision));
    }
    if (!table.lines.empty()) {
        const NearLines near =
            near_lines(table, {std::log(static_cast<double>(shape.head_size)),
                               std::log(static_cast<double>(shape.batch * shape.num_heads))});
        const Efficiency efficiency = efficiency_along(near, std::log(s));
        const bool borrowed = own.lines.empty() && kernel.backward;
        const double backward = borrowed ? backward_efficiency(profile) : 1;
        return {std::max(compute, memory) /
                    (efficiency.value * backward * sustained(profile, precision)),
                borrowed ? std::max(efficiency.basis, Basis::published) : efficiency.basis};
    }
    double efficiency = roofline.attention_efficiency * s / (s + roofline.attention_half_sequence) *
                        sustained(profile, precision);
    if (kernel.backward) efficiency *= backward_efficiency(profile);
    return {stated_time(roofline, compute, memory, efficiency), Basis::roofline};
}

PricedTime streamed_time(const Profile& profile, const KernelName& kernel, Precision precision,
                         const Streamed& shape) {
    if (!(shape.moved.value > 0)) return {};
    const Roofline& roofline = profile.roofline;
    const Seconds floor = shape.moved / roofline.memory_bandwidth;
    const double training =
        profile.host_overlap > 0 ? profile.calibration[Constant::memory_training] : 1;
    static const int generic = kernel_named("streamed").index;
    const EfficiencyTable& own = table_of(profile, kernel.index, precision);
    const EfficiencyTable& table = own.lines.empty() ? table_of(profile, generic, precision) : own;
    if (!table.lines.empty()) {
        double log_width = 0;
        if (kernel.by_width && !own.lines.empty())
            log_width = shape.width > 0 ? std::log(static_cast<double>(shape.width))
                                        : 0.5 * (table.low[0] + table.high[0]);
        const Efficiency efficiency =
            efficiency_along(near_lines(table, {log_width, 0}), std::log(shape.moved.value));
        return {floor / (efficiency.value * training), efficiency.basis};
    }
    return {floor / (roofline.memory_efficiency * training) + roofline.kernel_overhead,
            Basis::roofline};
}

}  // namespace

PricedTime kernel_time(const Profile& profile, std::string_view name, Precision precision,
                       const KernelShape& shape) {
    KernelName kernel = kernel_named(name);
    if (const auto* gemm = std::get_if<Gemm>(&shape)) {
        assert(kernel.family == KernelFamily::gemm);
        return gemm_time(profile, kernel, precision, *gemm);
    }
    if (const auto* grouped = std::get_if<GroupedGemm>(&shape)) {
        assert(kernel.family == KernelFamily::grouped_gemm);
        return grouped_time(profile, kernel, precision, *grouped);
    }
    if (const auto* attention = std::get_if<AttentionShape>(&shape)) {
        assert(kernel.family == KernelFamily::attention);
        return attention_time(profile, kernel, precision, *attention);
    }
    if (kernel.index < 0) kernel = kernel_named("streamed");
    return streamed_time(profile, kernel, precision, std::get<Streamed>(shape));
}

}  // namespace moeplan
