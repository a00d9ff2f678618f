#include <gtest/gtest.h>

#include "simulator/step_walk.hpp"
#include "tests/simulator/step/cases.hpp"
#include "tests/tolerance.hpp"

namespace moeplan {
namespace {

struct Setting {
    const char* model;
    ParallelLayout layout;
    const char* routing;
};

/// Closed form and flows of one case where no two exchanges meet on a link: experts, tensor
/// parallelism and replicas inside a node, stages between nodes (or one stage), gradients reduced
/// after the last backward.
void expect_agreement(const Setting& setting, double tolerance) {
    StepCase step;
    step.model = load_model(setting.model);
    step.cluster = load_cluster("dgx-h100:16");
    step.layout = setting.layout;
    step.schedule.sequence_parallel = setting.layout.tensor_parallel_size > 1;
    step.schedule.num_micro_batches = 4;
    step.schedule.overlap.gradients = step.schedule.overlap.parameters = false;
    step.routing = SyntheticRouting{setting.routing, 0, 0};
    step.profile = std::make_shared<const Profile>(load_profile("h100-sxm"));
    const StepGraph graph = build_step_graph(step);
    const JobPrices prices = price_jobs(graph, step);
    StepNetwork network(step, graph);
    const Timeline closed = walk(graph, step, prices, network, NetworkModel::closed_form);
    const Timeline flows = simulate_flows(graph, step, prices, network);
    EXPECT_EQ(flows.model, NetworkModel::simgrid);
    // SimGrid resolves 1 ns: at most that for each exchange on the path
    std::size_t exchanges = 0;
    for (const Op& op : graph.ops) exchanges += op.exchange;
    EXPECT_NEAR(flows.step_time, closed.step_time,
                tolerance * closed.step_time + 1e-9 * static_cast<double>(exchanges))
        << setting.model;
}

TEST(Agreement, ClosedFormAndFlowsWhereNothingContends) {
    expect_agreement({"mixtral-8x7b", {1, 1, 1, 128, 8, 1}, "balanced"}, kFlowEngines);
    expect_agreement({"mixtral-8x7b", {1, 1, 16, 8, 8, 1}, "balanced"}, kFlowEngines);
    expect_agreement({"qwen3-30b-a3b", {1, 1, 1, 128, 8, 1}, "balanced"}, kFlowEngines);
    expect_agreement({"qwen3-30b-a3b", {4, 1, 1, 32, 4, 1}, "balanced"}, kFlowEngines);
    expect_agreement({"olmoe-1b-7b", {2, 1, 16, 4, 4, 1}, "balanced"}, kFlowEngines);
}

TEST(Agreement, UnequalLoadsDifferByWhatFairSharesCost) {
    // Flows share a port by number, not by what they still have to send: a port can fall idle early
    // (a few per cent of an unequal exchange among 8, 3 % of this step's time).
    expect_agreement({"olmoe-1b-7b", {1, 1, 16, 8, 8, 1}, "multinomial"}, kUnequalExchange);
}

}  // namespace
}  // namespace moeplan
