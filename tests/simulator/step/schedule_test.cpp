/// Every schedule as a graph: the times of its order, no dead lock in any layout, faults felt.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "core/errors.hpp"
#include "core/seed.hpp"
#include "simulator/walker.hpp"
#include "tests/simulator/step/cases.hpp"
#include "tests/simulator/step/run_order.hpp"
#include "tests/tolerance.hpp"

namespace moeplan {
namespace {

constexpr Pipeline kPipelines[] = {Pipeline::gpipe,       Pipeline::one_f_one_b,
                                   Pipeline::interleaved, Pipeline::zero_bubble,
                                   Pipeline::zero_bubble_v, Pipeline::dual_pipe};
int virtual_size(Pipeline pipeline) {
    return pipeline == Pipeline::interleaved || pipeline == Pipeline::zero_bubble_v ? 2 : 1;
}

StepCase pipeline_case(Pipeline pipeline, int p, int m) {
    StepCase step = tests::small_case(1);
    step.model = tests::small_model(16, 0);
    step.model.vocab_size = 1;
    step.layout = {1, 1, p, 8 / p, 1, 1};
    step.schedule.pipeline = pipeline;
    step.schedule.virtual_pipeline_size = virtual_size(pipeline);
    step.schedule.num_micro_batches = m;
    step.schedule.sharding = Sharding::none;
    step.schedule.overlap.gradients = false;
    return step;
}

TEST(Schedules, GraphsTakeTheTimesOfTheirOrders) {
    // Equal stages, a tiny head, fast links: the walk of the graph is the run of the order with the
    // times of its own passes, whose formulas order_test.cpp holds against the papers.
    for (const Pipeline pipeline : kPipelines)
        for (const int m : {8, 16}) {
            StepCase step = pipeline_case(pipeline, 4, m);
            step.layout.data_parallel_size = 1;
            step.cluster.scale_up.bandwidth = BytesPerSecond{1e16};
            step.cluster.scale_up.latency = step.cluster.collective_launch = Seconds{1e-13};
            const StepGraph graph = build_step_graph(step);
            const JobPrices prices = price_jobs(graph, step);
            const int chunks = num_chunks(step.layout, step.schedule);
            const auto order = pipeline_order(pipeline, 4, chunks, m)[1];
            // a stage in the middle: neither embedding nor head
            tests::PassTimes times{0, 0, 0, 0, false};  // no experts: nothing to take turns for
            double whole = 0;
            const auto seconds = [&](std::size_t slot) {
                double sum = 0;
                for (std::uint32_t i = graph.slots[1][slot]; i < graph.slots[1][slot + 1]; ++i)
                    if (!graph.ops[i].exchange) sum += prices.jobs[graph.ops[i].demand].device;
                return sum;
            };
            for (std::size_t i = 0; i < order.size(); ++i) {
                if (order[i].with_next) {
                    times.both = seconds(i);
                    ++i;
                    continue;
                }
                (order[i].pass == Pass::forward           ? times.forward
                 : order[i].pass == Pass::backward        ? whole
                 : order[i].pass == Pass::backward_weight ? times.weight
                                                          : times.input) = seconds(i);
            }
            if (times.input == 0) times.input = whole;  // never split here
            if (whole > 0 && times.weight > 0) {
                EXPECT_NEAR(whole, times.input + times.weight, kArithmetic * whole);
            }
            if (times.both > 0) {
                EXPECT_NEAR(times.both, times.forward + whole, kArithmetic * times.both);
            }
            const tests::Ran ran = tests::run(pipeline, 4, chunks, m, times);
            const StepReport report = estimate_step(step);
            // the optimizer comes after; head and embedding are below a hundredth
            EXPECT_NEAR((report.step_time - report.exposed.optimizer).value, ran.end,
                        0.01 * ran.end)
                << name_of(pipeline) << ", " << m << " micro-batches";
        }
}

TEST(Schedules, BetterOnesHaveSmallerBubbles) {
    // The papers' order at equal stages: GPipe = 1F1B > ZB-H1 > DualPipe, ZB-V.
    const auto bubble = [](Pipeline pipeline) {
        return estimate_step(pipeline_case(pipeline, 4, 16)).exposed.bubble.value;
    };
    EXPECT_NEAR(bubble(Pipeline::gpipe), bubble(Pipeline::one_f_one_b),
                0.02 * bubble(Pipeline::gpipe));
    EXPECT_LT(bubble(Pipeline::zero_bubble), bubble(Pipeline::one_f_one_b));
    EXPECT_LT(bubble(Pipeline::dual_pipe), bubble(Pipeline::zero_bubble));
    EXPECT_LT(bubble(Pipeline::zero_bubble_v), bubble(Pipeline::zero_bubble));
}

TEST(Schedules, DualPipeHoldsItsLayersTwiceAndAddsUpTheirGradients) {
    const StepCase plain = pipeline_case(Pipeline::one_f_one_b, 4, 8),
                   dual = pipeline_case(Pipeline::dual_pipe, 4, 8);
    const auto once = memory_by_stage(plain.model, plain.layout, plain.schedule),
               twice = memory_by_stage(dual.model, dual.layout, dual.schedule);
    // stage 1 has the layers of stages 1 and 2: 2×; p + 1 = 5 of half each in place of 3 whole
    EXPECT_NEAR(twice[1].weights / once[1].weights, 2, 1e-9);
    EXPECT_NEAR(twice[1].activations / once[1].activations, 5.0 / 3, 1e-9);
    const StepGraph graph = build_step_graph(dual);
    int mirrors = 0;
    for (const auto& demand : graph.exchanges)
        if (demand.group == Group::mirror) {
            ++mirrors;
            for (const auto& pair : exchange_groups(graph, dual.layout, demand)) {
                ASSERT_EQ(pair.size(), 2u);
                // 8 GPUs, two a stage: stage s and 3 − s
                EXPECT_EQ(pair[0] / 2 + pair[1] / 2, 3);
                EXPECT_EQ(pair[0] % 2, pair[1] % 2);
            }
        }
    EXPECT_EQ(mirrors, 2);
}

/// Any schedule, depth, number of micro-batches, uneven stages down to none, in turns or not.
StepCase any_pipeline(std::uint64_t number) {
    DrawStream stream(derive(Seed{11}, "pipeline", number));
    StepCase step = tests::small_case(2);
    const auto below = [&](std::uint64_t n) { return static_cast<int>(stream.below(n)); };
    step.model = tests::small_model(4 + below(13), 1 + below(3));
    const int p = 1 << below(5), ep = 1 << below(5);
    step.layout = {1, 1, p, 16 / p, std::min(16 / p, std::min(8, ep)), 1};
    StepSchedule& schedule = step.schedule;
    schedule.sequence_length = 64;
    schedule.pipeline = kPipelines[below(6)];
    schedule.virtual_pipeline_size =
        p == 1 ? 1 : schedule.pipeline == Pipeline::interleaved ? 1 + below(3)
                                                                : virtual_size(schedule.pipeline);
    schedule.num_micro_batches = 1 + below(3 * p);
    if (schedule.pipeline == Pipeline::interleaved) schedule.num_micro_batches *= p;
    if (schedule.pipeline == Pipeline::dual_pipe && p > 1)
        schedule.num_micro_batches = 2 * p + 2 * below(p);
    schedule.overlap.experts = below(2);
    schedule.overlap.communication_sms = below(2) ? 24 : 0;
    schedule.overlap.shared_experts = below(2);
    schedule.overlap.gradients = below(2);
    schedule.overlap.parameters = below(2);
    schedule.sharding = static_cast<Sharding>(below(4));
    schedule.recompute.full = below(2);
    step.model.num_mtp_layers = below(2);
    step.model.tied_embeddings = below(2);
    if (below(2)) {
        schedule.stage_layers.assign(
            static_cast<std::size_t>(p * schedule.virtual_pipeline_size), 0);
        for (std::size_t l = 0; l < step.model.layers.size(); ++l)
            ++schedule.stage_layers[stream.below(schedule.stage_layers.size())];
    }
    if (below(2)) step.routing = SyntheticRouting{"zipf", 1.0, 0};
    step.seed = number;
    return step;
}

TEST(Schedules, NoneOfThemDeadlocks) {
    int in_turns = 0, uneven = 0;
    std::set<Pipeline> seen;
    for (std::uint64_t i = 0; i < 300; ++i) {
        const StepCase step = any_pipeline(i);
        const StepGraph graph = build_step_graph(step);
        const JobPrices prices = price_jobs(graph, step);
        StepNetwork network(step, graph);
        // throws if an op was created and did not complete
        const Timeline line = walk(graph, step, prices, network, NetworkModel::closed_form);
        EXPECT_GT(line.step_time, 0);
        for (std::size_t op = 0; op < graph.ops.size(); ++op)
            ASSERT_GE(line.end[op], line.begin[op]) << "case " << i;
        for (const Edge& edge : graph.edges)
            ASSERT_LE(line.end[edge.before], line.begin[edge.after]) << "case " << i;
        if (i % 10 == 0) {
            const Timeline flows = walk(graph, step, prices, network, NetworkModel::fluid);
            EXPECT_GE(flows.step_time, line.step_time * (1 - kUnequalExchange)) << "case " << i;
        }
        in_turns += graph.takes_turns;
        uneven += !step.schedule.stage_layers.empty();
        if (step.layout.pipeline_parallel_size > 1) seen.insert(step.schedule.pipeline);
    }
    EXPECT_EQ(seen.size(), 6u);
    EXPECT_GT(in_turns, 20);
    EXPECT_GT(uneven, 60);
}

TEST(Schedules, AProgramThatWaitsForItselfSaysHowFarItCame) {
    const StepCase step = tests::small_case(1);
    StepGraph graph = build_step_graph(step);
    const JobPrices prices = price_jobs(graph, step);
    const auto last = static_cast<std::uint32_t>(graph.ops.size() - 1);
    graph.edges.push_back({last, last / 2});
    StepNetwork network(step, graph);
    for (const NetworkModel model : {NetworkModel::closed_form, NetworkModel::fluid}) try {
            walk(graph, step, prices, network, model);
            ADD_FAILURE() << "it ended";
        } catch (const std::logic_error& error) {
            EXPECT_NE(std::string(error.what()).find("cycle"), std::string::npos) << error.what();
            EXPECT_NE(std::string(error.what()).find("of " + std::to_string(graph.ops.size())),
                      std::string::npos)
                << error.what();
        }
}

TEST(Schedules, StragglersAndFaultyLinksAreFeltInAllOfThem) {
    for (const Pipeline pipeline : kPipelines)
        for (const bool turns : {false, true}) {
            StepCase step = tests::small_case(2);
            step.model = tests::small_model(8, 1);
            step.layout = {1, 1, 4, 4, 4, 1};
            step.schedule.pipeline = pipeline;
            step.schedule.virtual_pipeline_size = virtual_size(pipeline);
            step.schedule.num_micro_batches = 8;
            step.schedule.overlap.experts = turns;
            step.schedule.overlap.communication_sms = turns ? 20 : 0;
            const std::string what =
                std::string(name_of(pipeline)) + (turns ? ", in turns" : "");
            const StepReport sound = estimate_step(step);
            StepCase slow = step;
            slow.disturbances.stragglers = {{5, 2}};  // of stage 1
            const StepReport straggled = estimate_step(slow);
            // one stage of four takes twice as long for its kernels, not for its exchanges
            EXPECT_GT(straggled.step_time.value, 1.25 * sound.step_time.value) << what;
            EXPECT_NEAR(straggled.busy_by_rank[5] / sound.busy_by_rank[5], 2, 0.1) << what;
            EXPECT_NEAR(straggled.busy_by_rank[4] / sound.busy_by_rank[4], 1, 0.1) << what;
            StepCase faulty = step;
            std::string link;  // that experts use
            for (const auto& use : sound.link_use)
                if (link.empty() && use.link.find("nvlink") != std::string::npos) link = use.link;
            ASSERT_FALSE(link.empty());
            faulty.disturbances.link_faults = {{link, 0.02}};
            EXPECT_GT(estimate_step(faulty).step_time, sound.step_time) << what;
            EXPECT_GT(simulate_step(faulty).step_time, sound.step_time) << what;
        }
}

TEST(Schedules, FewMicroBatchesStandForManyInTheNewOnesToo) {
    for (const Pipeline pipeline : {Pipeline::zero_bubble_v, Pipeline::dual_pipe})
        for (const int m : {60, 96}) {
            StepCase step = pipeline_case(pipeline, 4, m);
            const StepReport few = estimate_step(step);
            StepCase whole = step;
            whole.keep_timeline = true;  // walks all
            const StepReport all = estimate_step(whole);
            EXPECT_NEAR(few.step_time.value, all.step_time.value, 1e-9 * all.step_time.value);
            EXPECT_NEAR(few.exposed.bubble.value, all.exposed.bubble.value,
                        1e-9 * all.step_time.value);
        }
}

}  // namespace
}  // namespace moeplan
