#pragma once
/// Which of a profile's tables answers for a kernel: its own, or that of the same work under another
/// name.

#include <array>

#include "profiler/curve_index.hpp"
#include "profiler/profile.hpp"

namespace moeplan {

/// Lines of this kernel in this precision, or in one that runs at the same rate; none: empty.
const EfficiencyTable& table_of(const Profile&, int kernel, Precision);

/// Curves of the same product under its other names, where its own was not measured: a gradient is
/// a product too.
struct GemmSource {
    const EfficiencyTable* table = nullptr;
    std::array<double, 3> shape{};  ///< m, n, k to look up under
};
GemmSource gemm_source(const Profile&, const KernelName&, Precision, double m, double n, double k);

/// A streamed kernel's own lines, or those of "streamed", which stands for all.
const EfficiencyTable& streamed_table(const Profile&, const KernelName&, Precision);

/// What a streamed kernel without a curve takes, at the stated efficiency.
/// @param training  share of it that kernels hold in training (`memory_training`)
inline Seconds stated_streamed(const Roofline& roofline, double training, Bytes moved) {
    return moved / roofline.memory_bandwidth / (roofline.memory_efficiency * training) +
           roofline.kernel_overhead;
}
double memory_training(const Profile&);

}  // namespace moeplan
