#include "profiler/modelled_time.hpp"

#include <algorithm>
#include <cmath>

namespace moeplan {
namespace {

const CurveIndex kNoCurves;
const ResidualSurface kNoSurface;

const CurveIndex& curves_of(const Profile& profile) {
    return profile.index ? *profile.index : kNoCurves;
}

Correction correction_of(const std::array<ResidualSurface, kNumPrecisions>& surfaces,
                         Precision precision) {
    for (const Precision candidate : {precision, Precision::bf16, Precision::fp16})
        if (const auto& surface = surfaces[static_cast<std::size_t>(candidate)]; !surface.empty())
            return {&surface, candidate == precision || precision == Precision::fp16 ||
                                  precision == Precision::bf16};
    return {&kNoSurface, precision == Precision::fp16 || precision == Precision::bf16};
}

/// What long training runs hold: of every product by `sustained`; of narrow ones by their share of
/// it too, which is the narrow rate's alone, so that they are never slower than 16-bit ones.
ProductRates training_rates(const Profile& profile, Precision precision) {
    const double own = sustained(profile, precision), wide = sustained(profile, Precision::bf16);
    ProductRates rates = product_rates(profile.roofline, precision, wide);
    rates.narrow = rates.narrow > 1 ? std::max(1.0, rates.narrow * own / wide) : 1;
    return rates;
}

}  // namespace

Correction product_correction(const Profile& profile, Precision precision) {
    return correction_of(curves_of(profile).products, precision);
}
Correction attention_correction(const Profile& profile, Precision precision) {
    return correction_of(curves_of(profile).attention, precision);
}

PricedTime Correction::of(std::array<double, 3> shape, Seconds model) const {
    for (double& size : shape) size = std::log2(size);
    return {model * ratio(shape), basis(shape)};
}

PricedTime modelled_gemm(const Profile& profile, const KernelName& kernel, Precision precision,
                         const Product& product) {
    const Seconds model =
        product_time(*profile.roofline.gemm_model, training_rates(profile, precision), product,
                     gemm_elements(precision), extra_output_bytes(kernel.gemm, precision));
    return product_correction(profile, precision)
        .of({product.rows, product.columns, product.depth}, model);
}

ModelledGrouped::ModelledGrouped(const Profile& profile, const KernelName& kernel,
                                 Precision precision, std::int64_t n, std::int64_t k)
    : kind_(kernel.gemm),
      n_(static_cast<double>(n)),
      k_(static_cast<double>(k)),
      correction_(product_correction(profile, precision)),
      product_(*profile.roofline.gemm_model, training_rates(profile, precision), kernel.gemm, n, k,
               gemm_elements(precision), extra_output_bytes(kernel.gemm, precision)) {}

std::array<double, 3> ModelledGrouped::shape(double rows, double active) const {
    const Product one = product_of(kind_, rows / active, n_, k_);
    return {one.rows * active, one.columns, one.depth};
}

void ModelledGrouped::times(const RowCounts& counts, std::span<double> seconds) const {
    product_.times(counts, seconds);
    // Sizes that do not change from rank to rank need no new logarithm.
    std::array<double, 3> size{}, log{};
    for (std::size_t rank = 0; rank < seconds.size(); ++rank) {
        if (!(counts.rows[rank] > 0)) continue;
        const std::array<double, 3> here = shape(counts.rows[rank], counts.active[rank]);
        for (std::size_t axis = 0; axis < 3; ++axis)
            if (here[axis] != size[axis]) log[axis] = std::log2(size[axis] = here[axis]);
        seconds[rank] *= correction_.ratio(log);
    }
}

Basis ModelledGrouped::basis(double rows, double active) const {
    std::array<double, 3> log = shape(rows, active);
    for (double& size : log) size = std::log2(size);
    return std::max(correction_.basis(log), Basis::published);
}

}  // namespace moeplan
