#include <gtest/gtest.h>

#include "simulator/walker.hpp"
#include "tests/simulator/step/cases.hpp"
#include "tests/tolerance.hpp"

namespace moeplan {
namespace {

/// Every figure that a network states: what an exchange puts on each link, and how long it takes.
void expect_same_loads(const Exchange& loads, const Exchange& flows, const std::string& what) {
    ASSERT_EQ(loads.stages.size(), flows.stages.size()) << what;
    EXPECT_EQ(loads.efficiency, flows.efficiency) << what;
    for (std::size_t s = 0; s < loads.stages.size(); ++s) {
        const ExchangeStage &a = loads.stages[s], &b = flows.stages[s];
        EXPECT_NEAR(a.latency.value, b.latency.value, kArithmetic * b.latency.value) << what;
        EXPECT_NEAR(a.transfer.value, b.transfer.value, kArithmetic * b.transfer.value) << what;
        ASSERT_EQ(a.loads.size(), b.loads.size()) << what;
        for (std::size_t l = 0; l < a.loads.size(); ++l) {
            EXPECT_EQ(a.loads[l].link, b.loads[l].link) << what;
            EXPECT_NEAR(a.loads[l].bytes.value, b.loads[l].bytes.value,
                        kArithmetic * b.loads[l].bytes.value)
                << what;
        }
    }
}

TEST(StepNetwork, LoadsAreThoseOfTheFlows) {
    for (std::uint64_t i = 0; i < 40; ++i) {
        StepCase step = tests::drawn_case(i);
        step.routing = SyntheticRouting{"zipf", 1.0, 0};
        if (i % 3 == 1 && 16 / step.layout.pipeline_parallel_size >= 8) {
            step.layout.expert_parallel_size = 4;
            step.layout.expert_tensor_parallel_size = 2;
        }
        const StepGraph graph = build_step_graph(step);
        StepNetwork by_loads(step, graph), by_flows(step, graph);
        for (std::uint32_t d = 0; d < graph.exchanges.size(); ++d)
            expect_same_loads(by_loads.loads(d), by_flows.exchange(d),
                              "case " + std::to_string(i) + ", demand " + std::to_string(d));
        EXPECT_EQ(by_loads.folded(), by_flows.folded());
    }
}

TEST(StepNetwork, CombineRunsThroughTheRelaysOfDispatch) {
    // PXN off the rail: a dispatch from GPU 0 of node 0 to GPU 1 of node 1 passes GPU 1 of node 0,
    // and what comes back passes it again.
    StepCase step = tests::small_case(2);
    step.layout.expert_parallel_size = 8;
    step.layout.data_parallel_size = 16;
    step.layout.expert_tensor_parallel_size = 2;
    step.schedule.dispatcher = Dispatcher::all_to_all;
    step.routing = SyntheticRouting{"zipf", 1.0, 0};
    const StepGraph graph = build_step_graph(step);
    StepNetwork by_loads(step, graph), by_flows(step, graph);
    int combines = 0;
    for (std::uint32_t d = 0; d < graph.exchanges.size(); ++d) {
        if (graph.exchanges[d].kind != Collective::all_to_all) continue;
        combines += !graph.exchanges[d].to_experts;
        expect_same_loads(by_loads.loads(d), by_flows.exchange(d), std::to_string(d));
    }
    EXPECT_GT(combines, 0);
}

TEST(Walk, HeapOfEventsEqualsTheClosedFormEngine) {
    // Both fill shares of links by exchange. The engine asks its solver for every exchange, the
    // heap only where two meet: times differ by the rounding of a rate of one.
    int met = 0;
    for (std::uint64_t i = 0; i < 40; ++i) {
        const StepCase step = tests::drawn_case(i);
        const StepGraph graph = build_step_graph(step);
        const JobPrices prices = price_jobs(graph, step);
        StepNetwork network(step, graph);
        const Timeline heap = walk_by_loads(graph, prices, network);
        const auto engine = make_engine(NetworkModel::closed_form, network.links());
        const Timeline oracle = walk_by_engine(graph, prices, network, *engine);
        ASSERT_EQ(heap.end.size(), oracle.end.size());
        EXPECT_NEAR(heap.step_time, oracle.step_time, 1e-11 * oracle.step_time) << "case " << i;
        for (std::size_t op = 0; op < heap.end.size(); ++op) {
            EXPECT_NEAR(heap.begin[op], oracle.begin[op], 1e-11 * oracle.step_time)
                << "case " << i << ", op " << op;
            EXPECT_NEAR(heap.end[op], oracle.end[op], 1e-11 * oracle.step_time)
                << "case " << i << ", op " << op;
            if (graph.ops[op].exchange)
                met += heap.end[op] - heap.begin[op] >
                       network.alone(graph.ops[op].demand) * (1 + 1e-6);
        }
        for (std::size_t l = 0; l < heap.carried.size(); ++l)
            EXPECT_NEAR(heap.carried[l].value, oracle.carried[l].value,
                        1e-12 * oracle.carried[l].value);
    }
    EXPECT_GT(met, 100) << "no exchanges met: the test would show nothing";
}

}  // namespace
}  // namespace moeplan
