/// Few micro-batches walked for many: the same report as the whole walk.

#include <gtest/gtest.h>

#include <algorithm>

#include "simulator/step_fields.hpp"
#include "simulator/step_walk.hpp"
#include "tests/simulator/step/cases.hpp"
#include "tests/tolerance.hpp"

namespace moeplan {
namespace {

StepReport whole_walk(const StepCase& step) {
    const StepGraph graph = build_step_graph(step);
    const JobPrices prices = price_jobs(graph, step);
    StepNetwork network(step, graph);
    return report(step, graph, prices,
                  walk(graph, step, prices, network, NetworkModel::closed_form), network,
                  Fidelity::closed_form);
}
bool was_stretched(const StepReport& report) {
    for (const auto& line : report.folded)
        if (line.find("walked until the pipeline repeats itself") != std::string::npos) return true;
    return false;
}

/// Every time of the two reports within `share` of the step.
void expect_same(const StepReport& few, const StepReport& all, const std::string& what) {
    constexpr double share = 1e-9;
    const double near = share * all.step_time.value;
    EXPECT_NEAR(few.step_time.value, all.step_time.value, near) << what;
    std::vector<double> a, b;
    for (auto [report, out] : {std::pair{&few, &a}, std::pair{&all, &b}}) {
        for (const TimeBreakdown* parts : {&report->exposed, &report->busy})
            for_each_part(*parts,
                          [&, out = out](const char*, Seconds t) { out->push_back(t.value); });
        for (const Seconds busy : report->busy_by_rank) out->push_back(busy.value);
    }
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i)
        EXPECT_NEAR(a[i], b[i], near) << what << ", time " << i;
    EXPECT_NEAR(few.tokens_per_second, all.tokens_per_second, share * all.tokens_per_second);
    EXPECT_NEAR(few.mfu, all.mfu, share * all.mfu);
    EXPECT_NEAR(few.basis.roofline, all.basis.roofline, share);
    EXPECT_EQ(few.peak_memory, all.peak_memory);
    EXPECT_EQ(few.made.case_digest, all.made.case_digest);
    ASSERT_EQ(few.link_use.size(), all.link_use.size());
    for (std::size_t l = 0; l < few.link_use.size(); ++l)
        EXPECT_NEAR(few.link_use[l].busy, all.link_use[l].busy, share) << what;
    ASSERT_EQ(few.losses.size(), all.losses.size()) << what;
    for (std::size_t l = 0; l < few.losses.size(); ++l)
        EXPECT_NEAR(few.losses[l].time.value, all.losses[l].time.value, near) << what;
    ASSERT_EQ(few.memory_by_rank.size(), all.memory_by_rank.size());
    for (std::size_t r = 0; r < few.memory_by_rank.size(); ++r) {
        const auto &x = few.memory_by_rank[r].points, &y = all.memory_by_rank[r].points;
        const auto highest = [](const auto& points) {
            double most = 0;
            for (const auto& point : points) most = std::max(most, point.bytes.value);
            return most;
        };
        EXPECT_NEAR(highest(x), highest(y), share * highest(y)) << what;
        EXPECT_NEAR(x.back().time.value, y.back().time.value, near) << what;
    }
}

TEST(Repeats, FewMicroBatchesGiveTheReportOfAll) {
    // Any layout, schedule, sharding, overlap, with experts or without: whatever repeats itself.
    int stretched = 0;
    for (std::uint64_t i = 0; i < 60; ++i) {
        StepCase step = tests::drawn_case(i);
        step.routing = SyntheticRouting{};
        step.schedule.num_micro_batches = 96;
        const StepReport few = estimate_step(step);
        stretched += was_stretched(few);
        expect_same(few, whole_walk(step), "case " + std::to_string(i));
    }
    EXPECT_GE(stretched, 45) << "of 60; gpipe and few others are walked whole";
}

TEST(Repeats, UnequalStagesAndSlowRanksAndHosts) {
    StepCase step = tests::small_case(2);
    step.model = tests::small_model(9, 2);
    step.layout = {1, 1, 4, 4, 4, 1};
    step.schedule.stage_layers = {1, 2, 2, 4};
    step.schedule.num_micro_batches = 200;
    expect_same(estimate_step(step), whole_walk(step), "unequal stages");
    EXPECT_TRUE(was_stretched(estimate_step(step)));
    step.disturbances.stragglers = {{6, 1.7}};
    expect_same(estimate_step(step), whole_walk(step), "a slow rank");

    Profile profile = *step.profile;
    for (const double launch : {1e-6, 3e-6, 1e-5, 1e-3}) {
        profile.host = {Seconds{launch}, Seconds{2 * launch}};
        step.profile = std::make_shared<const Profile>(profile);
        expect_same(estimate_step(step), whole_walk(step), "host " + std::to_string(launch));
    }
}

/// Dense layers on A100 as Megatron runs them: the host waits for every message between stages.
StepCase waiting_stages(std::vector<int> stage_layers, int micro_batches) {
    StepCase step = tests::small_case(4);
    step.cluster = load_cluster("dgx-a100-80:4");
    step.profile = std::make_shared<const Profile>(load_profile("a100-sxm-80"));
    int layers = 0;
    for (const int here : stage_layers) layers += here;
    step.model = tests::small_model(layers, 0);
    step.model.hidden_size = 2048;
    step.model.vocab_size = 51200;
    step.model.tied_embeddings = true;
    for (LayerSpec& layer : step.model.layers) {
        layer.attention =
            GroupedQueryAttention{.num_attention_heads = 16, .num_kv_heads = 16, .head_size = 128};
        layer.feed_forward = DenseFeedForward{.dense_hidden_size = 8192};
    }
    const int stages = static_cast<int>(stage_layers.size());
    step.layout = {2, 1, stages, 16 / stages, 1, 1};
    step.schedule.stage_layers = std::move(stage_layers);
    step.schedule.sequence_length = 2048;
    step.schedule.num_micro_batches = micro_batches;
    step.schedule.software.framework = "megatron";
    return step;
}

TEST(Repeats, APeriodMayBeAsManyMicroBatchesAsTheSlowestWayRoundHasStages) {
    // Equal stages: what is slowest is the way of one micro-batch through all p of them and back,
    // on which p are under way; so each p-th does what the first did, and those between differ.
    for (const int stages : {2, 4}) {
        StepCase step = waiting_stages(std::vector<int>(static_cast<std::size_t>(stages), 2), 64);
        step.model.vocab_size = 512;  // a head of no weight
        const StepGraph graph = build_step_graph(step);
        const JobPrices prices = price_jobs(graph, step);
        StepNetwork network(step, graph);
        const Timeline line = walk(graph, step, prices, network, NetworkModel::closed_form);
        const auto found = rhythm(line, graph, step, prices);
        ASSERT_TRUE(found) << stages;
        EXPECT_EQ(found->micro_batches, stages);
        for (const int micro_batches : {131, 256}) {  // and what is left need not be whole periods
            step.schedule.num_micro_batches = micro_batches;
            const StepReport report = estimate_step(step);
            EXPECT_TRUE(was_stretched(report)) << stages;
            expect_same(report, whole_walk(step), std::to_string(stages) + " stages");
        }
    }
}

TEST(Repeats, HostsThatWaitForMessagesOnUnequalStages) {
    // A heavy first stage, a heavy last one, both, and one between them.
    for (const auto& layers : {std::vector{4, 2, 2, 2}, std::vector{2, 2, 2, 4},
                               std::vector{3, 2, 2, 3}, std::vector{2, 2, 3, 2}})
        for (const int micro_batches : {97, 250}) {
            const StepCase step = waiting_stages(layers, micro_batches);
            const StepReport report = estimate_step(step);
            EXPECT_TRUE(was_stretched(report)) << layers.front() << " … " << layers.back();
            expect_same(report, whole_walk(step), std::to_string(micro_batches));
        }
}

TEST(Repeats, AmongEquallyBusyStagesTheFirstIsReportedHoweverFewAreWalked) {
    // Two stages of three layers work equally long, but for the rounding of sums of many terms.
    const StepCase step = waiting_stages({2, 3, 1, 3, 1, 2, 2, 2}, 130);
    const StepReport report = estimate_step(step);
    EXPECT_TRUE(was_stretched(report));
    expect_same(report, whole_walk(step), "two busiest");
}

TEST(Repeats, WhatDiffersIsWalkedWhole) {
    StepCase step = tests::small_case(2);
    step.schedule.num_micro_batches = 64;
    EXPECT_EQ(micro_batches_to_walk(step), (std::vector{7, 10, 16, 28, 64}));  // 3·{1, 2, 4, 8} + 4
    step.routing = SyntheticRouting{"zipf", 1.0, 0};  // every micro-batch has loads of its own
    EXPECT_EQ(micro_batches_to_walk(step), std::vector{64});
    step.routing = SyntheticRouting{};
    step.keep_timeline = true;  // every bar is asked for
    EXPECT_EQ(micro_batches_to_walk(step), std::vector{64});
    step.keep_timeline = false;
    step.layout = {1, 1, 4, 4, 1, 1};
    step.schedule.pipeline = Pipeline::gpipe;  // all forwards, then all backwards: no rhythm
    EXPECT_EQ(micro_batches_to_walk(step), std::vector{64});
}

TEST(DistinctMicroBatches, ASampleOfRoutingsStandsForAll) {
    StepCase step = tests::small_case(2);
    step.layout.expert_parallel_size = 8;
    step.routing = SyntheticRouting{"zipf", 1.0, 0};
    step.schedule.num_micro_batches = 32;
    const StepReport all = estimate_step(step);
    step.distinct_micro_batches = 8;
    EXPECT_EQ(build_step_graph(step).loads.size(), 4u * 8);  // MoE layers × routings
    const StepReport some = estimate_step(step);
    EXPECT_NE(some.step_time, all.step_time);
    // 4 layers × 8 draws of a maximum over 8 ranks: some per cent each, so well under one in the mean
    EXPECT_NEAR(some.step_time / all.step_time, 1, 0.02);
    EXPECT_NE(some.made.case_digest, all.made.case_digest);
    EXPECT_TRUE(std::any_of(some.folded.begin(), some.folded.end(), [](const std::string& line) {
        return line.find("routings of 8 micro-batches stand for those of all 32") !=
               std::string::npos;
    }));
    step.distinct_micro_batches = 64;  // no more than there are
    EXPECT_EQ(estimate_step(step).step_time, all.step_time);
}

TEST(Repeats, AStageThatLivesOnALeadIsNotARhythm) {
    // The first stages are the slowest, by half a per cent: the last ones use up what was sent
    // ahead, and wait for them only hundreds of micro-batches later. Until then lanes have periods
    // of their own.
    StepCase step = tests::small_case(2);
    step.model = tests::small_model(9, 2);
    step.layout = {1, 1, 4, 4, 4, 1};
    step.schedule.stage_layers = {3, 2, 3, 1};
    step.schedule.num_micro_batches = 200;
    const StepReport report = estimate_step(step);
    EXPECT_FALSE(was_stretched(report));
    expect_same(report, whole_walk(step), "a lead");
}

TEST(Repeats, AHostThatCatchesUpLaterIsNotARhythm) {
    // One stage waits in its first units for the ones before it, so its host runs ahead; launching
    // takes longer than the other stages' kernels, and the lead is used up only after the units
    // that are walked. Stretched or not, the answer is the whole walk's.
    StepCase step = tests::small_case(2);
    step.model = tests::small_model(8, 0);
    step.layout = {1, 1, 8, 2, 1, 1};
    step.schedule.num_micro_batches = 400;
    Profile profile = *step.profile;
    for (double launch = 1e-7; launch < 1e-4; launch *= 1.35) {
        profile.host = {Seconds{launch}, Seconds{0}};
        step.profile = std::make_shared<const Profile>(profile);
        expect_same(estimate_step(step), whole_walk(step), "host " + std::to_string(launch));
    }
}

}  // namespace
}  // namespace moeplan
