#pragma once
/// In which order each pipeline stage works through its micro-batches. Pure orders, no times:
/// docs/step.md draws them.

#include <cstdint>
#include <vector>

#include "model/step_schedule.hpp"

namespace moeplan {

/// A pass over one chunk of layers. `backward` alone computes both gradients; a schedule that
/// splits it uses backward_input (what the stage before waits for) and backward_weight (which no
/// one waits for).
enum class Pass : std::uint8_t { forward, backward, backward_input, backward_weight };
struct Slot {
    Pass pass = Pass::forward;
    int chunk = 0, micro_batch = 0;  ///< chunk: of this stage (model/stage_layers.hpp)
    /// A forward that takes turns with the backward in the next slot, of another micro-batch: each
    /// computes while the other's tokens travel.
    bool with_next = false;
    bool operator==(const Slot&) const = default;
};

/// [stages] → slots in the order in which the stage works.
///
/// gpipe: all forwards, then all backwards. one_f_one_b: stage s runs p−1−s forwards ahead
/// (PipeDream-flush). interleaved: chunks in turns of p micro-batches; 2(p−1−s) + (v−1)p forwards
/// ahead (Megatron-LM). zero_bubble: ZB-H1: memory of 1F1B, weight gradients fill the drain (Qi et
/// al. 2024, arXiv 2401.10241). zero_bubble_v: ZB-V of the same authors (arXiv 2405.15362): two
/// chunks a stage. dual_pipe: micro-batches from both ends, the first half from stage 0
/// (DeepSeek-V3, arXiv 2412.19437, figure 5).
/// @param num_chunks  virtual_pipeline_size v; zero_bubble_v and dual_pipe: 2
/// @param num_micro_batches  interleaved: a multiple of num_stages; dual_pipe: even, 2·num_stages or
/// more
/// @param pairs  one_f_one_b and interleaved run one forward more ahead, so that the forwards and
/// backwards that follow one another are of different micro-batches and can take turns
std::vector<std::vector<Slot>> pipeline_order(Pipeline, int num_stages, int num_chunks,
                                              int num_micro_batches, bool pairs = false);

}  // namespace moeplan
