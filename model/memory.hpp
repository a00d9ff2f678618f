#pragma once
/// The terms of `memory_by_stage` (model/check.hpp), for tests and for those who move memory in
/// time.

#include <vector>

#include "core/units.hpp"
#include "model/model_spec.hpp"
#include "model/parallel_layout.hpp"
#include "model/step_schedule.hpp"

namespace moeplan {

/// What one layer keeps of one micro-batch from forward to backward, on one rank.
struct LayerActivations {
    Bytes input;  ///< the residual stream that enters
    Bytes kept;   ///< under the schedule's recomputation
    Bytes all;  ///< with everything a backward pass reads (full recomputation rebuilds this for one
                ///< layer at a time)
    Bytes inside;    ///< of `all`: inside the MoE part (rebuilt by recomputing "moe")
    Bytes dispatch;  ///< buffers of one exchange
};
LayerActivations layer_activations(const ModelSpec&, const LayerSpec&, const ParallelLayout&,
                                   const StepSchedule&, double hot_rank_load = 1);

/// Forward passes whose backward is still to come, at the worst moment.
/// @return [pp][vpp], by pipeline rank and chunk
std::vector<std::vector<int>> passes_in_flight(const ParallelLayout&, const StepSchedule&);

}  // namespace moeplan
