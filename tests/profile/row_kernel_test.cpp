#include "profiler/row_kernel.hpp"

#include <gtest/gtest.h>

#include "core/seed.hpp"

namespace moeplan {
namespace {

/// Rows of 40 ranks with 3 experts: idle ranks and experts, equal neighbours, a few and very many.
std::vector<std::uint32_t> rows_of_ranks() {
    DrawStream draws{Seed{17}};
    std::vector<std::uint32_t> rows;
    for (int rank = 0; rank < 40; ++rank)
        for (int e = 0; e < 3; ++e)
            rows.push_back(rank == 5 || draws.below(4) == 0
                               ? 0
                               : static_cast<std::uint32_t>(draws.below(rank % 2 ? 40'000 : 300)));
    for (int e = 0; e < 3; ++e) rows[3 * 8 + e] = rows[3 * 7 + e];
    return rows;
}

TEST(RowKernel, IsTheKernelsTimeOfEachRankToTheBit) {
    const std::vector<std::uint32_t> rows = rows_of_ranks();
    const std::vector<std::pair<const char*, KernelShape>> kernels = {
        {"grouped_gemm", GroupedGemm{{}, 4096, 7168}},
        {"grouped_gemm_input_gradient", GroupedGemm{{}, 4096, 7168}},
        {"grouped_gemm_weight_gradient", GroupedGemm{{}, 7168, 2048}},
        {"swiglu_forward", Streamed{Bytes{12288}, 2048}},
        {"permute_backward", Streamed{Bytes{28672}, 7168}},
        {"rms_norm_forward", Streamed{Bytes{8192}, 2048}},
        {"copy", Streamed{Bytes{0}, 7168}}};
    std::vector<std::string> names = shipped_profiles();
    ASSERT_GT(names.size(), 10u);
    int compared = 0;
    for (const std::string& name : names) {
        const Profile profile = load_profile(name);
        const ExpertRows ranks = expert_rows(profile, rows, 3);
        for (const auto& [kernel, shape] : kernels)
            for (const Precision precision : {Precision::bf16, Precision::fp8, Precision::fp32}) {
                const RowKernel prepared(profile, kernel, precision, shape);
                std::vector<double> seconds(ranks.counts.num_ranks(), -1);
                prepared.times(ranks, seconds);
                for (std::size_t rank = 0; rank < seconds.size(); ++rank) {
                    const double sum = ranks.counts.rows[rank];
                    if (sum == 0) {
                        EXPECT_EQ(seconds[rank], 0);
                        continue;
                    }
                    KernelShape one = shape;
                    if (auto* grouped = std::get_if<GroupedGemm>(&one))
                        grouped->m = ranks.of(rank);
                    else
                        std::get<Streamed>(one).moved *= sum;
                    const PricedTime alone = kernel_time(profile, kernel, precision, one);
                    ASSERT_EQ(seconds[rank], alone.time.value)
                        << name << " " << kernel << " rank " << rank;
                    const PricedTime again = prepared.time(ranks, rank);
                    ASSERT_EQ(again.time.value, alone.time.value);
                    ASSERT_EQ(again.basis, alone.basis);
                    ++compared;
                }
            }
    }
    EXPECT_GT(compared, 5000);
}

/// The strips of a tile's height, ⌈m/height⌉ each, and waves counted as the formula has them.
TEST(GroupedProduct, IsTheFormulaWorkedOutExpertByExpert) {
    // 100 multiprocessors of 1 TFlop/s, tiles 128 × 128 and 64 × 128. Rows 130, 0, 64 of n = 1024,
    // k = 512: 2 + 1 = 3 strips of 128 or 3 + 1 = 4 of 64, 8 columns of tiles: 24 and 32 tiles,
    // one wave each. 2·128·128·(512 + 100)/1e12 and 2·64·128·612/1e12: the smaller tile.
    GemmModel model;
    model.tiles = {{128, 128}, {64, 128}};
    model.pipeline_depth = 100;
    model.wave_quantisation = 1;
    const ProductRates rates{{100e12}, 1, {1e18}, 100, 1};
    const std::vector<std::uint32_t> rows = {130, 0, 64};
    EXPECT_DOUBLE_EQ(
        grouped_product_time(model, rates, GemmKind::forward, {rows, 1024, 512}, {2, 2}, 0).value,
        2.0 * 64 * 128 * 612 / 1e12);
    // Its weight gradient is [512, 1024] of the mean depth 194/2 = 97 for each of 2 experts:
    // 2 · 4 · 8 = 64 tiles of 128, one wave; 2 · 8 · 8 = 128 of 64, two waves of half the length.
    EXPECT_DOUBLE_EQ(
        grouped_product_time(model, rates, GemmKind::weight_gradient, {rows, 1024, 512}, {2, 2}, 0)
            .value,
        2.0 * 128 * 128 * 197 / 1e12);
}

}  // namespace
}  // namespace moeplan
