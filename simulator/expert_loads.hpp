#pragma once
/// Rows that the experts of one lane got in one MoE layer of one micro-batch, and who sent them.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "model/model_spec.hpp"
#include "model/parallel_layout.hpp"

namespace moeplan {

struct PlacedLoads;

/// Counts of rows, two bytes each where none needs more: a step has tens of millions of them.
class RoutedRows {
  public:
    RoutedRows() = default;
    explicit RoutedRows(std::vector<std::uint32_t> counts);
    std::size_t size() const { return wide_.empty() ? narrow_.size() : wide_.size(); }
    std::uint32_t operator[](std::size_t i) const { return wide_.empty() ? narrow_[i] : wide_[i]; }

  private:
    std::vector<std::uint16_t> narrow_;
    std::vector<std::uint32_t> wide_;  // else
};

/// What each rank of a lane got in one MoE layer of one micro-batch.
struct ExpertLoads {
    int experts_per_rank = 0;
    std::vector<std::uint32_t>
        rows;            ///< [width, experts_per_rank] of the rank's experts, from all its sources
    RoutedRows traffic;  ///< [width, expert_parallel_size] rows that a source sends to each place
    /// [width, expert_parallel_size], [width, domains] units that a source sends to a place, to a
    /// domain (`StepGraph::place_domain`), at least once; empty: not known, to be estimated.
    std::vector<std::uint32_t> copies, domain_copies;
    std::int64_t units = 0;  ///< routed units (sub-tokens) of one source
    int top_k = 1;
};

/// Loads of one lane from those of its places: every shard of an expert (expert tensor parallelism)
/// sees the expert's rows.
/// @param units  routed units of one source
/// @param width  ranks of the lane
ExpertLoads lane_loads(PlacedLoads, const ParallelLayout&, const MoeFeedForward&,
                       std::int64_t units, int width);

/// Rows of the fullest rank over their mean; 1 without rows.
double load_imbalance(const ExpertLoads&);

}  // namespace moeplan
