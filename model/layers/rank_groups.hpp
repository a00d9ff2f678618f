#pragma once
/// The ranks that this one shares its work with, by what they share.

#include <cstdint>

#include "kernels/communicator.hpp"
#include "model/layers/tensor.hpp"
#include "model/parallel_layout.hpp"

namespace moeplan {

/// Seconds this rank spent in exchanges, waiting included, since they were last set to zero.
struct ExchangeTimes {
    double dispatch = 0, combine = 0;  ///< rows to experts and back, forward and backward together
    double tensor = 0;                 ///< sums over tensor parallel ranks, both passes
    double pipeline = 0;               ///< hidden states and their gradients between stages
    double balance = 0;                ///< counts of the global balance loss
};

/// Default: one rank alone, every group of one.
struct RankGroups {
    RankGroups() = default;
    /// Collective over `world`, whose size the layout has.
    /// @param devices  the same ranks for what lies on devices (NCCL), or `world` once more
    RankGroups(const ParallelLayout&, const Communicator& world, const Communicator& devices);

    ParallelLayout layout;
    RankPlace place;
    Communicator tensor;          ///< one micro-batch, heads and widths split
    Communicator data;            ///< the same share of the model, other micro-batches
    Communicator stage;           ///< tensor × data: all ranks of our pipeline stage
    Communicator experts;         ///< ep × etp: rank e · etp + t holds part t of expert block e
    Communicator expert_data;     ///< the same share of the same experts
    Communicator previous, next;  ///< pairs with the stage before (rank 0 there) and behind; alone
                                  ///< at the ends
    Communicator tied;            ///< first and last stage: both hold a tied embedding
    Communicator host_tensor, host_data, host_experts;  ///< the same groups for numbers on the host
    ExchangeTimes times;

    bool is_first_stage() const { return place.stage == 0; }
    bool is_last_stage() const { return place.stage == layout.pipeline_parallel_size - 1; }
};

/// Elements first … end − 1 of `count` are part `part` of `parts`: as even as can be.
struct Span {
    std::int64_t first = 0, end = 0;
    std::int64_t count() const { return end - first; }
};
constexpr Span part_of(std::int64_t count, std::int64_t part, std::int64_t parts) {
    return {count * part / parts, count * (part + 1) / parts};
}

/// @name Exchanges of device memory. Where the group exchanges host memory alone (MPI is never
/// given device memory) they go by way of the host. `seconds` grows by the time they took.
/// @{
void sum_over(Runtime&, const Communicator&, void* data, std::int64_t count, NumberFormat,
              double& seconds);
/// Blocks in order of ranks; a rank's own is in its place already.
/// @param bytes  [ranks] of each block
void gather_over(Runtime&, const Communicator&, void* data, const std::vector<std::int64_t>& bytes,
                 double& seconds);
/// data: size · count elements. Rank r's sum of block r is written there in place.
void scatter_sums_over(Runtime&, const Communicator&, void* data, std::int64_t count, NumberFormat,
                       double& seconds);
void exchange_over(Runtime&, const Communicator&, const void* from,
                   const std::vector<std::int64_t>& sent_bytes, void* to,
                   const std::vector<std::int64_t>& received_bytes, double& seconds);
/// @}

}  // namespace moeplan
