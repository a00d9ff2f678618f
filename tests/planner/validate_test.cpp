#include "planner/validate.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "planner/shrink.hpp"

namespace moeplan {
namespace {

using namespace literals;

StepReport report_of(Seconds step_time) {
    StepReport out;
    out.step_time = step_time;
    out.exposed.compute = step_time;
    out.tokens_per_second = 1000 / step_time.value;
    out.peak_memory = {1_GiB, 2_GiB};
    out.load_imbalance = {1, 2};
    return out;
}

const FieldError& field(const Validation& validation, const std::string& name) {
    for (const FieldError& one : validation.fields)
        if (one.field == name) return one;
    throw std::runtime_error("no field " + name);
}

TEST(Validate, AReportAgreesWithItself) {
    const Validation same = validate(report_of(2_s), report_of(2_s), default_tolerances());
    EXPECT_TRUE(same.passed);
    for (const FieldError& one : same.fields) EXPECT_EQ(one.relative_error(), 0) << one.field;
}

TEST(Validate, StepTimeIsJudgedByItsToleranceAgainstTheMeasured) {
    // (1.19 − 1)/1 = 0.19 passes, (1.21 − 1)/1 fails, at 20 %
    EXPECT_TRUE(validate(report_of(1.19_s), report_of(1_s), {{"step_time_s", 0.2}}).passed);
    EXPECT_FALSE(validate(report_of(1.21_s), report_of(1_s), {{"step_time_s", 0.2}}).passed);
    EXPECT_NEAR(
        field(validate(report_of(1.21_s), report_of(1_s), {}), "step_time_s").relative_error(),
        0.21, 1e-12);
}

TEST(Validate, FieldsWithoutAToleranceAreShownAndNotJudged) {
    const Validation out = validate(report_of(3_s), report_of(1_s), {{"load_imbalance.mean", 0.1}});
    EXPECT_TRUE(out.passed);
    EXPECT_FALSE(field(out, "exposed.compute_s").tolerance.has_value());
    EXPECT_TRUE(to_json(out).dump().find("\"passed\":null") != std::string::npos);
}

TEST(Validate, ListsAreComparedByTheirFullestOrMeanEntry) {
    const Validation out = validate(report_of(1_s), report_of(1_s), {});
    EXPECT_DOUBLE_EQ(field(out, "peak_memory_bytes.max").predicted, (2_GiB).value);
    EXPECT_DOUBLE_EQ(field(out, "load_imbalance.mean").predicted, 1.5);
}

TEST(Validate, AToleranceForSomethingThatWasNotMeasuredFails) {
    EXPECT_FALSE(validate(report_of(1_s), report_of(1_s), {{"no_such_field", 1}}).passed);
    EXPECT_FALSE(validate(report_of(1_s), report_of(1_s), {}).passed);  // nothing was judged
}

TEST(Validate, ANumberThatIsNotOneNeverPasses) {
    StepReport broken = report_of(1_s);
    broken.step_time = {std::nan("")};
    EXPECT_FALSE(validate(broken, report_of(1_s), {{"step_time_s", 0.2}}).passed);
}

StepCase planned_case() {
    StepCase out;
    out.model.name = "planned";
    out.model.hidden_size = 4096;
    out.model.vocab_size = 32000;
    MoeFeedForward moe;
    moe.num_experts = 32;
    moe.top_k = 2;
    moe.num_moe_heads = 4;
    moe.expert_hidden_size = 14336;
    const GroupedQueryAttention attention{
        .num_attention_heads = 32, .num_kv_heads = 8, .head_size = 128};
    for (int i = 0; i < 32; ++i) {
        LayerSpec layer{attention, moe, std::nullopt};
        if (i == 0) layer.feed_forward = DenseFeedForward{.dense_hidden_size = 14336};
        out.model.layers.push_back(layer);
    }
    out.layout = {.tensor_parallel_size = 2,
                  .pipeline_parallel_size = 4,
                  .data_parallel_size = 16,
                  .expert_parallel_size = 8};
    out.schedule.num_micro_batches = 16;
    out.schedule.recompute.full = true;
    return out;
}

TEST(Shrink, KeepsHeadsChoicesAndTheKindsOfParallelismAndSaysTheRest) {
    Here here;
    here.num_ranks = 2;
    const Shrunk shrunk = shrink(planned_case(), here);
    EXPECT_EQ(shrunk.step.schedule.software.framework, "moeplan");  // whatever it was planned for
    const MoeFeedForward& moe = *first_moe(shrunk.step.model);
    EXPECT_EQ(moe.num_moe_heads, 4);
    EXPECT_EQ(moe.top_k, 2);
    EXPECT_EQ(moe.num_experts, 32);
    // 14336 · 128/4096 = 448
    EXPECT_EQ(shrunk.step.model.hidden_size, 128);
    EXPECT_EQ(moe.expert_hidden_size, 448);
    EXPECT_EQ(shrunk.step.layout.expert_parallel_size, 2);
    EXPECT_EQ(world_size(shrunk.step.layout), 2);
    EXPECT_EQ(shrunk.step.model.layers.size(), 4u);
    EXPECT_EQ(num_moe_layers(shrunk.step.model), 3);  // one dense layer of 32 stays one of four
    // 32 query and 8 key heads: four to one
    const auto& attention = std::get<GroupedQueryAttention>(shrunk.step.model.layers[0].attention);
    EXPECT_EQ(attention.num_attention_heads, 4 * attention.num_kv_heads);
    EXPECT_THAT(shrunk.changes, ::testing::Contains("hidden_size 4096 → 128"));
    EXPECT_THAT(shrunk.unchecked, ::testing::Contains("tensor parallelism"));
    EXPECT_THAT(shrunk.unchecked, ::testing::Contains("the pipeline and its bubble"));
    EXPECT_THAT(shrunk.checked, ::testing::Contains(::testing::HasSubstr("sub-tokens")));
}

TEST(Shrink, ShrinkingTwiceChangesNothingMore) {
    Here here;
    here.num_ranks = 2;
    const Shrunk once = shrink(planned_case(), here);
    const Shrunk twice = shrink(once.step, here);
    EXPECT_EQ(twice.step.layout, once.step.layout);
    EXPECT_EQ(twice.step.schedule, once.step.schedule);
    EXPECT_EQ(twice.step.model.layers, once.step.model.layers);
    EXPECT_TRUE(twice.changes.empty()) << twice.changes.front();
}

TEST(Shrink, WhatThePlanSplitsIsSplitAsFarAsTheRanksGo) {
    Here here;
    here.num_ranks = 4;
    StepCase planned = planned_case();
    const Shrunk four = shrink(planned, here);  // experts first, then layers
    EXPECT_EQ(four.step.layout.expert_parallel_size, 2);
    EXPECT_EQ(four.step.layout.pipeline_parallel_size, 2);
    EXPECT_EQ(four.step.layout.tensor_parallel_size, 1);
    EXPECT_GE(four.step.schedule.num_micro_batches, 4);
    EXPECT_THAT(four.unchecked, ::testing::Contains("tensor parallelism"));
    here.num_ranks = 2;
    planned.layout.expert_parallel_size = planned.layout.pipeline_parallel_size = 1;
    const Shrunk two = shrink(planned, here);
    EXPECT_EQ(two.step.layout.tensor_parallel_size, 2);
    EXPECT_EQ(world_size(two.step.layout), 2);
    const auto& attention = std::get<GroupedQueryAttention>(two.step.model.layers[0].attention);
    EXPECT_EQ(attention.num_kv_heads % 2, 0);
}

TEST(Shrink, ASharedOptimizerStaysSharedAndWhatTheTrainerLacksIsSaid) {
    Here here;
    here.num_ranks = 2;
    StepCase planned = planned_case();
    planned.schedule.software.framework = "megatron-core";
    planned.schedule.sharding = Sharding::zero1;
    const Shrunk one = shrink(planned, here);
    EXPECT_EQ(one.step.schedule.sharding, Sharding::zero1);
    EXPECT_THAT(one.changes,
                ::testing::Contains(::testing::HasSubstr("framework megatron-core → moeplan")));
    EXPECT_THAT(one.changes, ::testing::Not(::testing::Contains(::testing::HasSubstr("zero"))));
    EXPECT_THAT(one.checked, ::testing::Contains("optimizer states shared by 2 ranks (zero1)"));

    planned.schedule.sharding = Sharding::zero3;
    const Shrunk three = shrink(planned, here);
    EXPECT_EQ(three.step.schedule.sharding, Sharding::zero1);
    EXPECT_THAT(three.changes,
                ::testing::Contains(::testing::HasSubstr("zero zero3 → zero1: our trainer")));
    EXPECT_THAT(three.unchecked, ::testing::Contains("sharded gradients and weights (zero3)"));

    here.num_ranks = 1;
    const Shrunk alone = shrink(planned, here);
    EXPECT_EQ(alone.step.schedule.sharding, Sharding::none);
    EXPECT_THAT(alone.unchecked, ::testing::Contains("the sharded optimizer"));

    // Sharing two ways halves the optimizer's states that the prediction counts (experts: ep 2, not
    // shared).
    here.num_ranks = 2;
    planned.layout.expert_parallel_size = 1;
    planned.layout.tensor_parallel_size = planned.layout.pipeline_parallel_size = 1;
    planned.layout.data_parallel_size = 128;
    planned.schedule.sharding = Sharding::zero1;
    StepCase shared = shrink(planned, here).step;
    const Bytes half = memory_by_stage(shared.model, shared.layout, shared.schedule)[0].optimizer;
    shared.schedule.sharding = Sharding::none;
    const Bytes whole = memory_by_stage(shared.model, shared.layout, shared.schedule)[0].optimizer;
    EXPECT_EQ(half.value * 2, whole.value);
}

TEST(Shrink, OneRankHasNoDispatchBetweenRanksAndSaysSo) {
    Here here;
    const Shrunk alone = shrink(planned_case(), here);
    EXPECT_EQ(world_size(alone.step.layout), 1);
    EXPECT_THAT(alone.unchecked, ::testing::Contains("dispatch and combine between ranks"));
}

/// A piece took 0.2 ms in the profile, 0.3 ms around the steps: 1.5 times as long. 1.2 s predicted are
/// 1.8 s at that pace, 0.9 of the 2 s that were measured.
TEST(PaceShift, PredictsAtThePaceOfTheMeasuredSteps) {
    Profile profile;
    profile.conditions["ranks_at_once"] = "2";
    StepReport measured = report_of(2_s);  // of two ranks
    measured.machine_pace = 3e-4;
    const StepReport predicted = report_of(1.2_s);
    EXPECT_FALSE(pace_shift(profile, predicted, measured));
    profile.conditions[kMachinePace] = "0.0002";
    const std::optional<PaceShift> shift = pace_shift(profile, predicted, measured);
    ASSERT_TRUE(shift);
    EXPECT_DOUBLE_EQ(shift->slower(), 1.5);
    EXPECT_DOUBLE_EQ(shift->predicted_step.value, 1.8);
    EXPECT_NEAR(shift->relative_error, -0.1, 1e-12);
    EXPECT_FALSE(pace_shift(profile, predicted, report_of(1_s)));
    profile.conditions["ranks_at_once"] = "4";  // pieces that others slowed
    EXPECT_FALSE(pace_shift(profile, predicted, measured));
}

}  // namespace
}  // namespace moeplan
