/// Experts and their copies where a file says, inside the step.

#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "core/errors.hpp"
#include "core/seed.hpp"
#include "simulator/step_graph.hpp"
#include "tests/simulator/step/cases.hpp"
#include "tests/tolerance.hpp"

namespace moeplan {
namespace {

ExpertPlacement on_ranks(int num_ranks, std::vector<std::vector<int>> ranks_of_expert) {
    return {"placement.json", num_ranks, {{0, std::move(ranks_of_expert)}}};
}
/// 8 experts on 4 ranks, two each, in order.
std::vector<std::vector<int>> blocks() { return {{0}, {0}, {1}, {1}, {2}, {2}, {3}, {3}}; }

StepCase case_on_four_ranks() {
    StepCase step = tests::small_case(1);
    step.layout = {1, 1, 1, 4, 4, 1};
    step.routing = SyntheticRouting{"hot", 4, 0};
    return step;
}
StepCase with(StepCase step, ExpertPlacement placement) {
    step.placement = std::make_shared<const ExpertPlacement>(std::move(placement));
    return step;
}
std::vector<double> rows_by_rank(const ExpertLoads& loads) {
    std::vector<double> out(loads.rows.size() / loads.experts_per_rank, 0);
    for (std::size_t i = 0; i < loads.rows.size(); ++i)
        out[i / loads.experts_per_rank] += loads.rows[i];
    return out;
}

TEST(Placed, ACopyTakesHalfOfTheHotExpertsRows) {
    // Two sources, experts 0 … 3 on two ranks. Source 0 sends 10 2 3 1, source 1 sends 7 4 0 5.
    // Alone, expert 0 makes 10 + 7 = 17 rows on rank 0. With a copy on rank 1:
    // source 0: 5 | 5, source 1: 7 = 3 | 4 (the odd one to the copy whose turn it is).
    const RoutingLoads loads{2, 4, {10, 2, 3, 1, 7, 4, 0, 5}};
    const PlacedLoads alone = placed(loads, LayerPlacement{0, {{0}, {0}, {1}, {1}}}, 2, 2);
    EXPECT_EQ(alone.rows, (std::vector<std::uint32_t>{17, 6, 3, 6}));
    EXPECT_EQ(alone.traffic, (std::vector<std::uint32_t>{12, 4, 11, 5}));
    const PlacedLoads copied = placed(loads, LayerPlacement{0, {{0, 1}, {0}, {1}, {1}}}, 2, 2);
    // rank 0: experts 0, 1, an empty slot; rank 1: experts 0, 2, 3
    EXPECT_EQ(copied.rows[0] + copied.rows[3], 17u);
    EXPECT_LE(std::max(copied.rows[0], copied.rows[3]), 9u);
    EXPECT_EQ(copied.rows[1], 6u);
    EXPECT_EQ(copied.rows[2], 0u);
    EXPECT_EQ(copied.rows[4], 3u);
    EXPECT_EQ(copied.rows[5], 6u);
}

TEST(Placed, BlocksInOrderAreWhatNoPlacementDoes) {
    const StepCase step = case_on_four_ranks();
    const StepGraph plain = build_step_graph(step),
                    same = build_step_graph(with(step, on_ranks(4, blocks())));
    // hot routing is drawn in another order where it is placed: the trace of one law
    ASSERT_EQ(plain.loads.size(), same.loads.size());
    EXPECT_EQ(plain.loads.front().experts_per_rank, same.loads.front().experts_per_rank);
    StepCase even = step;
    even.routing = SyntheticRouting{};
    EXPECT_EQ(estimate_step(even).step_time,
              estimate_step(with(even, on_ranks(4, blocks()))).step_time);
}

TEST(Placed, NoRowIsLostOrCountedTwice) {
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
        DrawStream stream(derive(Seed{seed}, "placement"));
        const int places = static_cast<int>(1 + stream.below(6)),
                  experts = static_cast<int>(1 + stream.below(12)),
                  blocks = static_cast<int>(1 + stream.below(3)), sources = places * blocks;
        RoutingLoads loads{sources, experts, {}};
        for (int i = 0; i < sources * experts; ++i)
            loads.sub_tokens.push_back(static_cast<std::uint32_t>(stream.below(50)));
        LayerPlacement layer;
        for (int e = 0; e < experts; ++e) {
            auto& ranks = layer.ranks_of_expert.emplace_back();
            for (int r = 0; r < places; ++r)
                if (stream.below(3) == 0) ranks.push_back(r);
            if (ranks.empty()) ranks.push_back(static_cast<int>(stream.below(places)));
        }
        const PlacedLoads out = placed(loads, layer, places, places);
        // what a source sends in all is what it chose, and what a block works on is what it was sent
        for (int s = 0; s < sources; ++s)
            EXPECT_EQ(std::accumulate(out.traffic.begin() + s * places,
                                      out.traffic.begin() + (s + 1) * places, 0u),
                      std::accumulate(loads.sub_tokens.begin() + s * experts,
                                      loads.sub_tokens.begin() + (s + 1) * experts, 0u));
        const int slots = slots_per_rank(layer, places);
        for (int b = 0; b < blocks; ++b)
            for (int r = 0; r < places; ++r) {
                std::uint32_t sent = 0;
                for (int s = b * places; s < (b + 1) * places; ++s)
                    sent += out.traffic[s * places + r];
                const auto first = out.rows.begin() + (b * places + r) * slots;
                EXPECT_EQ(std::accumulate(first, first + slots, 0u), sent);
            }
        // and copies differ by what does not divide, one row a source at most
        for (int e = 0; e < experts; ++e) {
            const auto& ranks = layer.ranks_of_expert[e];
            if (ranks.size() < 2) continue;
            std::vector<std::uint32_t> shares;
            for (const int r : ranks) {
                int slot = 0;
                for (int other = 0; other < e; ++other)
                    slot += std::count(layer.ranks_of_expert[other].begin(),
                                       layer.ranks_of_expert[other].end(), r);
                shares.push_back(out.rows[r * slots + slot]);
            }
            const auto [least, most] = std::minmax_element(shares.begin(), shares.end());
            EXPECT_LE(*most - *least, static_cast<std::uint32_t>(places)) << "expert " << e;
        }
    }
}

TEST(Placed, ACopyOfTheHotExpertMakesTheStepShorter) {
    // hot:4: one expert gets four times the mean, half of all choices: 4 · T·k/8.
    const StepCase step = case_on_four_ranks();
    const StepCase alone = with(step, on_ranks(4, blocks()));
    const StepGraph graph = build_step_graph(alone);
    // which expert is hot is drawn; its rank is the fullest
    const auto rows = rows_by_rank(graph.loads.front());
    const int full = static_cast<int>(std::max_element(rows.begin(), rows.end()) - rows.begin());
    auto copied = blocks();
    for (int e = 2 * full; e < 2 * full + 2; ++e) {
        copied[e] = {full, (full + 1) % 4};
        std::sort(copied[e].begin(), copied[e].end());
    }
    const StepCase both = with(step, on_ranks(4, copied));
    const auto shared = rows_by_rank(build_step_graph(both).loads.front());
    EXPECT_LT(shared[full], rows[full] / 2 + 4 + 1);  // half, and an odd row of each source
    EXPECT_EQ(std::accumulate(shared.begin(), shared.end(), 0.0),
              std::accumulate(rows.begin(), rows.end(), 0.0));
    EXPECT_LT(estimate_step(both).load_imbalance.front(),
              estimate_step(alone).load_imbalance.front());
    EXPECT_LT(estimate_step(both).step_time, estimate_step(alone).step_time);
    EXPECT_LT(simulate_step(both).step_time, simulate_step(alone).step_time);
    // two copies on a rank of two experts: twice the experts' memory
    EXPECT_EQ(expert_copies(both), 2);
    EXPECT_GT(estimate_step(both).peak_memory.front(), estimate_step(alone).peak_memory.front());
}

TEST(Placed, AFileOfAnotherModelOrLayoutIsRefused) {
    StepCase step = case_on_four_ranks();
    const auto message = [&](const ExpertPlacement& placement) -> std::string {
        try {
            build_step_graph(with(step, placement));
        } catch (const InputError& error) {
            return error.what();
        }
        return "";
    };
    EXPECT_NE(message(on_ranks(2, {{0}, {0}, {0}, {0}, {1}, {1}, {1}, {1}})).find("/num_ranks is 2"),
              std::string::npos);
    EXPECT_NE(message(on_ranks(4, {{0}, {1}, {2}, {3}})).find("4 experts"), std::string::npos);
    const auto read = [](const std::string& layers) -> std::string {
        const std::string text =
            R"({"$schema": "moeplan/placement.schema.json", "version": 1, "num_ranks": 2, "layers": )" +
            layers + "}";
        try {
            placement_from_json(JsonReader::from_text(text, "p.json"));
        } catch (const InputError& error) {
            return error.what();
        }
        return "";
    };
    EXPECT_EQ(read(R"([{"moe_layer": 0, "ranks_of_expert": [[0], [0, 1]]}])"), "");
    for (const auto& [layers, place] :
         {std::pair{R"([{"moe_layer": 0, "ranks_of_expert": [[0], [2]]}])",
                    "/layers/0/ranks_of_expert/1/0"},
          std::pair{R"([{"moe_layer": 0, "ranks_of_expert": [[0], []]}])",
                    "/layers/0/ranks_of_expert/1"},
          std::pair{R"([{"moe_layer": 0, "ranks_of_expert": [[1, 1]]}])",
                    "/layers/0/ranks_of_expert/0/1"},
          std::pair{R"([{"moe_layer": 1, "ranks_of_expert": [[0]]}])", "/layers/0/moe_layer"},
          std::pair{R"([{"moe_layer": 0, "ranks_of_expert": [[0]]}, {"moe_layer": 1, "ranks_of_expert": [[0], [1]]}])",
                    "/layers/1/ranks_of_expert"},
          std::pair{R"([{"moe_layer": 0, "ranks_of_experts": [[0]]}])", "ranks_of_experts"},
          std::pair{"[]", "/layers"}})
        EXPECT_NE(read(layers).find(place), std::string::npos) << read(layers);
}

TEST(Placed, TheCaseFileCarriesIt) {
    const StepCase step = with(case_on_four_ranks(), on_ranks(4, blocks()));
    const StepCase again =
        step_case_from_json(JsonReader::from_text(to_json(step).dump(), "case"));
    ASSERT_TRUE(again.placement);
    EXPECT_EQ(again.placement->layers, step.placement->layers);
    StepCase without = again;
    without.placement = nullptr;
    EXPECT_NE(digest_of(again), digest_of(without));
}

}  // namespace
}  // namespace moeplan
