#pragma once
/// Every rule at once: an infeasible layout is an answer, not an error.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/enum_names.hpp"
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
    std::map<std::string, double>
        figures;  ///< numbers behind the rule ("remainder" → 2), for programs
    bool operator==(const Finding&) const = default;
};

/// Bytes of the fullest rank of one pipeline stage, by class.
struct StageMemory {
    int stage = 0, rank = 0;
    Bytes weights, gradients, optimizer, activations, dispatch, other;
    Bytes total() const { return weights + gradients + optimizer + activations + dispatch + other; }
};

enum class Verdict : std::uint8_t { valid, invalid, out_of_memory };
template <>
const EnumNames<Verdict>& enum_names<Verdict>();

/// What a layout comes to, for people and for programs that ask.
struct LayoutFacts {
    int world_size = 1;
    int expert_model_size = 1;  ///< ETP·EP·PP: the least world that holds the experts once
    int min_gpus = 1;           ///< least world that both grids divide
    std::optional<int> expert_data_parallel_size;  ///< absent if the groups do not divide
    std::optional<int> experts_per_rank, max_valid_ep;
    std::vector<int> valid_tp, valid_ep;  ///< sizes that heads and experts allow on this world
    int virtual_stages = 1, decoder_layers = 0, mtp_layers = 0;
    std::vector<int> layers_per_stage, moe_layers_per_stage;  ///< [pipeline_parallel_size]
    double expert_params_per_gpu = 0;                         ///< of the fullest stage
    Bytes gathered_layer;  ///< FSDP: the experts of one MoE layer, gathered (dense layers: the
                           ///< layer); zero without it
};
/// @param world_size  ≤ 0: the layout's own
LayoutFacts layout_facts(const ModelSpec&, const ParallelLayout&, const StepSchedule&,
                         int world_size);

/// @param world_size  GPUs at hand; ≤ 0: unknown, rules about it are left out
std::vector<Finding> check_layout(const ModelSpec&, const ParallelLayout&, const StepSchedule&,
                                  int world_size);

/// @param hot_rank_load  load of the busiest expert rank over the mean (1 = balanced)
/// @param expert_copies  experts that a rank holds, over its equal part (more where some have
/// copies)
/// @return one entry a stage, [pipeline_parallel_size]
std::vector<StageMemory> memory_by_stage(const ModelSpec&, const ParallelLayout&,
                                         const StepSchedule&, double hot_rank_load = 1,
                                         double expert_copies = 1);

/// Invalid if a rule is broken; else out of memory if a stage exceeds the limit (of one GPU; empty:
/// unknown); else valid.
Verdict verdict_of(const std::vector<Finding>&, const std::vector<StageMemory>&,
                   std::optional<Bytes> limit);

}  // namespace moeplan
