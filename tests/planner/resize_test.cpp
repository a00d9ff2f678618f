/// Parity rules against hand-worked shapes: MH1 (arXiv 2404.15045), MH2 (arXiv 2411.16205).

#include "planner/resize.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/op_counts.hpp"
#include "tests/tolerance.hpp"

namespace moeplan {
namespace {

MoeFeedForward plain_moe(int experts, int top_k, int width, Activation activation) {
    MoeFeedForward out;
    out.num_experts = experts;
    out.top_k = top_k;
    out.expert_hidden_size = width;
    out.activation = activation;
    return out;
}

ModelSpec model_of(int hidden_size, const MoeFeedForward& moe) {
    ModelSpec out;
    out.name = "test";
    out.hidden_size = hidden_size;
    out.vocab_size = 1000;
    GroupedQueryAttention attention;
    attention.num_attention_heads = attention.num_kv_heads = hidden_size / 64;
    attention.head_size = 64;
    out.layers = {{attention, moe, std::nullopt}};
    return out;
}

ResizeRule rule(Parity parity) {
    ResizeRule out;
    out.parity = parity;
    return out;
}

/// Multiply-accumulates of experts, head and merge of one token, router left out.
double macs(int d, const MoeFeedForward& moe) {
    const double m = moe.activation == Activation::swiglu ? 3 : 2;
    return m * moe.top_k * d * moe.expert_hidden_size + (moe.num_moe_heads > 1 ? 2.0 * d * d : 0);
}

// MH2's baseline: d = 768, E = 8, top-1, f = 2048, SwiGLU.
const MoeFeedForward kMh2 = plain_moe(8, 1, 2048, Activation::swiglu);

TEST(RuleC, GivesTheInnerWidthsThatMh2Used) {
    // f = (k0 f0 − 2d/m) / k: h = 2, k = 2: (2048 − 512)/2 = 768; h = 3, k = 3: 1536/3 = 512
    EXPECT_TRUE(
        close(exact_shape(768, kMh2, {2, 8, 2, {}}, rule(Parity::rule_c)).expert_hidden_size, 768));
    EXPECT_TRUE(
        close(exact_shape(768, kMh2, {3, 8, 3, {}}, rule(Parity::rule_c)).expert_hidden_size, 512));
}

TEST(RuleC, GivesTheExpertCountsThatMh2Rounded) {
    // E = (m d f0 E0 − 2d²) / (m (d/h) f): 36,569,088 / 884,736 = 41.3 and 36,569,088 / 393,216
    // = 93.0
    EXPECT_NEAR(exact_shape(768, kMh2, {2, 8, 2, {}}, rule(Parity::rule_c)).num_experts, 41.3,
                0.05);
    EXPECT_NEAR(exact_shape(768, kMh2, {3, 8, 3, {}}, rule(Parity::rule_c)).num_experts, 93.0,
                0.05);
    const ModelSpec model = model_of(768, kMh2);
    EXPECT_EQ(resize(model, {2, 8, 2, {}}, rule(Parity::rule_c), 2048).shape.num_experts, 40);
    EXPECT_EQ(resize(model, {3, 8, 3, {}}, rule(Parity::rule_c), 2048).shape.num_experts, 96);
}

TEST(RuleC, KeepsMultiplyAccumulatesExactlyEqual) {
    // 4,718,592 a token for SMoE, h = 2 and h = 3 alike
    const ModelSpec model = model_of(768, kMh2);
    EXPECT_DOUBLE_EQ(macs(768, kMh2), 4718592);
    for (const MoeShape& shape :
         {MoeShape{2, 8, 2, {}}, MoeShape{3, 8, 3, {}}, MoeShape{1, 16, 2, {}}}) {
        const ResizedModel resized = resize(model, shape, rule(Parity::rule_c), 2048);
        EXPECT_DOUBLE_EQ(macs(768, *first_moe(resized.model)), 4718592);
    }
}

TEST(RuleC, ParametersOfMh2sModelsAreThreePercentApart) {
    // 37,748,736 → 36,569,088 (−3.1 %) and 38,928,384 (+3.1 %): experts, head and merge of one
    // layer
    const auto weights = [](const MoeFeedForward& moe) {
        return 3.0 * (768.0 / moe.num_moe_heads) * moe.expert_hidden_size * moe.num_experts +
               (moe.num_moe_heads > 1 ? 2.0 * 768 * 768 : 0);
    };
    const ModelSpec model = model_of(768, kMh2);
    EXPECT_DOUBLE_EQ(weights(kMh2), 37748736);
    EXPECT_DOUBLE_EQ(
        weights(*first_moe(resize(model, {2, 8, 2, {}}, rule(Parity::rule_c), 2048).model)),
        36569088);
    EXPECT_DOUBLE_EQ(
        weights(*first_moe(resize(model, {3, 8, 3, {}}, rule(Parity::rule_c), 2048).model)),
        38928384);
}

TEST(RuleC, Mh2sTextExampleHolds) {
    // two matrices, f0 = 4d, k = 1, h = 3: f = 3d, E = 4 E0 − 1
    const int d = 120;
    const ExactShape exact = exact_shape(d, plain_moe(8, 1, 4 * d, Activation::relu), {3, 8, 1, {}},
                                         rule(Parity::rule_c));
    EXPECT_TRUE(close(exact.expert_hidden_size, 3 * d));
    EXPECT_TRUE(close(exact.num_experts, 4 * 8 - 1));
}

TEST(RuleC, FlopsOfTheExpertsDoNotDependOnTheHeads) {
    for (const int heads : {2, 4, 8})
        EXPECT_TRUE(close(
            exact_shape(768, kMh2, {heads, 8, 2, {}}, rule(Parity::rule_c)).expert_hidden_size,
            768));
}

TEST(RuleC, ExpertsTooNarrowToPayForHeadAndMergeAreRefusedWithTheReason) {
    // f0 ≤ 2d/(m k0) = 512 at d = 768, m = 3, k0 = 1
    const ResizedModel refused = resize(model_of(768, plain_moe(8, 1, 512, Activation::swiglu)),
                                        {2, 8, 2, {}}, rule(Parity::rule_c), 2048);
    EXPECT_THAT(refused.refused, ::testing::HasSubstr("head and merge"));
    EXPECT_EQ(resize(model_of(768, plain_moe(8, 1, 640, Activation::swiglu)), {2, 8, 2, {}},
                     rule(Parity::rule_c), 2048)
                  .refused,
              "");
}

TEST(RuleAAndB, AreMh1sAppendixAndWhatItRan) {
    // two matrices, f0 = 4d, k = 1: rule A f = 4βd, rule B f = 4βhd; d = 768, h = 4, β = 63/64 →
    // 3024, 12096
    const MoeFeedForward moe = plain_moe(8, 1, 3072, Activation::relu);
    EXPECT_TRUE(
        close(exact_shape(768, moe, {4, 8, 1, {}}, rule(Parity::rule_a)).expert_hidden_size, 3024));
    EXPECT_TRUE(close(exact_shape(768, moe, {4, 8, 1, {}}, rule(Parity::rule_b)).expert_hidden_size,
                      12096));
}

TEST(RuleB, CostsAboutHTimesTheFlopsOfThePlainMoe) {
    // (4 + 16βh) / 16 with head and merge in, β = 63/64: h = 2 2.22, 4 4.19, 6 6.16, 8 8.13,
    // 12 12.06
    const int d = 768;
    const MoeFeedForward moe = plain_moe(8, 1, 4 * d, Activation::relu);
    const double expected[][2] = {{2, 2.22}, {4, 4.19}, {6, 6.16}, {8, 8.13}, {12, 12.06}};
    for (const auto& [heads, ratio] : expected) {
        const double f =
            exact_shape(d, moe, {static_cast<int>(heads), 8, 1, {}}, rule(Parity::rule_b))
                .expert_hidden_size;
        EXPECT_NEAR((2 * d * f + 2.0 * d * d) / macs(d, moe), ratio,
                    0.00501);  // two printed digits
    }
}

TEST(ParametersParity, KeepsTheWeightsOfExpertsHeadAndMerge) {
    // m (d/h) f E + 2d² = m d f0 E0
    const double f =
        exact_shape(768, kMh2, {4, 32, 2, {}}, rule(Parity::parameters)).expert_hidden_size;
    EXPECT_TRUE(close(3 * (768.0 / 4) * f * 32 + 2.0 * 768 * 768, 37748736));
}

TEST(Resize, TheModelItselfIsUnchangedUnderEveryRule) {
    const ModelSpec model = model_of(768, kMh2);
    for (const Parity parity : {Parity::flops, Parity::parameters, Parity::none, Parity::rule_a,
                                Parity::rule_b, Parity::rule_c}) {
        const ResizedModel same = resize(model, {1, 8, 1, {}}, rule(parity), 2048);
        EXPECT_EQ(same.model, model) << name_of(parity);
        EXPECT_DOUBLE_EQ(same.flops_ratio, 1);
    }
}

TEST(Resize, GoingThereAndBackByFlopsGivesTheSameWidth) {
    const ExactShape there = exact_shape(768, kMh2, {2, 8, 2, {}}, rule(Parity::flops));
    MoeFeedForward moe = kMh2;
    moe.num_moe_heads = 2;
    moe.top_k = 2;
    moe.expert_hidden_size = static_cast<int>(there.expert_hidden_size);
    EXPECT_TRUE(
        close(exact_shape(768, moe, {1, 8, 1, {}}, rule(Parity::flops)).expert_hidden_size, 2048));
}

TEST(Resize, SaysWhatWasRoundedAndWhatRemainsUnequal) {
    // Mixtral: (2 · 14336 − 2 · 4096/3) / 2 = 12970.67 → 12992
    const ResizedModel resized = resize(model_of(4096, plain_moe(8, 2, 14336, Activation::swiglu)),
                                        {2, 8, 2, {}}, rule(Parity::flops), 4096);
    EXPECT_EQ(first_moe(resized.model)->expert_hidden_size, 12992);
    EXPECT_THAT(resized.notes, ::testing::Contains(::testing::HasSubstr("rounded to 12992")));
    EXPECT_THAT(resized.notes, ::testing::Contains(::testing::HasSubstr("parameters")));
    EXPECT_NEAR(resized.flops_ratio, 1, 0.01);
    EXPECT_LT(resized.parameters_ratio, 0.6);  // experts of half the input width
}

TEST(Resize, HeadsThatDoNotDivideTheWidthAreRefused) {
    EXPECT_THAT(resize(model_of(768, kMh2), {5, 8, 2, {}}, rule(Parity::flops), 2048).refused,
                ::testing::HasSubstr("does not divide hidden_size 768"));
}

}  // namespace
}  // namespace moeplan
