#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>

#include "kernels/machine_pace.hpp"
#include "model/kernel_work.hpp"
#include "profiler/measure_kernels.hpp"
#include "profiler/measure_links.hpp"
#include "profiler/measure_points.hpp"
#include "profiler/measure_stretches.hpp"
#include "tests/tolerance.hpp"

namespace moeplan {
namespace {

TEST(Summarise, TakesMedianAndMedianAbsoluteDeviation) {
    // 1 2 3 4 100: median 3, deviations 2 1 0 1 97, their median 1 → 1/3
    const Measured measured = summarise({1, 100, 2, 4, 3});
    EXPECT_DOUBLE_EQ(measured.median.value, 3);
    EXPECT_DOUBLE_EQ(measured.relative_spread, 1.0 / 3);
    EXPECT_EQ(measured.num_samples, 5);
    EXPECT_DOUBLE_EQ(summarise({1, 2, 3, 4}).median.value, 2.5);
}

TEST(Together, LeavesASlowSpellOverOneOfThreeVisitsOut) {
    // medians 1, 1.8, 1.1: 1.1; their deviations 0.1, 0.7, 0: 0.1 of 1.1, more than any visit's own
    const Measured all = together({{{1.0}, 0.01, 7}, {{1.8}, 0.02, 9}, {{1.1}, 0.03, 8}});
    EXPECT_DOUBLE_EQ(all.median.value, 1.1);
    EXPECT_NEAR(all.relative_spread, 0.1 / 1.1, 1e-12);
    EXPECT_EQ(all.num_samples, 24);
    const Measured one = together({{{2.0}, 0.05, 7}});
    EXPECT_DOUBLE_EQ(one.median.value, 2);
    EXPECT_DOUBLE_EQ(one.relative_spread, 0.05);
}

TEST(AtPace, AVisitWhileTheMachineWasSlowCountsAsIfItHadNotBeen) {
    // a piece takes 2 ms in place of 1 in the second visit: 2.2 · 1/2 = 1.1
    const std::vector<Measured> visits = {{{1.0}, 0.01, 7}, {{2.2}, 0.01, 7}};
    const std::vector<Measured> evened = at_pace(visits, {{1e-3}, {2e-3}}, {1e-3});
    EXPECT_DOUBLE_EQ(evened[0].median.value, 1.0);
    EXPECT_DOUBLE_EQ(evened[1].median.value, 1.1);
    EXPECT_DOUBLE_EQ(at_pace(visits, {}, {1e-3})[1].median.value, 2.2);
}

TEST(MachinePaceOfAProfile, IsItsConditionIfThatIsATime) {
    Profile profile;
    EXPECT_FALSE(machine_pace(profile));
    profile.conditions[kMachinePace] = "0.00025";
    EXPECT_DOUBLE_EQ(machine_pace(profile).value().value, 2.5e-4);
    for (const char* none : {"", "fast", "0", "-1", "1e9", "nan", "0.1 s"}) {
        profile.conditions[kMachinePace] = none;
        EXPECT_FALSE(machine_pace(profile)) << none;
    }
}

/// At most 10 TFlop/s and 1 TB/s of a core, at least 0.1 GFlop/s: 2·256³ operations and a copy of
/// 256 KiB, read and written.
TEST(MachinePace, APieceIsAProductAndACopy) {
    const Communicator alone;
    MachinePace pace(backend_for(Device::cpu), alone);
    const double operations = 2.0 * 256 * 256 * 256, bytes = 2.0 * 256 * 1024,
                 piece = pace.now().value;
    EXPECT_GT(piece, operations / 1e13 + bytes / 1e12);
    EXPECT_LT(piece, operations / 1e8);
}

/// New points of a profile without a pace, or of other ranks, stay as they were timed, and no pace is
/// claimed for the whole.
TEST(MeasureKernels, GoingOnKeepsThePaceOfTheProfileIfItIsTheSameMeasurement) {
    const Backend& cpu = backend_for(Device::cpu);
    const Communicator alone;
    MeasureOptions options;
    options.rule.longest = {0};
    options.rule.least_samples = 3;
    const std::vector<KernelPoint> both = {gemm_point("gemm", 16, 16, 16),
                                           gemm_point("gemm", 32, 16, 16)};
    const Profile begun = measure_kernels(cpu, alone, {both[0]}, options);
    ASSERT_TRUE(machine_pace(begun));
    const Profile done = measure_kernels(cpu, alone, both, options, begun);
    EXPECT_EQ(done.conditions.at(kMachinePace), begun.conditions.at(kMachinePace));
    Profile unknown = begun, of_others = begun;
    unknown.conditions.erase(kMachinePace);
    of_others.conditions["ranks_at_once"] = "2";
    for (const Profile& known : {unknown, of_others})
        EXPECT_FALSE(machine_pace(measure_kernels(cpu, alone, both, options, known)));
}

TEST(Settled, NeedsItsLeastSamplesEvenIfTheyAgree) {
    SamplingRule rule;
    EXPECT_FALSE(settled(std::vector<double>(6, 1.0), {}, rule));
    EXPECT_TRUE(settled(std::vector<double>(7, 1.0), {}, rule));
}

TEST(Settled, GoesOnWhileTheMedianIsUncertainAndStopsWhenTheTimeIsUp) {
    // MAD 0.1 of median 1, 8 samples: standard error 1.253 · 1.4826 · 0.1 / √8 = 0.066 > 0.01
    std::vector<double> noisy;
    for (int i = 0; i < 8; ++i) noisy.push_back(i % 2 ? 0.9 : 1.1);
    SamplingRule rule;
    EXPECT_FALSE(settled(noisy, {0.01}, rule));
    EXPECT_TRUE(settled(noisy, rule.longest, rule));
}

TEST(Settled, StopsWhenMoreSamplesNoLongerHelp) {
    std::vector<double> noisy;
    for (int i = 0; i < 60; ++i) noisy.push_back(i % 3 == 0 ? 0.9 : i % 3 == 1 ? 1.0 : 1.1);
    EXPECT_TRUE(settled(noisy, {0.01}, {}));
}

/// Of the row for so many ranks and a stretch of so many pieces of 1 ms.
double slowest_in(const StretchCurve& curve, int ranks, int pieces) {
    for (const auto& row : curve.rows)
        if (row[0] == ranks && std::abs(row[1] - 1e-3 * pieces) < 1e-9) return row[2];
    ADD_FAILURE() << "no row for " << ranks << " ranks and " << pieces << " pieces";
    return 0;
}

TEST(StretchesOf, SteadyRanksWaitForNobody) {
    const StretchCurve curve =
        stretches_of({std::vector<double>(300, 1e-3), std::vector<double>(400, 1e-3)}, {0.1}, {1});
    // 1, 2 … 64 pieces, for 1, 2 … 64 ranks
    EXPECT_EQ(curve.rows.size(), 7u * 7u);
    for (const auto& row : curve.rows) EXPECT_NEAR(row[2], 1, 1e-9);
}

/// 300 pieces of 1 ms, then 100 of 2 ms on both ranks: their windows of 0.1 s, 100 pieces, are each
/// even in themselves.
TEST(StretchesOf, ASpellThatSlowsAllRanksAlikeMakesNobodyWait) {
    std::vector<double> series(300, 1e-3);
    series.insert(series.end(), 100, 2e-3);
    const StretchCurve curve = stretches_of({series, series}, {0.1}, {1});
    for (const auto& row : curve.rows)
        EXPECT_NEAR(row[2], 1, 1e-9) << row[0] << " ranks, stretches of " << row[1] << " s";
    EXPECT_FALSE(curve.rows.empty());
}

TEST(StretchesOf, AnInterruptionOfEitherRankDelaysBothTheMoreTheOftenerTheyMeet) {
    // A piece of 1 ms, every tenth interrupted for 10 ms: 100 pieces take 200 ms on one rank. Two
    // that meet after every piece lose each other's interruptions too, 300 ms, unless they fall
    // together, in one window of ten. In a stretch of 64 lie 6 or 7 interruptions: 124 or 134 ms.
    std::vector<double> pieces(1000, 1e-3);
    for (std::size_t i = 0; i < pieces.size(); i += 10) pieces[i] = 11e-3;
    const StretchCurve curve = stretches_of({pieces, pieces}, {0.1}, {1});
    EXPECT_NEAR(slowest_in(curve, 1, 1), 2.0, 1e-9);
    EXPECT_NEAR(slowest_in(curve, 2, 1), 3.0, 1e-9);
    EXPECT_NEAR(slowest_in(curve, 64, 1), 11.0, 1e-9);    // someone is interrupted in every piece
    EXPECT_NEAR(curve.rows.front()[3], 1, 1e-9);          // the median of a piece is undisturbed
    EXPECT_NEAR(curve.rows.back()[3], 124.0 / 64, 1e-9);  // 6 of 10 stretches of 64 have 6
    EXPECT_LE(slowest_in(curve, 2, 64), 134.0 / 64 + 1e-9);
    EXPECT_GE(slowest_in(curve, 2, 64), 124.0 / 64 - 1e-9);
}

TEST(StretchesOf, NeedsNoMorePiecesThanThereAre) {
    EXPECT_TRUE(stretches_of({}, {0.1}, {1}).rows.empty());
    EXPECT_TRUE(stretches_of({{}}, {0.1}, {1}).rows.empty());
    for (const auto& row : stretches_of({{1e-3, 1e-3, 1e-3}}, {0.1}, {1}).rows)
        EXPECT_NEAR(row[2], 1, 1e-9);
}

ModelSpec small_model() {
    ModelSpec model;
    model.name = "small";
    model.hidden_size = 64;
    model.vocab_size = 256;
    MoeFeedForward moe;
    moe.num_experts = 8;
    moe.top_k = 2;
    moe.expert_hidden_size = 32;
    moe.num_moe_heads = 2;
    moe.pool = DocumentPool{2, 4};
    moe.num_shared_experts = 1;
    moe.shared_expert_hidden_size = 32;
    model.layers.assign(2, {GroupedQueryAttention{4, 2, 16}, moe, std::nullopt});
    return model;
}

StepSchedule small_schedule() {
    StepSchedule schedule;
    schedule.sequence_length = 32;
    schedule.micro_batch_size = 2;
    schedule.precision = Precision::fp32;
    return schedule;
}

TEST(PointsOfModel, AddToGradientsAsTheTrainerDoes) {
    for (const KernelPoint& point : points_of_model(small_model(), {}, small_schedule()))
        EXPECT_EQ(point.problem.accumulate, point.kernel == "gemm_weight_gradient" ||
                                                point.kernel == "rms_norm_backward")
            << point.kernel;
}

TEST(PointsOfModel, HoldTheShapesOfItsStepAndCanAllBeMade) {
    const auto points = points_of_model(small_model(), {}, small_schedule());
    std::set<std::string> kernels;
    for (const KernelPoint& point : points) {
        kernels.insert(point.kernel);
        EXPECT_EQ(point.shape.size(), shape_columns(point.kernel).size()) << point.kernel;
    }
    for (const char* kernel :
         {"gemm", "gemm_weight_gradient", "grouped_gemm_input_gradient", "attention_backward",
          "document_pool", "adamw", "cross_entropy_forward"})
        EXPECT_THAT(kernels, testing::Contains(kernel));
    // Head projection of MH-MoE: 64 tokens, [64, 64]; experts: mean load 64 · 2 sub-tokens · 2
    // choices / 8 = 32 rows of width 64/2.
    const auto has = [&](const KernelPoint& wanted) {
        return std::any_of(points.begin(), points.end(), [&](const KernelPoint& p) {
            return p.kernel == wanted.kernel && p.shape == wanted.shape && p.importance == 0;
        });
    };
    EXPECT_TRUE(has(gemm_point("gemm", 64, 64, 64)));
    EXPECT_TRUE(has(grouped_point("grouped_gemm", 32, 64, 32, 8)));
}

TEST(GemmPoint, RunsTheGradientsAsTheProductsTheyAre) {
    // y[m, n] = x wᵀ; dx[m, k] = dy w; dw[n, k] = dyᵀ x
    const KernelProblem input = gemm_point("gemm_input_gradient", 3, 5, 7).problem,
                        weight = gemm_point("gemm_weight_gradient", 3, 5, 7).problem;
    EXPECT_EQ(std::tuple(input.m, input.n, input.k), std::tuple(3, 7, 5));
    EXPECT_EQ(std::tuple(weight.m, weight.n, weight.k), std::tuple(5, 7, 3));
}

Profile measured_small() {
    const Backend& cpu = backend_for(Device::cpu);
    const Communicator alone;
    MeasureOptions options;
    options.budget = {3};
    options.rule.longest = {0.01};
    options.rule.least_samples = 3;
    return measure_kernels(cpu, alone, points_of_model(small_model(), {}, small_schedule()),
                           options);
}

TEST(MeasureKernels, PricesWhatItMeasuredAsMeasured) {
    const Profile profile = measured_small();
    ASSERT_FALSE(profile.kernels.empty());
    int seen = 0;
    for (const KernelCurve& curve : profile.kernels) {
        if (curve.kernel != "gemm") continue;
        for (const auto& row : curve.rows) {
            const PricedTime time =
                kernel_time(profile, "gemm", Precision::fp32,
                            Gemm{std::llround(row[0]), std::llround(row[1]), std::llround(row[2])});
            EXPECT_EQ(time.basis, Basis::measured);
            EXPECT_NEAR(time.time.value, row[3], 1e-9 * row[3]);
            ++seen;
        }
    }
    EXPECT_GT(seen, 0);
    EXPECT_THAT(profile.conditions, testing::Contains(testing::Key("load_average")));
}

TEST(MeasureKernels, GoesOnWhereAProfileEnds) {
    const Backend& cpu = backend_for(Device::cpu);
    const Communicator alone;
    MeasureOptions options;
    options.rule.longest = {0.005};
    options.rule.least_samples = 3;
    const std::vector<KernelPoint> first = {gemm_point("gemm", 16, 16, 16)},
                                   both = {gemm_point("gemm", 16, 16, 16),
                                           gemm_point("gemm", 32, 16, 16)};
    const Profile begun = measure_kernels(cpu, alone, first, options);
    const Profile done = measure_kernels(cpu, alone, both, options, begun);
    ASSERT_EQ(done.kernels.size(), 1u);
    ASSERT_EQ(done.kernels[0].rows.size(), 2u);
    EXPECT_EQ(done.kernels[0].rows[0], begun.kernels[0].rows[0]);  // measured once
}

/// Three visits of at least three samples to what the step has; refinements are seen once.
TEST(MeasureKernels, VisitsTheShapesOfTheStepAgainAndRefinementsOnce) {
    MeasureOptions options;
    options.rule.longest = {0};  // the least samples, then the time is up
    options.rule.least_samples = 3;
    KernelPoint refinement = gemm_point("gemm", 32, 16, 16);
    refinement.importance = 1;
    const Profile profile =
        measure_kernels(backend_for(Device::cpu), Communicator(),
                        {gemm_point("gemm", 16, 16, 16), refinement}, options);
    ASSERT_EQ(profile.kernels.size(), 1u);
    const KernelCurve& curve = profile.kernels[0];
    const auto samples = static_cast<std::size_t>(
        std::find(curve.columns.begin(), curve.columns.end(), "num_samples") -
        curve.columns.begin());
    ASSERT_EQ(curve.rows.size(), 2u);
    EXPECT_EQ(curve.rows[0][samples], 3 * 3);
    EXPECT_EQ(curve.rows[1][samples], 3);
}

TEST(MeasureKernels, StopsWhenToldAndKeepsWhatItHas) {
    const std::atomic<bool> stop{true};
    MeasureOptions options;
    options.stop = &stop;
    const Profile profile =
        measure_kernels(backend_for(Device::cpu), Communicator(), points_of_grid(), options);
    EXPECT_TRUE(profile.kernels.empty());
    EXPECT_GT(profile.roofline.peak.at(Precision::fp32).value,
              0);  // still a profile that can be read
}

TEST(HeldOut, IsZeroWhereEfficiencyIsConstant) {
    // t = 2mnk / 100 GFlop/s at every m: whatever is left out is predicted exactly.
    Profile profile;
    profile.name = "ideal";
    profile.roofline.peak[Precision::fp32] = {100e9};
    profile.roofline.memory_bandwidth = {1e15};
    KernelCurve curve{"gemm", Precision::fp32, Basis::measured, "", {"m", "n", "k", "median_s"},
                      {}};
    for (double m = 16; m <= 65536; m *= 2)
        curve.rows.push_back({m, 64, 64, 2 * m * 64 * 64 / 100e9});
    profile.kernels.push_back(curve);
    prepare(profile);
    const auto errors = held_out_errors(profile, {1});
    EXPECT_GT(errors.back().num_points, 0);
    EXPECT_LT(errors.back().p90, 1e-9);
}

TEST(MeasureLinks, OfOneRankAreNone) {
    EXPECT_TRUE(measure_links(backend_for(Device::cpu), Communicator(), {}).empty());
}

}  // namespace
}  // namespace moeplan
