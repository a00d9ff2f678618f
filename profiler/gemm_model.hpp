#pragma once
/// Time of a matrix product on a GPU from its tiles: what a library that picks the best of its
/// kernels takes, before a table corrects it.
///
///     rate      = sustained · wide peak · E/(1 + c·(64/tm + 64/tn))
///     main loop = counted waves · SMs · 2·tm·tn · (k/(s·narrow) + k₀)/rate, and the split's cost
///     if s > 1 time      = launch + max(main loop, bytes/(bandwidth · memory efficiency))
///
/// over the best tile (tm, tn) and split s along k; `narrow` is how much faster than bf16 the
/// format runs, and does not shorten the pipeline's filling k₀.

#include "profiler/profile.hpp"
#include "profiler/work_floor.hpp"

namespace moeplan {

/// A device, and how a precision runs on it.
struct ProductRates {
    FlopsPerSecond wide;  ///< of 16-bit operands (of fp32 for fp32): what k₀ is counted at
    double narrow = 1;    ///< rate over `wide`, efficiency of the narrow format included
    BytesPerSecond memory_bandwidth;
    int num_sms = 1;
    double sustained = 1;
};
/// @param sustained  of compute-bound kernels (a calibration)
ProductRates product_rates(const Roofline&, Precision, double sustained);
/// The same on the device where a curve was measured. @param device  its rates in this precision
ProductRates product_rates(const Roofline&, Precision, const DeviceRates& device);

Seconds product_time(const GemmModel&, const ProductRates&, const Product&, ElementSizes,
                     double extra_bytes_per_output);
/// One launch of all experts' tiles.
Seconds grouped_product_time(const GemmModel&, const ProductRates&, GemmKind, const GroupedGemm&,
                             ElementSizes, double extra_bytes_per_output);

/// Causal attention's core. @param work  2.5 in a backward pass; @param efficiency  of a backward
/// over its forward
Seconds attention_model_time(const AttentionModel&, const ProductRates&, const AttentionShape&,
                             double memory_efficiency, double work, double efficiency);

}  // namespace moeplan
