#include "profiler/gemm_model.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "profiler/curve_index.hpp"
#include "profiler/profile.hpp"
#include "profiler/residual_surface.hpp"
#include "tests/tolerance.hpp"

namespace moeplan {
namespace {

/// 100 multiprocessors of 1 TFlop/s each, one tile, k₀ = 100, no other loss.
GemmModel plain_model() {
    GemmModel model;
    model.tiles = {{128, 128}};
    model.pipeline_depth = 100;
    model.wave_quantisation = 1;
    model.launch = {2e-6};
    model.split = {5e-6};
    return model;
}
ProductRates plain_rates() { return {{100e12}, 1, {1e15}, 100, 1}; }

TEST(ProductTime, IsWavesOfTilesWithAFilledPipeline) {
    // 1280 × 1408: 110 tiles, 1.1 waves counted 2; a tile takes 2·128²·(1000 + 100) flops at 1
    // TFlop/s. k = 1000 is too shallow to split (512 each).
    const double tile = 2.0 * 128 * 128 * 1100 / 1e12;
    EXPECT_TRUE(
        close(product_time(plain_model(), plain_rates(), {1280, 1408, 1000}, {2, 2}, 0).value,
              2e-6 + 2 * tile));
}

TEST(ProductTime, SplitsADeepProductOfFewTiles) {
    // 10 tiles of depth 8192 on 100 multiprocessors: in 8 parts 80 tiles, one wave of 1024 + 100, 5
    // us for the split.
    EXPECT_TRUE(
        close(product_time(plain_model(), plain_rates(), {128, 1280, 8192}, {2, 2}, 0).value,
              2e-6 + 5e-6 + 2.0 * 128 * 128 * 1124 / 1e12));
}

TEST(ProductTime, NarrowFormatsShortenTheLoopNotThePipeline) {
    ProductRates narrow = plain_rates();
    narrow.narrow = 2;
    // one wave: (1000/2 + 100) in place of 1100
    EXPECT_TRUE(close(product_time(plain_model(), narrow, {128, 128, 1000}, {1, 2}, 0).value,
                      2e-6 + 2.0 * 128 * 128 * 600 / 1e12));
}

TEST(GroupedProductTime, OfOneExpertIsTheProduct) {
    GemmModel model = plain_model();
    const std::vector<std::uint32_t> one = {1000}, idle = {0, 1000, 0};
    const Seconds product = product_time(model, plain_rates(), {1000, 512, 256}, {2, 2}, 0);
    for (const auto& m : {one, idle})
        EXPECT_TRUE(close(
            grouped_product_time(model, plain_rates(), GemmKind::forward, {m, 512, 256}, {2, 2}, 0)
                .value,
            product.value));
}

TEST(ResidualSurface, ShrinksEachPointTowardsTheMeanByItsNoise) {
    // Two points that do not resemble each other (20 octaves): y = ±0.2 around 0. Variance v = 0.2²
    // − 0.1², at a point: y·v/(v + noise²) = 0.2·0.03/0.04.
    const ResidualSurface surface({{{0, 0, 0}, 0.2}, {{20, 0, 0}, -0.2}}, {1, 0.05, 0.1});
    EXPECT_NEAR(std::log(surface.ratio({0, 0, 0})), 0.15, 1e-6);
    EXPECT_NEAR(std::log(surface.ratio({20, 0, 0})), -0.15, 1e-6);
    // Far from both: the mean.
    EXPECT_NEAR(surface.ratio({10, 0, 0}), 1, 1e-6);
    EXPECT_TRUE(surface.covers({21, 1, -1}));
    EXPECT_FALSE(surface.covers({21.1, 0, 0}));
}

TEST(ResidualSurface, OfNoPointsChangesNothing) {
    EXPECT_EQ(ResidualSurface().ratio({1, 2, 3}), 1);
}

const std::int64_t kRows[] = {128, 1000, 1024, 4096, 16384, 32768};
const std::int64_t kSizes[] = {512, 1024, 2048, 4096, 7168, 14336};

void never_slower(const Profile& fast, Precision fast_precision, const Profile& slow,
                  Precision slow_precision) {
    for (const char* kernel : {"gemm", "gemm_input_gradient", "gemm_weight_gradient"})
        for (const std::int64_t m : kRows)
            for (const std::int64_t n : kSizes)
                for (const std::int64_t k : kSizes) {
                    const double
                        a = kernel_time(fast, kernel, fast_precision, Gemm{m, n, k}).time.value,
                        b = kernel_time(slow, kernel, slow_precision, Gemm{m, n, k}).time.value;
                    ASSERT_LE(a, b * (1 + 1e-12))
                        << fast.name << ' ' << name_of(fast_precision) << " against " << slow.name
                        << ' ' << name_of(slow_precision) << ' ' << kernel << ' ' << m << ' ' << n
                        << ' ' << k;
                }
}

TEST(ShippedProfiles, ANewerGpuIsNeverSlower) {
    const std::pair<const char*, const char*> pairs[] = {{"a100-sxm-80", "a100-sxm-40"},
                                                         {"h100-sxm", "a100-sxm-80"},
                                                         {"h200-sxm", "h100-sxm"},
                                                         {"h100-sxm", "h100-96-hbm2e-500w"},
                                                         {"gb200", "b200-sxm"},
                                                         {"b300-sxm", "b200-sxm"},
                                                         {"gb300", "gb200"}};
    for (const auto& [newer, older] : pairs)
        never_slower(load_profile(newer), Precision::bf16, load_profile(older), Precision::bf16);
    Profile b200 = load_profile("b200-sxm"), h200 = load_profile("h200-sxm");
    b200.calibration = h200.calibration =
        Calibration{};  // as benchmarked: generations hold different shares of it
    never_slower(b200, Precision::bf16, h200, Precision::bf16);
}

TEST(ShippedProfiles, ANarrowerFormatIsNeverSlower) {
    int compared = 0;
    for (const std::string& name : shipped_profiles()) {
        const Profile profile = load_profile(name);
        const auto& peak = profile.roofline.peak;
        for (const auto& [narrow, wide] : {std::pair{Precision::fp8, Precision::bf16},
                                           {Precision::mxfp8, Precision::bf16},
                                           {Precision::nvfp4, Precision::mxfp8}})
            if (peak.count(narrow) && peak.count(wide)) {
                never_slower(profile, narrow, profile, wide);
                ++compared;
            }
    }
    EXPECT_EQ(compared, 16);  // fp8 of eight GPUs, mxfp8 and nvfp4 of four
}

TEST(ShippedProfiles, NameTheSourceOfEveryCurve) {
    for (const std::string& name : shipped_profiles())
        for (const KernelCurve& curve : load_profile(name).kernels)
            EXPECT_THAT(curve.source, testing::HasSubstr("https://")) << name;
}

TEST(MovedProfile, ScalesFloorsAndKeepsEfficiencies) {
    Profile here;
    here.name = "here";
    here.roofline.peak[Precision::fp32] = {1e12};
    here.roofline.memory_bandwidth = {1e12};
    here.kernels.push_back({"gemm",
                            Precision::fp32,
                            Basis::measured,
                            "",
                            {"m", "n", "k", "median_s"},
                            {{1024, 1024, 1024, 4e-3}},
                            {}});
    prepare(here);
    Roofline twice = here.roofline;
    twice.peak[Precision::fp32] = {2e12};
    const Profile there = moved_to(here, "there", twice);
    const PricedTime time = kernel_time(there, "gemm", Precision::fp32, Gemm{1024, 1024, 1024});
    EXPECT_NEAR(time.time.value, 2e-3, 1e-12);
    EXPECT_EQ(time.basis, Basis::published);  // no longer measured
    EXPECT_EQ(there.kernels[0].measured_on->name, "here");
}

}  // namespace
}  // namespace moeplan
