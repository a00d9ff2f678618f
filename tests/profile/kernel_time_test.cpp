#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "core/errors.hpp"
#include "model/kernel_work.hpp"
#include "profiler/profile.hpp"
#include "profiler/work_floor.hpp"
#include "tests/tolerance.hpp"

namespace moeplan {
namespace {

/// One core of 100 GFlop/s and 10 GB/s, with no curve: everything is roofline.
Profile plain_core() {
    Profile profile;
    profile.name = "core";
    profile.roofline.peak[Precision::fp32] = {100e9};
    profile.roofline.memory_bandwidth = {10e9};
    profile.roofline.gemm_efficiency = 0.5;
    profile.roofline.memory_efficiency = 0.8;
    prepare(profile);
    return profile;
}

/// A GPU of 100 multiprocessors, 100 TFlop/s in bf16, with one tile of 128 × 128.
Profile tiled_gpu() {
    Profile profile;
    profile.name = "gpu";
    profile.roofline.peak[Precision::bf16] = {100e12};
    profile.roofline.memory_bandwidth = {10e12};
    profile.roofline.num_sms = 100;
    profile.roofline.tiles = {{128, 128}};
    profile.roofline.gemm_efficiency = 1;
    prepare(profile);
    return profile;
}

TEST(KernelTime, WithoutACurveIsTheRooflineAtItsStatedEfficiency) {
    const Profile core = plain_core();
    // 2·512³ flops = 268 Mflop at 0.5 · 100 GFlop/s
    const PricedTime gemm = kernel_time(core, "gemm", Precision::fp32, Gemm{512, 512, 512});
    EXPECT_TRUE(close(gemm.time.value, 2.0 * 512 * 512 * 512 / 50e9));
    EXPECT_EQ(gemm.basis, Basis::roofline);
    // 1 MB at 0.8 · 10 GB/s
    EXPECT_TRUE(
        close(kernel_time(core, "rms_norm_forward", Precision::fp32, Streamed{{1e6}}).time.value,
              1e6 / 8e9));
}

TEST(KernelTime, CountsAPartlyFilledWaveWhole) {
    const Profile gpu = tiled_gpu();
    // 1 tile and 100 tiles take one wave: 128·128·2·k flops at 1/100 of the peak.
    const double wave = 2.0 * 128 * 128 * 4096 / 1e12;
    EXPECT_TRUE(
        close(kernel_time(gpu, "gemm", Precision::bf16, Gemm{128, 128, 4096}).time.value, wave));
    EXPECT_TRUE(
        close(kernel_time(gpu, "gemm", Precision::bf16, Gemm{1280, 1280, 4096}).time.value, wave));
    // 101 rows of tiles … 150 tiles: 1.5 waves, counted (1.5 + 2)/2
    EXPECT_TRUE(
        close(kernel_time(gpu, "gemm", Precision::bf16, Gemm{128 * 10, 128 * 15, 4096}).time.value,
              1.75 * wave));
}

TEST(KernelTime, GroupedGemmCountsTilesOfEveryExpertNotOfTheirMean) {
    const Profile gpu = tiled_gpu();
    const std::vector<std::uint32_t> even(100, 128), one_more(100, 129);
    const GroupedGemm a{even, 128 * 4, 4096}, b{one_more, 128 * 4, 4096};
    // 129 rows need two tiles of 128: 800 tiles instead of 400.
    EXPECT_TRUE(close(kernel_time(gpu, "grouped_gemm", Precision::bf16, b).time.value,
                      2 * kernel_time(gpu, "grouped_gemm", Precision::bf16, a).time.value));
}

TEST(KernelTime, GroupedGemmWithoutTokensTakesNoTime) {
    const std::vector<std::uint32_t> none(8, 0);
    for (const char* kernel :
         {"grouped_gemm", "grouped_gemm_input_gradient", "grouped_gemm_weight_gradient"})
        EXPECT_EQ(kernel_time(tiled_gpu(), kernel, Precision::bf16, GroupedGemm{none, 512, 512})
                      .time.value,
                  0);
}

TEST(KernelTime, GradientsDoTheSameWorkAsTheForward) {
    const Profile core = plain_core();
    const Gemm shape{256, 512, 1024};
    const double forward = kernel_time(core, "gemm", Precision::fp32, shape).time.value;
    for (const char* kernel : {"gemm_input_gradient", "gemm_weight_gradient"})
        EXPECT_TRUE(close(kernel_time(core, kernel, Precision::fp32, shape).time.value, forward))
            << kernel;
}

TEST(KernelTime, AttentionCountsThePairsInsideTheWindow) {
    // Σᵢ min(i, w): s = 4, w = 2 → 1 + 2 + 2 + 2 = 7 pairs; no window: 1 + 2 + 3 + 4 = 10. 4 flops
    // a pair and head element.
    EXPECT_TRUE(close(attention_flops({1, 4, 1, 1, 1, 2}).value, 28));
    EXPECT_TRUE(close(attention_flops({1, 4, 1, 1, 1, std::nullopt}).value, 40));
    // A window longer than the sequence changes nothing.
    EXPECT_TRUE(close(attention_flops({1, 4, 1, 1, 1, 9}).value, 40));
}

Profile with_gemm_curve() {
    Profile profile = plain_core();
    KernelCurve curve;
    curve.kernel = "gemm";
    curve.precision = Precision::fp32;
    curve.columns = {"m", "n", "k", "median_s", "relative_spread", "num_samples"};
    // Efficiencies 0.5 at m = 64 and 0.9 at m = 1024 of the compute floor 2mnk/100 GFlop/s
    for (const auto& [m, efficiency] : {std::pair{64.0, 0.5}, std::pair{1024.0, 0.9}})
        curve.rows.push_back({m, 512, 512, 2 * m * 512 * 512 / 100e9 / efficiency, 0.01, 9});
    profile.kernels.push_back(curve);
    prepare(profile);
    return profile;
}

TEST(KernelTime, OnAPointReturnsWhatWasMeasured) {
    const Profile profile = with_gemm_curve();
    for (const auto& row : profile.kernels[0].rows) {
        const PricedTime time =
            kernel_time(profile, "gemm", Precision::fp32, Gemm{std::llround(row[0]), 512, 512});
        EXPECT_NEAR(time.time.value, row[3], 1e-12 * row[3]);
        EXPECT_EQ(time.basis, Basis::measured);
    }
}

TEST(KernelTime, BetweenPointsInterpolatesEfficiencyInLogShape) {
    // m = 256 lies half way between 64 and 1024 in log m: efficiency 0.7.
    const PricedTime time =
        kernel_time(with_gemm_curve(), "gemm", Precision::fp32, Gemm{256, 512, 512});
    EXPECT_NEAR(time.time.value, 2.0 * 256 * 512 * 512 / 100e9 / 0.7, 1e-9 * time.time.value);
    EXPECT_EQ(time.basis, Basis::interpolated);
}

TEST(KernelTime, FarOutsideTheCurvesSaysRoofline) {
    EXPECT_EQ(
        kernel_time(with_gemm_curve(), "gemm", Precision::fp32, Gemm{256, 512 * 8, 512}).basis,
        Basis::roofline);
    EXPECT_EQ(kernel_time(with_gemm_curve(), "gemm", Precision::fp32, Gemm{4, 512, 512}).basis,
              Basis::roofline);
    // Within a factor of two the edge answers.
    EXPECT_EQ(kernel_time(with_gemm_curve(), "gemm", Precision::fp32, Gemm{1500, 512, 512}).basis,
              Basis::interpolated);
}

TEST(KernelTime, OnACoreTheExpertsRunOneAfterAnother) {
    Profile profile = plain_core();
    KernelCurve curve;
    curve.kernel = "grouped_gemm";
    curve.precision = Precision::fp32;
    curve.columns = {"m", "n", "k", "num_experts", "median_s"};
    curve.rows = {{64, 256, 256, 4, 4e-3},
                  {128, 256, 256, 4, 6e-3}};  // an expert: 1 ms at 64 rows, 1.5 ms at 128
    profile.kernels.push_back(curve);
    prepare(profile);
    const std::vector<std::uint32_t> loads = {64, 128, 0, 64};
    const PricedTime time =
        kernel_time(profile, "grouped_gemm", Precision::fp32, GroupedGemm{loads, 256, 256});
    EXPECT_NEAR(time.time.value, 1e-3 + 1.5e-3 + 1e-3, 1e-12);
    EXPECT_EQ(time.basis, Basis::measured);
}

TEST(KernelTime, OwnCurveOfAStreamedKernelStandsBeforeTheCommonOne) {
    Profile profile = plain_core();
    profile.kernels.push_back(
        {"streamed", Precision::fp32, Basis::measured, "", {"bytes", "median_s"}, {{1e6, 1e-3}}});
    profile.kernels.push_back({"rope_forward",
                               Precision::fp32,
                               Basis::measured,
                               "",
                               {"bytes", "width", "median_s"},
                               {{1e6, 64, 2e-3}}});
    prepare(profile);
    EXPECT_NEAR(
        kernel_time(profile, "rope_forward", Precision::fp32, Streamed{{1e6}, 64}).time.value, 2e-3,
        1e-12);
    EXPECT_NEAR(kernel_time(profile, "residual_add", Precision::fp32, Streamed{{1e6}}).time.value,
                1e-3, 1e-12);
}

TEST(KernelTime, EveryKernelOfTheTrainerHasAPrice) {
    for (const StreamedKernel& kernel : streamed_kernels()) {
        const PricedTime time =
            kernel_time(plain_core(), kernel.name, Precision::fp32, Streamed{{1e6}});
        EXPECT_GT(time.time.value, 0) << kernel.name;
    }
}

TEST(Prepare, RefusesWhatIsNoTime) {
    Profile profile = plain_core();
    profile.kernels.push_back({"gemm",
                               Precision::fp32,
                               Basis::measured,
                               "",
                               {"m", "n", "k", "median_s"},
                               {{1, 1, 1, -1}}});
    EXPECT_THROW(prepare(profile), InputError);
    profile.kernels[0].rows = {{1, 1, 1, std::nan("")}};
    EXPECT_THROW(prepare(profile), InputError);
    profile.kernels[0].kernel = "gem";
    EXPECT_THROW(prepare(profile), InputError);
}

TEST(LinkTime, IsMeasuredOnAPointAndProportionalAboveTheLast) {
    Profile profile = plain_core();
    profile.links.push_back(
        {"all_to_all", 2, Basis::measured, "", {"bytes", "median_s"}, {{1e3, 1e-5}, {1e6, 1e-3}}});
    prepare(profile);
    EXPECT_NEAR(link_time(profile, "all_to_all", {1e6}, 2)->time.value, 1e-3, 1e-12);
    EXPECT_EQ(link_time(profile, "all_to_all", {1e6}, 2)->basis, Basis::measured);
    EXPECT_NEAR(link_time(profile, "all_to_all", {4e6}, 2)->time.value, 4e-3, 1e-12);
    EXPECT_FALSE(link_time(profile, "all_to_all", {1e6}, 3));
    // Between 2 ranks (1 ms) and 8 (4 ms), 4 lie half way in log ranks: √(1 · 4) ms. Beyond: nothing.
    profile.links.push_back(
        {"all_to_all", 8, Basis::measured, "", {"bytes", "median_s"}, {{1e6, 4e-3}}});
    prepare(profile);
    EXPECT_NEAR(link_time(profile, "all_to_all", {1e6}, 4)->time.value, 2e-3, 1e-12);
    EXPECT_EQ(link_time(profile, "all_to_all", {1e6}, 4)->basis, Basis::interpolated);
    EXPECT_FALSE(link_time(profile, "all_to_all", {1e6}, 16));
    // 1 kB at 0.1 GB/s where 1 MB reaches 1 GB/s
    EXPECT_NEAR(link_efficiency(profile, "all_to_all", {1e3}, 2), 0.1, 1e-9);
    EXPECT_EQ(link_efficiency(profile, "all_reduce", {1e3}, 2), 1);
}

TEST(SlowestOf, IsLinearInTheLogarithmsOfStretchAndRanks) {
    Profile profile = plain_core();
    EXPECT_EQ(slowest_of(profile, {1e-3}, 4), 1);  // not measured
    EXPECT_EQ(typical_of(profile, {1e-3}), 1);
    profile.stretches = StretchCurve{
        "",
        {0.1},
        {"num_ranks", "stretch_s", "slowest", "typical"},
        {{1, 1e-3, 1.1, 1.0}, {1, 1e-1, 1.3, 1.1}, {4, 1e-3, 1.5, 1.0}, {4, 1e-1, 1.9, 1.1}}};
    prepare(profile);
    EXPECT_DOUBLE_EQ(slowest_of(profile, {1e-3}, 1), 1.1);
    EXPECT_NEAR(slowest_of(profile, {1e-2}, 1), 1.2, 1e-12);   // half way between 1 and 100 ms
    EXPECT_NEAR(slowest_of(profile, {1e-2}, 2), 1.45, 1e-12);  // and 2 between 1 and 4: 1.2, 1.7
    EXPECT_DOUBLE_EQ(slowest_of(profile, {1e-6}, 64), 1.5);    // edges
    EXPECT_DOUBLE_EQ(slowest_of(profile, {10}, 1), 1.3);
    EXPECT_NEAR(typical_of(profile, {1e-2}), 1.05, 1e-12);
    profile.stretches->rows.pop_back();  // no grid
    EXPECT_THROW(prepare(profile), InputError);
}

}  // namespace
}  // namespace moeplan
