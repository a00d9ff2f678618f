/// Laws of every routing, and what is refused.

#include <gtest/gtest.h>

#include "core/errors.hpp"
#include "model/routing/routing_rule.hpp"
#include "tests/model/layers/small_models.hpp"

namespace moeplan {
namespace {

TEST(RoutingRegistry, NamesAreKnownAndANearOneIsSuggested) {
    for (const RoutingRule* rule : routing_rules())
        EXPECT_EQ(&routing_rule(std::string(rule->name)), rule);
    try {
        routing_rule("swich", "m.json");
        FAIL();
    } catch (const InputError& error) {
        EXPECT_NE(std::string(error.what()).find("did you mean switch"), std::string::npos)
            << error.what();
    }
}

TEST(RoutingRules, ImpossibleShapesAreRefused) {
    const auto refused = [](auto change) {
        MoeFeedForward moe = testing::small_moe();
        change(moe);
        EXPECT_THROW(check_routing(moe, 8, "m.json"), InputError);
    };
    refused([](auto& m) { m.top_k = 5; });                                     // k > E
    refused([](auto& m) { m.num_moe_heads = 3; });                             // d % h
    refused([](auto& m) { m.routing = "emo"; });                               // no pool
    refused([](auto& m) { m.routing = "emo", m.pool = DocumentPool{1, 4}; });  // k > pool
    refused([](auto& m) { m.pool = DocumentPool{2, 4}; });           // a pool without its routing
    refused([](auto& m) { m.routing = "switch"; });                  // k = 2
    refused([](auto& m) { m.routing = "x_moe"; });                   // no reduced width
    refused([](auto& m) { m.num_groups = 3, m.top_k_groups = 1; });  // E % groups
    refused([](auto& m) { m.capacity_factor = 0.0; });
    refused([](auto& m) { m.routing = "domain", m.num_groups = 4; });  // blocks of 1 expert, k = 2
    EXPECT_NO_THROW(check_routing(testing::small_moe(), 8, "m.json"));
}

TEST(Capacity, IsRoundedUpAndAtLeastOne) {
    MoeFeedForward moe = testing::small_moe();
    EXPECT_EQ(expert_capacity(moe, 100), 0);  // dropless
    moe.capacity_factor = 1.0;
    // ⌈f · k · U / E⌉ = ⌈2 · 101 / 4⌉ = 51.
    EXPECT_EQ(expert_capacity(moe, 101), 51);
    moe.num_experts = 1000;
    EXPECT_EQ(expert_capacity(moe, 100), 1);
}

TEST(Capacity, OfMultiHeadLayersAsTheirCodeGivesIt) {
    // C = k · T·h / N at 32,768 tokens of width d: slots N · C · d/h are k · T · d elements.
    struct Shape {
        int heads, experts, top_k;
        std::int64_t capacity;
    };
    for (const Shape& shape : {Shape{1, 8, 1, 4096}, {4, 8, 2, 32768}, {4, 32, 2, 8192}}) {
        MoeFeedForward moe = testing::small_moe();
        moe.num_experts = shape.experts;
        moe.top_k = shape.top_k;
        moe.capacity_factor = 1.0;
        const std::int64_t capacity = expert_capacity(moe, std::int64_t(32768) * shape.heads);
        EXPECT_EQ(capacity, shape.capacity);
        EXPECT_EQ(shape.experts * capacity * 768 / shape.heads, shape.top_k * 25'165'824);
    }
}

}  // namespace
}  // namespace moeplan
