#include "planner/placement/placement.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "core/errors.hpp"
#include "core/seed.hpp"

namespace moeplan {
namespace {

TEST(BalancedPlacement, LongestFirstOnAHandWorkedCase) {
    // Loads 7 5 4 2 on two ranks of two slots: 7 | 5 → 5+4 is the lighter: 7 | 5+4 → 7+2 | 5+4 = 9
    // | 9.
    const LayerPlacement placed = balanced_placement({7, 5, 4, 2}, 2);
    EXPECT_EQ(placed.ranks_of_expert, (std::vector<std::vector<int>>{{0}, {1}, {1}, {0}}));
    EXPECT_DOUBLE_EQ(rank_imbalance({7, 5, 4, 2}, placed, 2), 1);
    // Contiguous: 12 | 6 → 12 · 2 / 18
    EXPECT_DOUBLE_EQ(rank_imbalance({7, 5, 4, 2}, contiguous_placement(4, 2), 2), 24.0 / 18);
}

TEST(BalancedPlacement, ASpareSlotSplitsTheHottestExpert) {
    // Loads 8 1 1 0 on two ranks: whole, the 8 makes 8 | 2 = 1.6. Two spare slots split 8 into 4 +
    // 4 and one 1 into ½ + ½: 4 + 1 + ½ | 4 + ½ = 5.5 | 4.5 = 1.1.
    const std::vector<double> load = {8, 1, 1, 0};
    EXPECT_DOUBLE_EQ(rank_imbalance(load, balanced_placement(load, 2), 2), 1.6);
    const LayerPlacement copied = balanced_placement(load, 2, 1);
    EXPECT_EQ(copied.ranks_of_expert[0], (std::vector<int>{0, 1}));
    EXPECT_DOUBLE_EQ(rank_imbalance(load, copied, 2), 1.1);
}

TEST(BalancedPlacement, EveryExpertHasAPlaceAndNoRankMoreThanItsSlots) {
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
        DrawStream stream(derive(Seed{seed}, "placement"));
        const int ranks = 1 << stream.below(5),
                  experts = ranks * static_cast<int>(1 + stream.below(8));
        const int spare = static_cast<int>(stream.below(3));
        std::vector<double> popularity;
        for (int e = 0; e < experts; ++e) popularity.push_back(std::pow(stream.uniform(), 4));
        const LayerPlacement placed = balanced_placement(popularity, ranks, spare);
        std::vector<int> held(ranks, 0);
        for (const auto& of_expert : placed.ranks_of_expert) {
            ASSERT_FALSE(of_expert.empty());
            EXPECT_EQ(std::set<int>(of_expert.begin(), of_expert.end()).size(), of_expert.size());
            for (const int r : of_expert) ++held.at(r);
        }
        EXPECT_LE(*std::max_element(held.begin(), held.end()), experts / ranks + spare);
        EXPECT_LE(rank_imbalance(popularity, placed, ranks), ranks + 1e-9);
    }
}

TEST(PlaceExperts, PopularityThatLastsIsPlacedAwayAndCheckedOnLaterSteps) {
    // Counts: experts 0 and 1 take 40 each, 2 and 3 take 10 each, in every step: contiguous 80 | 20
    // = 1.6, placed 50 | 50 = 1.
    const auto file = std::filesystem::temp_directory_path() / "moeplan_place_experts_test.h5";
    TraceHeader header;
    header.model = "test";
    header.source = "synthetic:test";
    header.num_moe_layers = 1;
    header.num_experts = 4;
    header.top_k = 1;
    header.tokens_per_step = 100;
    header.counts_only = true;
    {
        TraceWriter writer(file, header);
        for (int step = 0; step < 8; ++step) {
            TraceStep one;
            one.step = step;
            one.counts = {{40, 40, 10, 10}};
            writer.add(one);
        }
        writer.finish();
    }
    const PlacementReport report = place_experts(TraceReader(file), 2, 0);
    EXPECT_DOUBLE_EQ(report.contiguous, 1.6);
    EXPECT_DOUBLE_EQ(report.placed, 1);
    EXPECT_EQ(report.steps_from, 4);
    EXPECT_EQ(report.steps_to, 6);
    EXPECT_THROW(place_experts(TraceReader(file), 3, 0), InputError);
    std::filesystem::remove(file);
}

}  // namespace
}  // namespace moeplan
