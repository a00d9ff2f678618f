#include "planner/real_run.hpp"

#include <gtest/gtest.h>

#include "core/child_process.hpp"
#include "core/errors.hpp"
#include "kernels/communicator.hpp"
#include "tests/tolerance.hpp"

namespace moeplan {
namespace {

StepCase small_case(int ranks) {
    StepCase step;
    step.model.name = "small";
    step.model.hidden_size = 32;
    step.model.vocab_size = 128;
    MoeFeedForward moe;
    moe.num_experts = 4;
    moe.top_k = 2;
    moe.expert_hidden_size = 32;
    step.model.layers.assign(2, {GroupedQueryAttention{2, 2, 16}, moe, std::nullopt});
    step.layout.data_parallel_size = step.layout.expert_parallel_size = ranks;
    step.schedule.sequence_length = 32;
    step.schedule.micro_batch_size = 2;
    step.schedule.precision = Precision::fp32;
    step.schedule.software.framework = "moeplan";
    step.cluster = load_cluster("localhost");
    Profile profile;
    profile.name = "core";
    profile.roofline.peak[Precision::fp32] = {1e11};
    profile.roofline.memory_bandwidth = {1e10};
    prepare(profile);
    step.profile = std::make_shared<const Profile>(std::move(profile));
    step.seed = 3;
    return step;
}

RealRunOptions short_run() {
    RealRunOptions options;
    options.warm_up = 1;
    options.least_steps = 3;
    options.most_steps = 5;
    options.longest = {3};
    options.binary = MOEPLAN_BINARY;
    return options;
}

/// @param micro_batches  of a step, over all ranks
void expect_whole(const StepReport& report, int ranks, int micro_batches) {
    EXPECT_EQ(report.fidelity, Fidelity::real_run);
    EXPECT_GT(report.step_time.value, 0);
    // The parts are the step.
    EXPECT_TRUE(close(report.exposed.total().value, report.step_time.value, 1e-9));
    // 2 sequences of 32 tokens each
    EXPECT_TRUE(
        close(report.tokens_per_second * report.step_time.value, 64.0 * micro_batches, 1e-9));
    EXPECT_EQ(report.peak_memory.size(), static_cast<std::size_t>(ranks));
    EXPECT_EQ(report.load_imbalance.size(), 2u);  // MoE layers
    for (const double imbalance : report.load_imbalance) EXPECT_GE(imbalance, 1);
    ASSERT_TRUE(report.machine_pace);
    EXPECT_GT(*report.machine_pace, 0);
    ASSERT_TRUE(report.relative_spread);
    EXPECT_GE(*report.relative_spread, 0);
    EXPECT_GT(report.mfu, 0);
    EXPECT_EQ(report.made.seed, 3u);
    EXPECT_FALSE(report.made.case_digest.empty());
}

TEST(MeasureStep, OfOneRankReportsWholeSteps) {
    expect_whole(measure_step(small_case(1), short_run()), 1, 1);
}

TEST(MeasureStep, OfTwoRanksRunsItselfUnderMpirun) {
    if (!built_with_mpi() || !find_program("mpirun")) GTEST_SKIP() << "no MPI here";
    const StepReport report = measure_step(small_case(2), short_run());
    expect_whole(report, 2, 2);
    EXPECT_GT(report.exposed.dispatch.value, 0);
}

TEST(MeasureStep, OfTensorAndPipelineParallelRanksSaysWhereTheyWait) {
    if (!built_with_mpi() || !find_program("mpirun")) GTEST_SKIP() << "no MPI here";
    StepCase tensors = small_case(2);
    tensors.layout = {.tensor_parallel_size = 2};
    const StepReport split = measure_step(tensors, short_run());
    expect_whole(split, 2, 1);
    EXPECT_GT(split.exposed.tensor_comm.value, 0);
    StepCase layers = small_case(2);
    layers.layout = {.pipeline_parallel_size = 2};
    layers.schedule.num_micro_batches = 2;
    const StepReport staged = measure_step(layers, short_run());
    expect_whole(staged, 2, 2);
    EXPECT_GT(staged.exposed.bubble.value, 0);
}

TEST(MeasureStep, RefusesALayoutThatTheTrainerDoesNotHave) {
    StepCase step = small_case(1);
    step.layout.expert_parallel_size = 1;
    step.model.vocab_size = 1;
    EXPECT_THROW(measure_step(step, short_run()), InputError);
}

}  // namespace
}  // namespace moeplan
