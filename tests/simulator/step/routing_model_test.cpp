#include "simulator/routing_model.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "core/errors.hpp"
#include "tests/simulator/step/cases.hpp"

namespace moeplan {
namespace {

RoutingModel model_of(const std::string& kind, double figure = 0, std::uint64_t seed = 1) {
    SyntheticRouting routing;
    routing.kind = kind;
    (kind == "document_pools" ? routing.document_concentration : routing.exponent) = figure;
    return RoutingModel(tests::small_model(), routing, {4, 512, 512}, seed);
}

TEST(RoutingModel, EveryChoiceOfEverySourceArrives) {
    // Σ over experts = T·k for each source, dropless
    for (const auto& [kind, figure] :
         {std::pair{"balanced", 0.0}, std::pair{"multinomial", 0.0}, std::pair{"zipf", 1.2},
          std::pair{"hot", 3.0}, std::pair{"document_pools", 1.0}}) {
        const auto routing = model_of(kind, figure);
        for (int layer = 0; layer < 4; ++layer) {
            const RoutingLoads loads = routing.loads(layer, 3);
            ASSERT_EQ(loads.sub_tokens.size(), 4u * 8);
            for (int s = 0; s < 4; ++s)
                EXPECT_EQ(std::accumulate(loads.sub_tokens.begin() + s * 8,
                                          loads.sub_tokens.begin() + s * 8 + 8, 0),
                          512 * 2)
                    << kind;
        }
    }
}

TEST(RoutingModel, AskingInAnotherOrderChangesNothingAnotherSeedDoes) {
    const auto a = model_of("zipf", 1.0), b = model_of("zipf", 1.0), c = model_of("zipf", 1.0, 2);
    const auto late = a.loads(2, 5).sub_tokens;
    b.loads(0, 0);
    EXPECT_EQ(late, b.loads(2, 5).sub_tokens);
    EXPECT_NE(late, c.loads(2, 5).sub_tokens);
}

TEST(RoutingModel, BalancedIsEvenAndTheSameEverywhere) {
    const auto routing = model_of("balanced");
    EXPECT_TRUE(routing.same_everywhere());
    for (const auto rows : routing.loads(1, 2).sub_tokens) EXPECT_EQ(rows, 512u * 2 / 8);
}

TEST(RoutingModel, CapacityCutsWhatIsAboveIt) {
    ModelSpec model = tests::small_model();
    for (auto& layer : model.layers)
        std::get<MoeFeedForward>(layer.feed_forward).capacity_factor = 1.0;
    SyntheticRouting zipf{"zipf", 1.2, 0};
    const RoutingModel routing(model, zipf, {4, 512, 512}, 1);
    const auto loads = routing.loads(0, 0).sub_tokens;
    EXPECT_LE(*std::max_element(loads.begin(), loads.end()), 512u * 2 / 8);  // ⌈1·T·k/E⌉
}

TEST(RoutingModel, UnknownKindIsRefused) { EXPECT_THROW(model_of("unheard_of"), InputError); }

}  // namespace
}  // namespace moeplan
