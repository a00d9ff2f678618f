#pragma once
/// What is searched over: shapes of the model, layouts of the cluster, schedules of the step.

#include <cstdint>
#include <string>
#include <vector>

#include "core/enum_names.hpp"
#include "planner/resize.hpp"
#include "simulator/step.hpp"

namespace moeplan {

enum class Objective : std::uint8_t {
    throughput,    ///< time per token
    time_to_loss,  ///< time to the loss that the model asked for reaches after its tokens
    cost           ///< GPU time to that loss
};

/// Sizes that the user fixed, one or a few of each; empty: every size is searched.
struct FixedSizes {
    std::vector<int> tp, cp, pp, dp, ep, etp;
};

struct SearchSpace {
    std::vector<int> num_moe_heads, num_experts, top_k;  ///< empty: keep the model's own counts
    std::vector<DocumentPool> pools;                     ///< EMO only
    Parity parity = Parity::flops;
    ResizeRule rounding;  ///< its parity is replaced by `parity`
    FixedSizes fixed;
    std::vector<ParallelLayout> layouts;  ///< empty: all that divide the cluster
    std::vector<StepSchedule> schedules;  ///< empty: the axes below, around the base's

    std::vector<int> micro_batch_sizes = {1, 2, 4};
    std::vector<int> virtual_pipeline_sizes = {1, 2, 4};
    std::vector<Recompute> recomputes;  ///< empty: none, selective, full
    std::vector<Sharding> shardings;    ///< empty: zero1, and zero3 without a pipeline
    int global_batch_size = 0;          ///< sequences; 0: the base's

    /// Routing of a model that the base's trace does not fit.
    SyntheticRouting routing_elsewhere;
    double hot_rank_load = 1;  ///< busiest expert rank over the mean, for memory

    Objective objective = Objective::throughput;
    std::string quality_law = "mh_calibrated";  ///< empty: no loss is estimated
    double training_tokens = 0;                 ///< 0: 20 a parameter that is active

    int num_best = 12;  ///< candidates that reach the last stage
    int max_coarse =
        0;  ///< closed-form runs for each model, at most; 0: 64 shared, at least 8 each
};

/// Layouts of this many GPUs, in a fixed order. Tensor and expert-tensor groups stay inside the
/// scale-up domain.
/// @param domain  GPUs of one scale-up domain
std::vector<ParallelLayout> layouts_of(int num_gpus, int domain, int num_layers, int max_experts,
                                       const FixedSizes& fixed = {});

/// Schedules to try with one layout, the plainest first. Those whose micro-batches do not divide
/// the global batch are left out.
/// @param refused  how many were left out for that
std::vector<StepSchedule> schedules_of(const SearchSpace&, const StepSchedule& base,
                                       const ParallelLayout&, int global_batch_size,
                                       std::int64_t* refused = nullptr);

/// Fills what the user left open and says what was taken: a global batch of 4 M tokens, document
/// concentration of other models from the base's trace, memory head-room for a hot rank.
std::vector<std::string> apply_defaults(SearchSpace&, const StepCase& base);

/// GPUs that one scale-up domain holds.
int scale_up_domain(const ClusterSpec&);

template <>
const EnumNames<Objective>& enum_names<Objective>();

}  // namespace moeplan
