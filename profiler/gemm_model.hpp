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

#include <cstddef>
#include <span>
#include <vector>

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
/// Rows of the experts of many ranks, counted once for every product over them.
struct RowCounts {
    std::vector<double> rows, active;  ///< [ranks] Σ m; experts with m > 0
    std::vector<double> strips;        ///< [heights, ranks] Σ ⌈m / height⌉
    std::size_t num_ranks() const { return rows.size(); }
};
/// Distinct rows of the model's tiles, ascending.
std::vector<int> tile_heights(const GemmModel&);
/// @param experts_per_rank  divides the rows
RowCounts count_rows(std::span<const std::uint32_t> rows, std::size_t experts_per_rank,
                     std::span<const int> heights);

/// One launch of all experts' tiles; what does not depend on their rows is worked out once.
class GroupedProduct {
  public:
    GroupedProduct(const GemmModel&, const ProductRates&, GemmKind, std::int64_t n, std::int64_t k,
                   ElementSizes, double extra_bytes_per_output);
    /// Counts are over `tile_heights`.
    /// @param seconds  [ranks]; 0 where there are no rows
    void times(const RowCounts&, std::span<double> seconds) const;

  private:
    struct TileCost {
        std::size_t height = 0;     // of tile_heights
        double rows = 1, columns = 1;  // tiles beside each other; rows: of a weight gradient
        double flops = 0, rate = 1;
    };
    const GemmModel& model_;
    ProductRates rates_;
    GemmKind kind_;
    double n_, k_;
    ElementSizes element_;
    double extra_;
    std::vector<TileCost> tiles_;
};
Seconds grouped_product_time(const GemmModel&, const ProductRates&, GemmKind, const GroupedGemm&,
                             ElementSizes, double extra_bytes_per_output);

/// Causal attention's core. @param work  2.5 in a backward pass; @param efficiency  of a backward
/// over its forward
Seconds attention_model_time(const AttentionModel&, const ProductRates&, const AttentionShape&,
                             double memory_efficiency, double work, double efficiency);

}  // namespace moeplan
