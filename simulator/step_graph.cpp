#include "simulator/step_graph.hpp"

#include <algorithm>
#include <cassert>
#include <numeric>

#include "simulator/graph/data_parallel.hpp"
#include "simulator/graph/graph_notes.hpp"
#include "simulator/graph/lane_writer.hpp"
#include "simulator/graph/pipeline_shape.hpp"
#include "simulator/graph/requirements.hpp"
#include "simulator/graph/shared_weights.hpp"
#include "simulator/graph/stage_parameters.hpp"
#include "simulator/graph/stage_passes.hpp"
#include "simulator/graph/stage_programs.hpp"
#include "simulator/graph/step_loads.hpp"
#include "simulator/overlap.hpp"
#include "simulator/software_state.hpp"

namespace moeplan {

Seconds& part_of(TimeBreakdown& parts, Part part) {
    switch (part) {
        case Part::compute:
            return parts.compute;
        case Part::host:
            return parts.host;
        case Part::tensor_comm:
            return parts.tensor_comm;
        case Part::context_comm:
            return parts.context_comm;
        case Part::dispatch:
            return parts.dispatch;
        case Part::combine:
            return parts.combine;
        case Part::pipeline_comm:
            return parts.pipeline_comm;
        case Part::data_comm:
            return parts.data_comm;
        case Part::bubble:
            return parts.bubble;
        case Part::optimizer:
            return parts.optimizer;
    }
    return parts.compute;
}

namespace {

/// Of a GPU's SMs, that exchanges take: something is always left to compute with.
constexpr double kMostTaken = 0.9;

/// @param sms  that the software's exchanges hold; the schedule may state others
double share_of_sms(const StepCase& step, double sms) {
    if (step.cluster.gpu.num_sms <= 0) return 0;
    const int stated = step.schedule.overlap.communication_sms;
    return std::clamp((stated > 0 ? stated : sms) / step.cluster.gpu.num_sms, 0.0, kMostTaken);
}

/// A graph without ops: how many lanes of how many ranks, and how they overlap.
StepGraph graph_of_lanes(const StepCase& step, const SoftwareCosts& software,
                         const PipelineShape& pipeline) {
    const ParallelLayout& l = step.layout;
    const bool moe = num_moe_layers(step.model) > 0;
    const int stage_ranks = l.tensor_parallel_size * l.context_parallel_size * l.data_parallel_size;
    StepGraph graph;
    graph.num_lanes = l.pipeline_parallel_size;
    graph.width = std::lcm(l.tensor_parallel_size * l.context_parallel_size,
                           moe ? l.expert_parallel_size * l.expert_tensor_parallel_size : 1);
    assert(stage_ranks % graph.width == 0);
    graph.replicas = stage_ranks / graph.width;
    graph.expert_sm_share = share_of_sms(step, software.expert_sms);
    graph.collective_sm_share = share_of_sms(step, software.collective_sms);
    graph.takes_turns = pipeline.takes_turns();
    graph.exact_overlap = step.schedule.overlap.communication_sms > 0 ||
                          step.schedule.overlap.shared_experts || pipeline.is(Pipeline::dual_pipe);
    return graph;
}

/// Room for the ops: a layer's few exchanges and works in every slot.
void reserve_ops(StepGraph& graph, const StepCase& step,
                 const std::vector<std::vector<Slot>>& orders) {
    std::size_t slots = 0;
    for (const auto& order : orders) slots += order.size();
    graph.ops.reserve(slots * (step.model.layers.size() / orders.size() + 1) * 6);
}

/// Megatron's pipeline without chunks waits on the host for every message between stages, so no
/// pass is launched while the one before it runs: the first kernel of every slot is awaited.
void await_messages(const StepCase& step, const SoftwareCosts& software,
                    const PipelineShape& pipeline, StepGraph& graph) {
    if (pipeline.num_stages() < 2 || pipeline.num_chunks() > 1 || runs_on_cpu(step) ||
        !software.waits_for_messages)
        return;
    for (const auto& slots : graph.slots)
        for (std::size_t s = 0; s + 1 < slots.size(); ++s)
            for (std::uint32_t i = slots[s]; i < slots[s + 1]; ++i)
                if (!graph.ops[i].exchange) {
                    graph.ops[i].awaited = true;
                    break;
                }
}

/// Writes the lanes of one graph, slot by slot.
struct LaneBuilder {
    const StepCase& step;
    const PipelineShape& pipeline;
    StepGraph& graph;
    LaneWriter& writer;
    StagePasses& passes;
    DataParallel& data_parallel;
    StagePrograms& programs;

    void build(int lane, const std::vector<Slot>& order) {
        LaneState state(lane);
        auto& slots = graph.slots.emplace_back();
        slots.reserve(order.size() + 1);
        const auto begin_slot = [&] {
            slots.push_back(static_cast<std::uint32_t>(graph.ops.size()));
        };
        begin_slot();
        data_parallel.start_lane(state);
        std::vector<int> weights_left(pipeline.chunks_of(lane).size(), 0);
        for (const Slot& slot : order) weights_left[slot.chunk] += slot.pass == Pass::forward;
        for (std::size_t i = 0; i < order.size(); ++i) {
            if (i > 0) begin_slot();
            const Program program = programs.of(lane, order[i], weights_left);
            if (!order[i].with_next || runs_on_cpu(step)) {
                writer.run(state, program);
                continue;
            }
            ++i;
            writer.take_turns(state, program, programs.of(lane, order[i], weights_left));
            begin_slot();  // the second slot of the two has no ops of its own
        }
        begin_slot();  // the end of the last
        data_parallel.finish_lane(state, passes);
    }
};

}  // namespace

StepGraph build_step_graph(const StepCase& step) {
    require_buildable(step);
    const SoftwareCosts software = software_costs(step);
    const PipelineShape pipeline(step);
    StepGraph graph = graph_of_lanes(step, software, pipeline);
    const StepLoads loads(step, graph);
    const StageParameters parameters(step, pipeline, loads, graph.width * graph.replicas);
    const auto orders =
        pipeline_order(step.schedule.pipeline, pipeline.num_stages(), pipeline.num_chunks(),
                       step.schedule.num_micro_batches, pipeline.takes_turns());
    reserve_ops(graph, step, orders);

    StagePasses passes(step, graph.works, pipeline.splits_backward());
    LaneWriter writer(graph, loads);
    DataParallel data_parallel(step, software, parameters, writer);
    StagePrograms programs(step, pipeline, loads, passes, data_parallel, writer);
    LaneBuilder lanes{step, pipeline, graph, writer, passes, data_parallel, programs};
    for (int lane = 0; lane < pipeline.num_stages(); ++lane) lanes.build(lane, orders[lane]);

    writer.connect_messages();
    await_messages(step, software, pipeline, graph);
    add_shared_weights(step, pipeline, parameters, data_parallel, writer);
    add_notes(step, pipeline, loads, graph);
    return graph;
}

}  // namespace moeplan
