#pragma once
/// Every rule at once: an infeasible layout is an answer, not an error.

#include <string>
#include <vector>

#include "core/units.hpp"
#include "model/model_spec.hpp"
#include "model/parallel_layout.hpp"
#include "model/step_schedule.hpp"

namespace moeplan {

enum class Severity { broken, warning, assumption };
/// assumptions: assumed[key] = value
struct Finding {
    Severity severity = Severity::broken;
    std::string rule, detail, key, value;
    std::vector<std::string> nearest;  ///< layouts or values near the asked one that would do
    bool operator==(const Finding&) const = default;
};

/// Bytes of the fullest rank of one pipeline stage, by class.
struct StageMemory {
    int stage = 0, rank = 0;
    Bytes weights, gradients, optimizer, activations, dispatch, other;
    Bytes total() const { return weights + gradients + optimizer + activations + dispatch + other; }
};

/// @param world_size  GPUs at hand; ≤ 0: unknown, rules about it are left out
std::vector<Finding> check_layout(const ModelSpec&, const ParallelLayout&, const StepSchedule&,
                                  int world_size);

/// @param hot_rank_load  load of the busiest expert rank over the mean (1 = balanced)
/// @return one entry a stage, [pipeline_parallel_size]
std::vector<StageMemory> memory_by_stage(const ModelSpec&, const ParallelLayout&,
                                         const StepSchedule&, double hot_rank_load = 1);

}  // namespace moeplan
