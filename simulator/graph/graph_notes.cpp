#include "simulator/graph/graph_notes.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/text.hpp"
#include "simulator/overlap.hpp"

namespace moeplan {
namespace {

std::string percent_text(double share) { return exact_text(std::round(share * 1000) / 10) + " %"; }

/// A step on a CPU: what overlaps, and who waits for whom.
void add_cpu_notes(const StepCase& step, StepGraph& graph) {
    if (!runs_on_cpu(step)) return;
    graph.assumptions.push_back(
        "on a CPU kernels run one after another and nothing overlaps with communication");
    if (is_own_trainer(step) && world_size(step.layout) > 1)
        graph.assumptions.push_back(
            step.profile->stretches
                ? "at every exchange ranks wait for the slowest of them, as the profile measured "
                  "it on ranks of equal work; in the times of the exchanges"
                : "ranks of equal work reach an exchange together: the profile has not measured "
                  "how unsteadily they compute");
}

/// What is simulated once for many.
void add_folded(const StepCase& step, const StepLoads& loads, StepGraph& graph) {
    const int distinct = loads.distinct_micro_batches(), all = step.schedule.num_micro_batches;
    if (step.distinct_micro_batches > 0 && distinct > 0 && distinct < all &&
        !loads.routing().same_everywhere())
        graph.folded.push_back("routings of " + std::to_string(distinct) +
                               " micro-batches stand for those of all " + std::to_string(all) +
                               ", in turn");
    if (graph.replicas > 1)
        graph.folded.push_back(std::to_string(graph.replicas) +
                               " data-parallel replicas of each stage were simulated as one of " +
                               std::to_string(graph.width) +
                               (graph.width == 1 ? " rank" : " ranks") +
                               "; their traffic was not folded");
}

void add_placement_note(const StepCase& step, StepGraph& graph) {
    if (!step.placement) return;
    const auto layers = static_cast<int>(step.placement->layers.size());
    graph.assumptions.push_back(
        "experts lie as " + step.placement->source + " says" +
        (layers < num_moe_layers(step.model)
             ? ", whose " + std::to_string(layers) + " MoE layers repeat in order"
             : "") +
        "; a source splits its rows for an expert evenly among the copies, whose gradients "
        "are added up among all ranks of the expert group");
}

/// What hides the exchanges among experts, and what exchanges take from kernels.
void add_overlap_notes(const StepCase& step, StepGraph& graph) {
    if (graph.takes_turns && step.layout.expert_parallel_size > 1)
        graph.assumptions.push_back(
            "the forward of one micro-batch and the backward of another take turns on a stage: "
            "each computes while the other's tokens travel");
    else if (effective_overlap(step).experts && step.layout.expert_parallel_size > 1)
        graph.assumptions.push_back(
            "expert overlap hides the all-to-all behind the shared experts, or a stated share of "
            "it behind another micro-batch; with --communication-sms micro-batches take turns "
            "where the schedule pairs them (1f1b, interleaved), and what their kernels do not "
            "cover is waited for");
    if (std::any_of(graph.ops.begin(), graph.ops.end(),
                    [](const Op& op) { return op.exchange && op.beside; }))
        graph.assumptions.push_back(
            "while they last, exchanges beside kernels take " +
            percent_text(graph.expert_sm_share) + " (experts) and " +
            percent_text(graph.collective_sm_share) +
            " (other collectives) of the SMs, and the memory bandwidth of the bytes they move");
}

}  // namespace

void add_notes(const StepCase& step, const PipelineShape& pipeline, const StepLoads& loads,
               StepGraph& graph) {
    add_cpu_notes(step, graph);
    add_folded(step, loads, graph);
    if (step.schedule.dispatcher == Dispatcher::deduplicating &&
        step.layout.expert_parallel_size > 1)
        graph.assumptions.push_back(
            loads.routing().knows_tokens() && !step.placement
                ? "copies that the dispatcher saves are counted from the recorded tokens"
                : "copies that the dispatcher saves are estimated from counts, as if a "
                  "token's choices were independent");
    if (step.model.num_mtp_layers > 0)
        graph.assumptions.push_back(
            "a multi-token-prediction module is priced as one more layer of the last kind with "
            "a projection and a loss");
    if (step.layout.context_parallel_size > 1)
        graph.assumptions.push_back(
            "context parallelism shares the causal attention evenly and gathers keys and "
            "values beside it");
    add_placement_note(step, graph);
    add_overlap_notes(step, graph);
    if (pipeline.is(Pipeline::dual_pipe))
        graph.assumptions.push_back(
            "the two copies of a layer add up their gradients before both update them");
}

}  // namespace moeplan
