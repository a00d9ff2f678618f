#include "simulator/report/losses.hpp"

#include <algorithm>
#include <string>

namespace moeplan {
namespace {

constexpr int kLossesListed = 3;

/// Inside dispatch, combine and the other exchanges: what ranks with equal work wait for each
/// other.
Seconds waited_for_slowest(const StepGraph& graph, const JobPrices& prices, const Timeline& line,
                           int lane) {
    Seconds sum;
    for (std::size_t i = 0; i < prices.waits.size(); ++i)
        if (graph.ops[i].lane == lane) sum += Seconds{prices.waits[i] * line.times(i, lane)};
    return sum;
}

/// "a, b, or c"
std::string any_of_these(const std::vector<std::string>& ways) {
    std::string out;
    for (std::size_t i = 0; i < ways.size(); ++i)
        out += (i == 0                 ? ""
                : ways.size() == 2     ? " or "
                : i + 1 == ways.size() ? ", or "
                                       : ", ") +
               ways[i];
    return out;
}

// Remedies name no option that is on already.

std::string for_bubble(const StepSchedule& schedule, int stages) {
    std::vector<std::string> ways = {"more micro-batches"};
    if (schedule.virtual_pipeline_size == 1 &&
        (schedule.pipeline == Pipeline::gpipe || schedule.pipeline == Pipeline::one_f_one_b))
        ways.push_back("interleaved chunks (--vpp)");
    if (stages > 1) ways.push_back("fewer pipeline stages");
    return any_of_these(ways);
}

std::string for_expert_exchange(const StepCase& step, const StepGraph& graph) {
    const auto& layout = step.layout;
    std::vector<std::string> ways;
    if (layout.expert_parallel_size > gpus_per_domain(step.cluster)) {
        ways.push_back("expert groups inside an NVLink domain");
        if (step.schedule.dispatcher != Dispatcher::deduplicating)
            ways.push_back("a dispatcher that sends a token once per node (--dispatcher deepep)");
    } else if (layout.expert_parallel_size > 1) {
        ways.push_back("a smaller expert-parallel size");
    }
    if (!graph.takes_turns && !step.schedule.overlap.experts)
        ways.push_back("another micro-batch's compute meanwhile (--overlap-experts)");
    double uneven = 1;
    for (const double imbalance : graph.load_imbalance) uneven = std::max(uneven, imbalance);
    constexpr double kUneven = 1.5;  // the fullest rank receives half as much again as the mean
    if (uneven > kUneven)
        ways.push_back("a more even load (the fullest rank's links set the pace)");
    if (ways.size() < 3) ways.push_back("fewer choices a token");
    return any_of_these(ways);
}

std::string for_data_exchange(const Overlap& overlap) {
    std::vector<std::string> ways = {"more micro-batches a step"};
    if (!overlap.gradients) ways.push_back("overlap with the backward pass (--overlap-gradients)");
    if (!overlap.parameters) ways.push_back("overlap with the forward pass (--overlap-parameters)");
    ways.push_back("fewer replicas");
    return any_of_these(ways);
}

std::string for_host(const SoftwareState& software) {
    std::vector<std::string> ways = {"larger micro-batches"};
    if (software.graph_scope.empty()) ways.push_back("CUDA graphs (--graph-scope)");
    if (software.fusion.empty()) ways.push_back("fused kernels");
    return any_of_these(ways);
}

}  // namespace

std::vector<Loss> losses(const StepCase& step, const StepGraph& graph, const JobPrices& prices,
                         const Timeline& line, int lane, const TimeBreakdown& exposed) {
    std::vector<Loss> all;
    const auto& schedule = step.schedule;
    const auto& layout = step.layout;
    if (exposed.bubble.value > 0 && layout.pipeline_parallel_size > 1)
        all.push_back({"pipeline bubble: stage " + std::to_string(lane) + " waits for other stages",
                       for_bubble(schedule, layout.pipeline_parallel_size), exposed.bubble});
    if (exposed.host.value > 0)
        all.push_back({"the GPU waits for the host to launch kernels", for_host(schedule.software),
                       exposed.host});
    const Seconds exchange = exposed.dispatch + exposed.combine;
    if (exchange.value > 0)
        all.push_back({"all-to-all of tokens to experts and back", for_expert_exchange(step, graph),
                       exchange});
    if (exposed.tensor_comm.value > 0)
        all.push_back({"tensor-parallel collectives around every layer",
                       schedule.overlap.tensor
                           ? "a smaller tensor-parallel size"
                           : "a smaller tensor-parallel size, or overlapping them with the "
                             "products (--overlap-tensor)",
                       exposed.tensor_comm});
    if (exposed.context_comm.value > 0)
        all.push_back({"keys and values gathered for context parallelism",
                       "a smaller context-parallel size, or longer sequences a rank",
                       exposed.context_comm});
    if (exposed.data_comm.value > 0)
        all.push_back({"gradients and parameters exchanged among replicas",
                       for_data_exchange(schedule.overlap), exposed.data_comm});
    if (exposed.pipeline_comm.value > 0)
        all.push_back({"activations sent between stages",
                       "fewer stages or chunks, or stages inside a node", exposed.pipeline_comm});
    if (exposed.optimizer.value > 0)
        all.push_back({"the optimizer's update",
                       schedule.sharding == Sharding::none
                           ? "sharding its state (--zero 1)"
                           : "more replicas to share its state, or more micro-batches a step",
                       exposed.optimizer});
    // of compute: what the fullest rank works longer than the mean
    double skew = 0;
    for (std::size_t i = 0; i < graph.ops.size(); ++i) {
        const Op& op = graph.ops[i];
        if (!op.exchange && op.lane == lane && prices.jobs[op.demand].by_rank >= 0)
            skew += (prices.jobs[op.demand].device - prices.jobs[op.demand].mean_device) *
                    line.times(i, lane);
    }
    skew = std::min(skew, exposed.compute.value);
    if (skew > 0)
        all.push_back(
            {"unequal experts: every layer waits for the rank with most tokens",
             "placing popular experts apart or replicating them, a balance loss, or capacity",
             Seconds{skew}});
    double taken = 0;
    if (prices.slowdown.empty())
        for (std::size_t i = 0; i < graph.ops.size(); ++i)
            if (graph.ops[i].beside && !graph.ops[i].exchange && graph.ops[i].lane == lane)
                taken += (line.device[i] - prices.jobs[graph.ops[i].demand].device) *
                         line.times(i, lane);
    if (taken > 0)
        all.push_back(
            {"kernels slowed by the SMs and the memory bandwidth of exchanges beside them",
             schedule.overlap.communication_sms > 0
                 ? "fewer SMs than the " + std::to_string(schedule.overlap.communication_sms) +
                       " that exchanges hold"
                 : "a dispatcher or channels that hold fewer SMs (--communication-sms)",
             Seconds{taken}});
    if (!prices.slowdown.empty()) {
        double slow = 0;
        for (std::size_t i = 0; i < graph.ops.size(); ++i)
            if (!graph.ops[i].exchange && graph.ops[i].lane == lane)
                slow += (line.device[i] - prices.jobs[graph.ops[i].demand].device) *
                        line.times(i, lane);
        if (slow > 0)
            all.push_back(
                {"a slow rank holds up its stage", "taking the slow GPU out", Seconds{slow}});
    }
    if (const Seconds waited = waited_for_slowest(graph, prices, line, lane); waited.value > 0)
        all.push_back({"equal ranks wait for the one that was disturbed, at every exchange",
                       "fewer and larger exchanges (larger micro-batches), or a quieter machine",
                       waited});
    std::stable_sort(all.begin(), all.end(),
                     [](const Loss& a, const Loss& b) { return a.time > b.time; });
    if (all.size() > kLossesListed) all.resize(kLossesListed);
    return all;
}

}  // namespace moeplan
