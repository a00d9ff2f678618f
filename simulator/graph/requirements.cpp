#include "simulator/graph/requirements.hpp"

#include <algorithm>
#include <string>

#include "core/errors.hpp"

namespace moeplan {
namespace {

[[noreturn]] void refuse(const std::string& field, int value, const std::string& expected) {
    throw InputError("layout", field, std::to_string(value),
                     expected + " (`step_findings` lists every rule broken)");
}

/// A placement of another model, or for another expert-parallel size.
void refuse_placement(const StepCase& step) {
    const ExpertPlacement& placement = *step.placement;
    if (placement.num_ranks != step.layout.expert_parallel_size)
        throw InputError(placement.source, "/num_ranks", std::to_string(placement.num_ranks),
                         "the layout's expert-parallel size (--ep), " +
                             std::to_string(step.layout.expert_parallel_size));
    const auto experts = static_cast<int>(placement.layers.front().ranks_of_expert.size());
    for (const auto& layer : step.model.layers)
        if (const auto* moe = std::get_if<MoeFeedForward>(&layer.feed_forward);
            moe && moe->num_experts != experts)
            throw InputError(placement.source, "/layers/0/ranks_of_expert",
                             std::to_string(experts) + " experts",
                             "the model's " + std::to_string(moe->num_experts));
    if (num_moe_layers(step.model) == 0)
        throw InputError(placement.source, "", step.model.name, "a model with experts");
}

}  // namespace

void require_buildable(const StepCase& step) {
    const ParallelLayout& l = step.layout;
    const auto is = [&](Pipeline pipeline) {
        return step.schedule.pipeline == pipeline && l.pipeline_parallel_size > 1;
    };
    if (l.tensor_parallel_size < 1 || l.context_parallel_size < 1 || l.pipeline_parallel_size < 1 ||
        l.data_parallel_size < 1 || l.expert_parallel_size < 1 || l.expert_tensor_parallel_size < 1)
        refuse("", 0, "sizes of 1 or more");
    if (world_size(l) > num_gpus(step.cluster))
        refuse("", world_size(l),
               "at most the cluster's " + std::to_string(num_gpus(step.cluster)) + " GPUs");
    if (step.schedule.num_micro_batches < 1 || step.schedule.micro_batch_size < 1 ||
        step.schedule.sequence_length < 1)
        refuse("micro_batch", step.schedule.num_micro_batches, "batches of 1 or more");
    if (is(Pipeline::zero_bubble_v) && step.schedule.virtual_pipeline_size != 2)
        refuse("vpp", step.schedule.virtual_pipeline_size, "2 chunks a stage for zero_bubble_v");
    if (is(Pipeline::dual_pipe) &&
        (l.pipeline_parallel_size % 2 != 0 || step.schedule.virtual_pipeline_size != 1))
        refuse("pp", l.pipeline_parallel_size, "an even number of stages, vpp 1, for dual_pipe");
    if (is(Pipeline::dual_pipe) && (step.schedule.num_micro_batches % 2 != 0 ||
                                    step.schedule.num_micro_batches < 2 * l.pipeline_parallel_size))
        refuse("micro_batches", step.schedule.num_micro_batches,
               "an even number, two a stage or more, for dual_pipe");
    if (step.schedule.pipeline == Pipeline::interleaved &&
        step.schedule.num_micro_batches % l.pipeline_parallel_size != 0)
        refuse("micro_batches", step.schedule.num_micro_batches,
               "a multiple of the pipeline size, for interleaved chunks");
    if (step.placement) refuse_placement(step);
    if (!step.profile) throw InputError("profile", "", "", "a profile");
    if (step.model.layers.empty()) throw InputError("model", "layers", "", "at least one layer");
    const int ranks = world_size(l) / l.pipeline_parallel_size;
    for (const auto& layer : step.model.layers)
        if (const auto* moe = std::get_if<MoeFeedForward>(&layer.feed_forward)) {
            if (moe->num_experts % l.expert_parallel_size != 0)
                refuse("ep", l.expert_parallel_size,
                       "a divisor of the " + std::to_string(moe->num_experts) + " experts");
            if (ranks % (l.expert_parallel_size * l.expert_tensor_parallel_size) != 0)
                refuse("ep", l.expert_parallel_size,
                       "EP · ETP that divides the " + std::to_string(ranks) + " ranks of a stage");
            if (step.model.hidden_size % std::max(1, moe->num_moe_heads) != 0)
                refuse("num_moe_heads", moe->num_moe_heads, "a divisor of the hidden size");
        }
}

}  // namespace moeplan
