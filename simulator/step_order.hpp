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
    int chunk = 0, micro_batch = 0;  ///< chunk: of this stage, 0 … virtual_pipeline_size − 1
    bool operator==(const Slot&) const = default;
};

/// Orders that build_step_graph can follow. Others are named in a finding, never replaced silently.
bool can_order(Pipeline);

/// [stages] → slots in the order in which the stage works.
///
/// gpipe: all forwards, then all backwards. one_f_one_b: stage s runs p−1−s forwards ahead
/// (PipeDream-flush). interleaved: chunks in turns of p micro-batches; 2(p−1−s) + (v−1)p forwards
/// ahead (Megatron-LM). zero_bubble: ZB-H1: memory of 1F1B, weight gradients fill the drain (Qi et
/// al. 2024, arXiv 2401.10241).
/// @param num_chunks  virtual_pipeline_size v; interleaved needs num_micro_batches a multiple of
/// num_stages
std::vector<std::vector<Slot>> pipeline_order(Pipeline, int num_stages, int num_chunks,
                                              int num_micro_batches);

}  // namespace moeplan
