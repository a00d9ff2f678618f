#include "profiler/kernel_source.hpp"

namespace moeplan {
namespace {

const EfficiencyTable kNoTable;

}  // namespace

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

const EfficiencyTable& streamed_table(const Profile& profile, const KernelName& kernel,
                                      Precision precision) {
    static const int generic = kernel_named("streamed").index;
    const EfficiencyTable& own = table_of(profile, kernel.index, precision);
    return own.lines.empty() ? table_of(profile, generic, precision) : own;
}

double memory_training(const Profile& profile) {
    return profile.host_overlap > 0 ? profile.calibration[Constant::memory_training] : 1;
}


}  // namespace moeplan
