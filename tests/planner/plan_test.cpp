/// The funnel, with runners of three lines.

#include "planner/plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "core/errors.hpp"
#include "model/check.hpp"
#include "model/op_counts.hpp"

namespace moeplan {
namespace {

using namespace literals;

/// A Mixtral of a quarter of the width.
ModelSpec small_mixtral() {
    ModelSpec out;
    out.name = "small";
    out.hidden_size = 1024;
    out.vocab_size = 32000;
    MoeFeedForward moe;
    moe.num_experts = 8;
    moe.top_k = 2;
    moe.expert_hidden_size = 3584;
    const GroupedQueryAttention attention{
        .num_attention_heads = 16, .num_kv_heads = 8, .head_size = 64};
    out.layers.assign(8, LayerSpec{attention, moe, std::nullopt});
    return out;
}

StepCase base_case(int nodes = 2, Bytes memory = 80_GB) {
    StepCase out;
    out.model = small_mixtral();
    out.cluster.name = "test";
    out.cluster.num_nodes = nodes;
    out.cluster.gpus_per_node = 8;
    out.cluster.gpu.memory = memory;
    out.schedule.sequence_length = 1024;
    return out;
}

/// Compute shared by all GPUs, plus a price for each kind of splitting: the best is known.
StepReport fake(const StepCase& step) {
    const double splits = step.layout.tensor_parallel_size +
                          2.0 * step.layout.pipeline_parallel_size +
                          0.5 * step.layout.expert_parallel_size;
    StepReport out;
    out.step_time = 1_s * (10.0 + splits + (step.schedule.recompute.full ? 3 : 0) +
                           1.0 / step.schedule.micro_batch_size);
    out.tokens_per_second = 1e6 / out.step_time.value;
    return out;
}

Runners fakes() {
    return {.bound = [](const StepCase& step) { return fake(step).step_time * 0.5; },
            .coarse = fake,
            .fine = fake};
}

SearchSpace small_space() {
    SearchSpace out;
    out.global_batch_size = 64;
    out.num_best = 6;
    out.max_coarse = 1000;
    return out;
}

TEST(Plan, FindsTheBestThatExhaustiveSearchFinds) {
    const StepCase base = base_case();
    const SearchSpace space = small_space();
    const Plan found = plan(space, base, fakes());
    ASSERT_FALSE(found.best.empty());

    double least = 1e300;
    for (const ParallelLayout& layout : layouts_of(16, 8, 8, 8))
        for (const StepSchedule& schedule : schedules_of(space, base.schedule, layout, 64)) {
            StepCase step = base;
            step.layout = layout;
            step.schedule = schedule;
            bool legal = true;
            for (const Finding& finding : check_layout(step.model, layout, schedule, 16))
                legal = legal && finding.severity != Severity::broken;
            if (!legal) continue;
            bool fits = true;
            for (const StageMemory& stage : memory_by_stage(step.model, layout, schedule, 1))
                fits = fits && stage.total() <= memory_limit(base.cluster);
            if (fits) least = std::min(least, fake(step).step_time.value);
        }
    EXPECT_DOUBLE_EQ(found.best.front().predicted.step_time.value, least);
}

TEST(Plan, IsTheSameBytesForAnyNumberOfThreads) {
    SearchSpace space = small_space();
    space.num_moe_heads = {1, 2};
    space.num_experts = {8, 16};
    const StepCase base = base_case();
    const std::string one =
        to_file_text(to_json(plan(space, base, fakes(), {.num_threads = 1}), base));
    for (const int threads : {2, 5})
        EXPECT_EQ(to_file_text(to_json(plan(space, base, fakes(), {.num_threads = threads}), base)),
                  one);
}

TEST(Plan, ABoundThatIsOneNeverChangesTheAnswer) {
    const StepCase base = base_case();
    const SearchSpace space = small_space();
    Runners unbounded = fakes(), tight = fakes();
    unbounded.bound = {};
    tight.bound = [](const StepCase& step) { return fake(step).step_time; };
    SearchSpace all = space;
    all.max_coarse = 1 << 20;
    const Plan a = plan(all, base, unbounded), b = plan(space, base, tight);
    ASSERT_EQ(a.best.size(), b.best.size());
    EXPECT_EQ(a.best.front().predicted.step_time, b.best.front().predicted.step_time);
    EXPECT_EQ(a.best.front().step.layout, b.best.front().step.layout);
    EXPECT_LT(b.funnel.coarse, a.funnel.coarse);
    EXPECT_EQ(a.funnel.fit, a.funnel.coarse);
    EXPECT_EQ(b.funnel.below_bound, 0);
}

TEST(Plan, EveryCombinationIsRunOrRefusedOrCounted) {
    SearchSpace space = small_space();
    const Plan found = plan(space, base_case(), fakes());
    EXPECT_GE(found.funnel.combinations, found.funnel.legal);
    EXPECT_GE(found.funnel.legal, found.funnel.fit);
    EXPECT_GE(found.funnel.fit, found.funnel.coarse);
    EXPECT_EQ(found.funnel.fine, static_cast<std::int64_t>(found.best.size()));
    // Each that is not legal broke at least one rule.
    std::int64_t broken = 0;
    for (const Refused& refused : found.refused)
        if (refused.rule != "memory") broken += refused.count;
    EXPECT_GE(broken, found.funnel.combinations - found.funnel.legal);
}

TEST(Plan, CandidatesFitAndKeepTheGlobalBatch) {
    SearchSpace space = small_space();
    space.num_best = 20;
    const Plan found = plan(space, base_case(), fakes());
    for (const Candidate& candidate : found.best) {
        EXPECT_EQ(world_size(candidate.step.layout), 16);
        EXPECT_EQ(candidate.step.schedule.micro_batch_size *
                      candidate.step.schedule.num_micro_batches *
                      candidate.step.layout.data_parallel_size,
                  64);
        EXPECT_LE(candidate.fullest_rank, found.memory_limit);
    }
    EXPECT_TRUE(std::is_sorted(found.best.begin(), found.best.end(),
                               [](const auto& a, const auto& b) { return a.score < b.score; }));
}

TEST(Plan, EveryModelIsRepresentedAmongTheCandidates) {
    SearchSpace space = small_space();
    space.num_moe_heads = {1, 2, 4};
    space.num_experts = {8, 16};
    const Plan found = plan(space, base_case(), fakes());
    EXPECT_EQ(found.models.size(), 6u);
    std::set<std::size_t> models;
    for (const Candidate& candidate : found.best) models.insert(candidate.model);
    EXPECT_EQ(models.size(), 6u);
    for (const Candidate& candidate : found.best) {
        ASSERT_TRUE(candidate.quality.has_value());
        EXPECT_LE(candidate.quality->low, candidate.quality->high);
        EXPECT_FALSE(candidate.quality->law.empty());
    }
}

TEST(Plan, FixedSizesStayFixed) {
    SearchSpace space = small_space();
    space.fixed.ep = {4};
    space.fixed.tp = {2};
    const Plan found = plan(space, base_case(), fakes());
    ASSERT_FALSE(found.best.empty());
    for (const Candidate& candidate : found.best) {
        EXPECT_EQ(candidate.step.layout.expert_parallel_size, 4);
        EXPECT_EQ(candidate.step.layout.tensor_parallel_size, 2);
    }
}

TEST(Plan, SaysWhichRuleRefusedAndTheNearestThatWouldFit) {
    // 8 layers of 8 experts of 3·1024·3584 weights are 0.7 G: 18 B each over 8 GPUs are 1.6 GB.
    const StepCase base = base_case(1, 400_MB);
    SearchSpace space = small_space();
    const Plan nothing = plan(space, base, fakes());
    EXPECT_TRUE(nothing.best.empty());
    EXPECT_THAT(nothing.refused, ::testing::Contains(::testing::Field(&Refused::rule, "memory")));
    EXPECT_THAT(nothing.nearest, ::testing::HasSubstr("nodes"));
}

TEST(Plan, ShapesWithoutASolutionAreCountedUnderParity) {
    SearchSpace space = small_space();
    space.num_moe_heads = {1, 3};  // 3 does not divide 1024
    const Plan found = plan(space, base_case(), fakes());
    EXPECT_FALSE(found.best.empty());
    EXPECT_THAT(found.refused, ::testing::Contains(::testing::Field(&Refused::rule, "parity")));
    EXPECT_THAT(found.models.back().refused, ::testing::HasSubstr("does not divide"));
}

TEST(Plan, UnknownLawsAreRefusedWithTheKnownOnes) {
    SearchSpace space = small_space();
    space.quality_law = "kaplan";
    EXPECT_THROW(plan(space, base_case(), fakes()), InputError);
}

TEST(Plan, AFailingRunnerIsNotSwallowed) {
    Runners broken = fakes();
    broken.coarse = [](const StepCase&) -> StepReport { throw EnvironmentError("no"); };
    EXPECT_THROW(plan(small_space(), base_case(), broken), EnvironmentError);
}

TEST(Plan, TimeToLossPrefersABetterModelThatIsALittleSlower) {
    // Equal step times: throughput cannot tell, time to loss takes the one that needs fewer tokens.
    SearchSpace space = small_space();
    space.num_experts = {8, 16};
    space.objective = Objective::time_to_loss;
    Runners flat = fakes();
    flat.coarse = flat.fine = [](const StepCase&) {
        StepReport out;
        out.step_time = 1_s;
        return out;
    };
    flat.bound = [](const StepCase&) { return 1_s; };
    const Plan found = plan(space, base_case(), flat);
    ASSERT_FALSE(found.best.empty());
    EXPECT_EQ(first_moe(found.best.front().step.model)->num_experts, 16);
}

TEST(NotDominated, OnAHandWorkedCase) {
    // (1,3) (2,2) (3,1) are the front; (2,3) loses to (1,3) and (2,2), (3,3) to all; equal points
    // both stay.
    EXPECT_EQ(not_dominated({{1, 3}, {2, 3}, {2, 2}, {3, 3}, {3, 1}, {2, 2}}),
              (std::vector<std::size_t>{0, 2, 4, 5}));
    EXPECT_TRUE(not_dominated({}).empty());
}

TEST(LayoutsOf, EachIsWholeAndNoneIsMissing) {
    // tp·cp·pp·dp = 16 = 2^4 in four places: C(7,3) = 35 ways; ep·etp divides tp·cp·dp = 2^n:
    // C(n+2,2). Σ over p of C(6−p,2) [ways of tp·cp·dp = 2^(4−p)] · C(6−p,2) = 15² + 10² + 6² + 3²
    // + 1 = 371.
    const auto layouts = layouts_of(16, 16, 16, 16);
    EXPECT_EQ(layouts.size(), 371u);
    for (const ParallelLayout& layout : layouts) {
        EXPECT_EQ(world_size(layout), 16);
        EXPECT_EQ(layout.tensor_parallel_size * layout.context_parallel_size *
                      layout.data_parallel_size %
                      (layout.expert_parallel_size * layout.expert_tensor_parallel_size),
                  0);
    }
}

TEST(LayoutsOf, TensorGroupsStayInsideTheScaleUpDomainUnlessFixed) {
    for (const ParallelLayout& layout : layouts_of(32, 8, 32, 8)) {
        EXPECT_LE(layout.tensor_parallel_size, 8);
        EXPECT_LE(layout.expert_tensor_parallel_size, 8);
    }
    EXPECT_FALSE(layouts_of(32, 8, 32, 8, {.tp = {16}}).empty());
}

}  // namespace
}  // namespace moeplan
