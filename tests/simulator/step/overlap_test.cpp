/// Exchanges beside kernels: what they take, and for how long. Every number by hand, under the closed
/// form and under flows.

#include <gtest/gtest.h>

#include <cmath>

#include "simulator/walker.hpp"
#include "tests/simulator/step/cases.hpp"
#include "tests/tolerance.hpp"

namespace moeplan {
namespace {

/// One lane of 8 GPUs; exchanges are all-reduces of all of them.
struct Bench {
    StepCase step = tests::small_case(1);
    StepGraph graph;
    JobPrices prices;

    Bench() {
        graph.width = 8;
        graph.collective_sm_share = 20.0 / 132;
        step.layout = {1, 1, 1, 8, 1, 1};
    }
    std::uint32_t job(double seconds, double streamed, std::vector<std::uint32_t> after) {
        JobPrice price;
        price.device = price.mean_device = seconds;
        price.streamed = streamed;
        Op op;
        op.demand = static_cast<std::uint32_t>(prices.jobs.size());
        op.beside = true;
        prices.jobs.push_back(price);
        return add(op, after);
    }
    std::uint32_t exchange(double gigabytes, std::vector<std::uint32_t> after,
                           Stream stream = Stream::data) {
        ExchangeDemand demand;
        demand.group = Group::data_context;
        demand.payload = Bytes{gigabytes * 1e9};
        Op op;
        op.exchange = op.beside = true;
        op.stream = stream;
        op.demand = static_cast<std::uint32_t>(graph.exchanges.size());
        graph.exchanges.push_back(demand);
        return add(op, after);
    }
    std::uint32_t add(Op op, const std::vector<std::uint32_t>& after) {
        const auto id = static_cast<std::uint32_t>(graph.ops.size());
        graph.ops.push_back(op);
        for (const auto before : after) graph.edges.push_back({before, id});
        return id;
    }
    std::vector<Timeline> walks(StepNetwork& network) const {
        std::vector<Timeline> out = {walk_by_loads(graph, prices, network)};
        for (const NetworkModel model : {NetworkModel::closed_form, NetworkModel::fluid}) {
            const auto engine = make_engine(model, network.links());
            out.push_back(walk_by_engine(graph, prices, network, *engine));
        }
        return out;
    }
};

TEST(Beside, AJobLosesTheSmsOfAnExchangeForAsLongAsItLasts) {
    // The exchange lasts L, the products 2L alone. While it lasts they go at 1 − s, s = 20/132:
    // they have done L(1 − s) at L and need 2L in all: T = 2L + L·s. (A second of messages under two
    // of products: 2.1515 s.)
    Bench bench;
    const auto x = bench.exchange(1, {});
    StepNetwork first(bench.step, bench.graph);
    const double lasts = first.alone(0), s = 20.0 / 132;
    const auto long_job = bench.job(2 * lasts, 0, {});
    // Products of L/2 are done before it: L/2 / (1 − s).
    StepNetwork network(bench.step, bench.graph);
    for (const Timeline& line : bench.walks(network)) {
        EXPECT_NEAR(line.end[x], lasts, kFlowEngines * lasts);
        EXPECT_NEAR(line.end[long_job], 2 * lasts + lasts * s, kFlowEngines * lasts);
        EXPECT_NEAR(line.device[long_job], 2 * lasts + lasts * s, kFlowEngines * lasts);
    }
    Bench small;
    small.exchange(1, {});
    const auto short_job = small.job(lasts / 2, 0, {});
    StepNetwork other(small.step, small.graph);
    for (const Timeline& line : small.walks(other))
        EXPECT_NEAR(line.end[short_job], lasts / 2 / (1 - s), kFlowEngines * lasts);
}

TEST(Beside, AStreamingKernelLosesMemoryBandwidthInstead) {
    // A ring over 8 sends 2·7/8 of S and receives as much: 3.5·S read or written in L, of a memory
    // that moves W in a second: h = 3.5·S/(W·L). A job of D that only streams: D + L·h/(1 − h)·(1 − h)
    // = D + L·h; one that does half each goes at 1/(½/(1 − s) + ½/(1 − h)).
    Bench bench;
    bench.exchange(1, {});
    StepNetwork first(bench.step, bench.graph);
    const double lasts = first.alone(0), s = 20.0 / 132,
                 h = 3.5e9 / (bench.step.cluster.gpu.memory_bandwidth.value * lasts);
    ASSERT_GT(h, 0.05);
    ASSERT_LT(h, 0.9);
    EXPECT_NEAR(first.memory_share(0), h, kArithmetic);
    const auto streams = bench.job(3 * lasts, 1, {});
    StepNetwork network(bench.step, bench.graph);
    for (const Timeline& line : bench.walks(network))
        EXPECT_NEAR(line.end[streams], 3 * lasts + lasts * h, kFlowEngines * lasts);
    Bench half;
    half.exchange(1, {});
    const auto mixed = half.job(3 * lasts, 0.5, {});
    StepNetwork other(half.step, half.graph);
    const double rate = 1 / (0.5 / (1 - s) + 0.5 / (1 - h));
    for (const Timeline& line : half.walks(other))
        EXPECT_NEAR(line.end[mixed], lasts + (3 * lasts - lasts * rate), kFlowEngines * lasts);
}

TEST(Beside, SharesAddUpAndAreGivenBackOneByOne) {
    // Two exchanges that meet on every link: each goes at half rate while both last. The second has
    // half of the first's bytes. Alone L and about L/2; let them be a and b. Both end b at 2b, then a
    // has a − b left: a ends at a + b. Products see 2s until 2b, s until a + b.
    Bench bench;
    const auto x = bench.exchange(1, {}), y = bench.exchange(0.5, {}, Stream::parameters);
    StepNetwork first(bench.step, bench.graph);
    const double s = 20.0 / 132;
    const double latency = first.exchange(0).stages.front().latency.value;
    const double a = first.exchange(0).stages.front().transfer.value,
                 b = first.exchange(1).stages.front().transfer.value;
    ASSERT_EQ(first.exchange(0).stages.size(), 1u);
    ASSERT_NEAR(first.exchange(1).stages.front().latency.value, latency, kArithmetic);
    const auto long_job = bench.job(4 * a, 0, {});
    StepNetwork network(bench.step, bench.graph);
    const double both = latency + 2 * b, one = latency + a + b;
    for (const Timeline& line : bench.walks(network)) {
        EXPECT_NEAR(line.end[y], both, kFlowEngines * one);
        EXPECT_NEAR(line.end[x], one, kFlowEngines * one);
        EXPECT_NEAR(line.end[long_job], 4 * a + both * 2 * s + (one - both) * s,
                    kFlowEngines * one);
    }
}

TEST(Beside, AJobThatBeginsLaterLosesOnlyWhatIsLeft) {
    // A job of L/4 before one of 3L; the exchange begins with the second at L/4/(1 − 0) …
    Bench bench;
    const auto lone = bench.job(1e-3, 0, {});
    const auto x = bench.exchange(1, {lone});
    const auto next = bench.job(1, 0, {lone});
    StepNetwork network(bench.step, bench.graph);
    const double lasts = network.alone(0), s = 20.0 / 132;
    for (const Timeline& line : bench.walks(network)) {
        EXPECT_NEAR(line.end[lone], 1e-3, kFlowEngines);
        EXPECT_NEAR(line.end[x], 1e-3 + lasts, kFlowEngines);
        EXPECT_NEAR(line.end[next], 1e-3 + 1 + lasts * s, kFlowEngines);
    }
}

/// One MoE layer on 8 expert ranks, one stage: every exchange takes the same time, every run of
/// kernels between two exchanges takes longer.
StepCase in_turns(int micro_batches) {
    StepCase step = tests::small_case(1);
    step.model = tests::small_model(1, 1);
    step.model.hidden_size = 2048;
    step.layout = {1, 1, 1, 8, 8, 1};
    step.schedule.num_micro_batches = micro_batches;
    step.schedule.sharding = Sharding::none;
    step.schedule.overlap.gradients = step.schedule.overlap.parameters = false;
    step.cluster.scale_up.bandwidth = BytesPerSecond{1e13};
    step.cluster.gpu.num_sms = 0;
    step.schedule.overlap.communication_sms = 33;
    return step;
}

TEST(Turns, HideEveryExchangeBetweenTheFirstForwardAndTheLastBackward) {
    // F₀ (F₁|B₀) … (F_{m−1}|B_{m−2}) B_{m−1}. Four exchanges of e a micro-batch. One after another:
    // all 4·m·e are waited for. In turns: only F₀'s two and the last B's two, so 4·(m − 1)·e less.
    for (const int m : {2, 5}) {
        const StepCase plain = in_turns(m);
        StepCase turns = plain;
        turns.schedule.overlap.experts = true;
        const StepGraph graph = build_step_graph(plain);
        StepNetwork network(plain, graph);
        double e = 0;
        for (std::uint32_t d = 0; d < graph.exchanges.size(); ++d)
            if (graph.exchanges[d].kind == Collective::all_to_all) e = network.alone(d);
        ASSERT_GT(e, 0);
        const StepReport one_by_one = estimate_step(plain), hidden = estimate_step(turns);
        EXPECT_NEAR((one_by_one.step_time - hidden.step_time).value, 4 * (m - 1) * e,
                    1e-9 * one_by_one.step_time.value);
        EXPECT_NEAR((one_by_one.exposed.dispatch + one_by_one.exposed.combine).value, 4 * m * e,
                    1e-9 * one_by_one.step_time.value);
        EXPECT_NEAR((hidden.exposed.dispatch + hidden.exposed.combine).value, 4 * e,
                    1e-9 * one_by_one.step_time.value);
        EXPECT_NEAR((hidden.busy.dispatch + hidden.busy.combine).value, 4 * m * e,
                    1e-9 * one_by_one.step_time.value);
        EXPECT_NEAR(simulate_step(turns).step_time.value, hidden.step_time.value,
                    kFlowEngines * hidden.step_time.value + 1e-9 * 4 * m);

        // With 33 of 132 SMs, and as much of the memory bandwidth, what is hidden still costs s·e.
        turns.cluster.gpu.num_sms = 132;
        const StepGraph priced = build_step_graph(turns);
        StepNetwork taken(turns, priced);
        for (std::uint32_t d = 0; d < priced.exchanges.size(); ++d)
            if (priced.exchanges[d].kind == Collective::all_to_all) {
                turns.cluster.gpu.memory_bandwidth *= taken.memory_share(d) / 0.25;
                break;
            }
        EXPECT_NEAR((one_by_one.step_time - estimate_step(turns).step_time).value,
                    4 * (m - 1) * e * (1 - 0.25), 1e-9 * one_by_one.step_time.value);
    }
}

TEST(Turns, AreNotTakenWhereNothingPairs) {
    // GPipe: all forwards, then all backwards. A stated share is hidden, as without turns.
    StepCase step = in_turns(4);
    step.schedule.pipeline = Pipeline::gpipe;
    step.layout = {1, 1, 2, 4, 4, 1};
    step.model = tests::small_model(2, 1);
    step.schedule.overlap.experts = true;
    EXPECT_FALSE(build_step_graph(step).takes_turns);
    bool said = false;
    for (const auto& line : estimate_step(step).assumptions)
        said = said || line.find("where the schedule pairs them") != std::string::npos;
    EXPECT_TRUE(said);
}

TEST(SharedExperts, HideADispatchAndLoseItsSms) {
    // The dispatch of e runs beside shared experts that take longer: forward and backward save e each,
    // and lose s·e of it again.
    StepCase step = in_turns(1);
    auto& moe = std::get<MoeFeedForward>(step.model.layers[0].feed_forward);
    moe.num_shared_experts = 1;
    moe.shared_expert_hidden_size = 4096;
    const StepGraph graph = build_step_graph(step);
    StepNetwork network(step, graph);
    double e = 0;
    for (std::uint32_t d = 0; d < graph.exchanges.size(); ++d)
        if (graph.exchanges[d].kind == Collective::all_to_all) e = network.alone(d);
    StepCase beside = step;
    beside.schedule.overlap.shared_experts = true;
    const double plain = estimate_step(step).step_time.value;
    EXPECT_NEAR(plain - estimate_step(beside).step_time.value, 2 * e, 1e-9 * plain);
    beside.cluster.gpu.num_sms = 132;
    const StepGraph priced = build_step_graph(beside);
    StepNetwork taken(beside, priced);
    for (std::uint32_t d = 0; d < priced.exchanges.size(); ++d)
        if (priced.exchanges[d].kind == Collective::all_to_all) {
            beside.cluster.gpu.memory_bandwidth *= taken.memory_share(d) / 0.25;
            break;
        }
    EXPECT_NEAR(plain - estimate_step(beside).step_time.value, 2 * e * 0.75, 1e-9 * plain);
}

}  // namespace
}  // namespace moeplan
