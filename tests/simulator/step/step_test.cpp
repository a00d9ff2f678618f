#include "simulator/step.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/errors.hpp"
#include "core/seed.hpp"
#include "simulator/step_fields.hpp"
#include "tests/simulator/step/cases.hpp"
#include "tests/tolerance.hpp"

namespace moeplan {
namespace {

using tests::drawn_case;
constexpr std::uint64_t kCases = 40;

TEST(Step, PartsSumToTheStepExactly) {
    for (std::uint64_t i = 0; i < kCases; ++i) {
        const StepReport report = estimate_step(drawn_case(i));
        EXPECT_EQ(report.exposed.total().value, report.step_time.value) << "case " << i;
        for_each_part(report.exposed, [&](const char* part, Seconds time) {
            EXPECT_GE(time.value, -1e-12 * report.step_time.value) << part << " of case " << i;
        });
        EXPECT_GT(report.step_time.value, 0);
        EXPECT_TRUE(std::isfinite(report.step_time.value));
    }
}

TEST(Step, MoreBandwidthIsNeverSlower) {
    for (std::uint64_t i = 0; i < kCases; ++i) {
        StepCase step = drawn_case(i);
        const double before = estimate_step(step).step_time.value;
        step.cluster.scale_up.bandwidth *= 2;
        step.cluster.scale_out.bandwidth *= 2;
        EXPECT_LE(estimate_step(step).step_time.value, before * (1 + kArithmetic)) << "case " << i;
    }
}

TEST(Step, NoStepBeatsItsLowerBound) {
    for (std::uint64_t i = 0; i < kCases; ++i) {
        const StepCase step = drawn_case(i);
        EXPECT_LE(lower_bound(step).value, estimate_step(step).step_time.value) << "case " << i;
        EXPECT_GT(lower_bound(step).value, 0);
    }
}

TEST(Step, FlowLevelSendsTheSameBytes) {
    for (std::uint64_t i = 0; i < 6; ++i) {
        const StepCase step = drawn_case(i);
        const StepReport closed = estimate_step(step), flows = simulate_step(step);
        ASSERT_EQ(closed.link_use.empty(), flows.link_use.empty());
        double a = 0, b = 0;
        for (const auto& use : closed.link_use) a += use.carried.value;
        for (const auto& use : flows.link_use) b += use.carried.value;
        // the lists hold the busiest links by share of the step, whose order may differ at equal
        // shares
        EXPECT_NEAR(a, b, 0.2 * a) << "case " << i;
    }
}

TEST(Step, SameCaseSameReport) {
    const StepCase step = drawn_case(3);
    EXPECT_EQ(to_json(estimate_step(step)).dump(), to_json(estimate_step(step)).dump());
    EXPECT_EQ(to_json(simulate_step(step)).dump(), to_json(simulate_step(step)).dump());
}

TEST(Step, SizesOfOneLeaveNoTrace) {
    // One rank: no exchange, no bubble; what concerns groups of one changes no byte of the report.
    StepCase step = tests::small_case(1);
    step.layout = {1, 1, 1, 1, 1, 1};
    const StepReport alone = estimate_step(step);
    EXPECT_TRUE(alone.link_use.empty());
    const auto same = [&](StepCase other, const char* what) {
        StepReport report = estimate_step(other);
        report.made = alone.made;  // the case's digest names the words that differ
        EXPECT_EQ(to_json(report).dump(), to_json(alone).dump()) << what;
    };
    StepCase other = step;
    other.schedule.sequence_parallel = true;
    same(other, "sequence parallelism over one rank");
    other = step;
    other.schedule.pipeline = Pipeline::zero_bubble;
    same(other, "zero bubble over one stage");
    other = step;
    other.schedule.dispatcher = Dispatcher::deduplicating;
    same(other, "a dispatcher among one rank");
    other = step;
    other.schedule.overlap = {false, false, true, true, 40};
    same(other, "overlap of nothing");
    other = step;
    other.schedule.stage_layers = {4};
    same(other, "one stage, stated");
}

TEST(Step, AStragglerHoldsUpItsStageAndAFaultyLinkItsExchange) {
    StepCase step = tests::small_case(2);
    step.layout.expert_parallel_size = 8;
    const double before = estimate_step(step).step_time.value;
    StepCase slow = step;
    slow.disturbances.stragglers = {{5, 1.5}};
    const StepReport straggled = estimate_step(slow);
    EXPECT_GT(straggled.step_time.value, before * 1.2);
    EXPECT_GT(straggled.busy_by_rank[5], straggled.busy_by_rank[4] * 1.4);
    StepCase faulty = step;
    faulty.disturbances.link_faults = {{estimate_step(step).link_use.front().link, 0.1}};
    EXPECT_GT(estimate_step(faulty).step_time.value, before);
    faulty.disturbances.link_faults = {{"node0/gpu0/no-such-link", 0.1}};
    EXPECT_THROW(estimate_step(faulty), InputError);
}

TEST(Step, SkewCostsTimeAndIsNamedAsALoss) {
    StepCase step = tests::small_case(1);
    step.layout.data_parallel_size = step.layout.expert_parallel_size = 8;
    const StepReport even = estimate_step(step);
    step.routing = SyntheticRouting{"hot", 4, 0};
    const StepReport hot = estimate_step(step);
    EXPECT_GT(hot.step_time, even.step_time);
    EXPECT_GT(hot.load_imbalance.front(), 2);
    EXPECT_NEAR(even.load_imbalance.front(), 1, 1e-12);
    bool named = false;
    for (const auto& loss : hot.losses)
        named = named || loss.what.find("unequal experts") != std::string::npos;
    EXPECT_TRUE(named);
}

TEST(Step, SamplesGiveAnIntervalAroundTheStep) {
    StepCase step = tests::small_case(1);
    step.layout.data_parallel_size = step.layout.expert_parallel_size = 8;
    step.routing = SyntheticRouting{"document_pools", 0, 3};
    const StepReport report = with_samples(step, estimate_step, 12);
    ASSERT_TRUE(report.interval && report.routing_interval);
    EXPECT_LT((*report.interval)[0], (*report.interval)[1]);
}

TEST(Step, SchedulesThatCannotBeSayWhy) {
    const auto broken = [](Pipeline pipeline, int p, int v, int m) {
        StepCase step = tests::small_case(1);
        step.model = tests::small_model(24, 1);
        step.layout = {1, 1, p, 24 / p, 1, 1};
        step.cluster = load_cluster("dgx-h100:3");
        step.schedule.pipeline = pipeline;
        step.schedule.virtual_pipeline_size = v;
        step.schedule.num_micro_batches = m;
        std::string details;
        for (const auto& finding : step_findings(step))
            if (finding.severity == Severity::broken) details += finding.detail + "\n";
        if (!details.empty()) {
            EXPECT_THROW(estimate_step(step), InputError) << details;
        }
        return details;
    };
    EXPECT_EQ(broken(Pipeline::dual_pipe, 4, 1, 8), "");
    EXPECT_NE(broken(Pipeline::dual_pipe, 3, 1, 8).find("even number of stages"), std::string::npos);
    EXPECT_NE(broken(Pipeline::dual_pipe, 4, 1, 6).find("at least 2·PP micro-batches, not 6"),
              std::string::npos);
    EXPECT_NE(broken(Pipeline::dual_pipe, 4, 1, 9).find("9 are odd"), std::string::npos);
    EXPECT_NE(broken(Pipeline::dual_pipe, 4, 2, 8).find("VPP 2"), std::string::npos);
    EXPECT_EQ(broken(Pipeline::zero_bubble_v, 4, 2, 5), "");
    EXPECT_NE(broken(Pipeline::zero_bubble_v, 4, 1, 8).find("two chunks a stage"),
              std::string::npos);
    EXPECT_NE(broken(Pipeline::zero_bubble_v, 4, 3, 8).find("two chunks a stage"),
              std::string::npos);
}

/// Groups of gradients over two nodes of 8: TP 8 leaves one rank a node, TP 4 two, TP 1 eight. Half
/// the benchmarked rate doubles transfers, not latencies: t' = 2 t − latency.
TEST(Step, RingsThatPassThroughNodesKeepAShareOfTheirRateAndThoseAlongRailsAllOfIt) {
    const auto gradients = [](int tensor, double share) {
        StepCase step = tests::small_case(2);
        step.model = tests::small_model(4, 0);
        step.layout = {tensor, 1, 1, 16 / tensor, 1, 1};
        Profile profile = *tests::plain_profile();
        profile.calibration[Constant::collective_training] = share;
        step.profile = std::make_shared<const Profile>(profile);
        return estimate_step(step).busy.data_comm.value;
    };
    EXPECT_EQ(gradients(8, 0.5), gradients(8, 1));
    for (const int tensor : {1, 2, 4}) {
        const double whole = gradients(tensor, 1), half = gradients(tensor, 0.5);
        EXPECT_GT(half, 1.1 * whole) << "TP " << tensor;
        EXPECT_LT(half, 2 * whole) << "TP " << tensor;
        EXPECT_NEAR(gradients(tensor, 0.25) - half, 2 * (half - whole), 1e-9 * half)
            << "bytes over the rate: t(¼) − t(½) = 2 (t(½) − t(1)), TP " << tensor;
    }
}

/// The same groups with NCCL before PXN. Of a node's 8 GPUs, two by two at a switch, TP 1 and 8 end a
/// ring where it began; TP 2 and 4 leave every second and fourth, none beside another.
TEST(Step, WithoutPxnRingsThatEndFarFromTheirAdapterKeepAShareOfTheirRate) {
    const auto gradients = [](int tensor, double share, const char* framework) {
        StepCase step = tests::small_case(2);
        step.model = tests::small_model(4, 0);
        step.layout = {tensor, 1, 1, 16 / tensor, 1, 1};
        step.schedule.software.framework = framework;
        Profile profile = *tests::plain_profile();
        profile.calibration[Constant::far_adapter] = share;
        step.profile = std::make_shared<const Profile>(profile);
        return estimate_step(step).busy.data_comm.value;
    };
    for (const int tensor : {2, 4}) {
        const auto old = [&](double share) { return gradients(tensor, share, "megatron-deepspeed"); };
        EXPECT_GT(old(0.5), 1.1 * old(1)) << "TP " << tensor;
        EXPECT_NEAR(old(0.25) - old(0.5), 2 * (old(0.5) - old(1)), 1e-9 * old(0.5))
            << "bytes over the rate: t(¼) − t(½) = 2 (t(½) − t(1)), TP " << tensor;
        EXPECT_EQ(gradients(tensor, 0.5, "megatron-core"), gradients(tensor, 1, "megatron-core"));
    }
    for (const int tensor : {1, 8})
        EXPECT_EQ(gradients(tensor, 0.5, "megatron-deepspeed"),
                  gradients(tensor, 1, "megatron-deepspeed"));
}

}  // namespace
}  // namespace moeplan
