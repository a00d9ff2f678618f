/// Parameter and flop counts against what the models' makers published, to the last digit.
#include "model/op_counts.hpp"

#include <gtest/gtest.h>

#include "model/model_spec.hpp"
#include "tests/tolerance.hpp"

namespace moeplan {
namespace {

struct Published {
    const char* model;
    long long total, with_embeddings, without_input, without_both;  ///< 0: not stated
};

class PublishedCounts : public testing::TestWithParam<Published> {};

TEST_P(PublishedCounts, AreReproducedToTheLastDigit) {
    const Published& want = GetParam();
    const ParameterCounts got = count_parameters(load_model(want.model));
    EXPECT_EQ(got.total, want.total);
    if (want.with_embeddings) {
        EXPECT_EQ(got.active_with_embeddings, want.with_embeddings);
    }
    if (want.without_input) {
        EXPECT_EQ(got.active_without_input_embedding, want.without_input);
    }
    if (want.without_both) {
        EXPECT_EQ(got.active_without_embeddings, want.without_both);
    }
    long long sum = 0;
    for (const auto& [part, count] : got.parts) sum += count;
    EXPECT_EQ(sum, got.total);
}

// Totals of the released checkpoints and model cards; active counts in the convention each source
// uses.
INSTANTIATE_TEST_SUITE_P(
    Shipped, PublishedCounts,
    testing::Values(
        Published{"mixtral-8x7b", 46'702'792'704, 12'879'925'248, 0, 0},
        Published{"mixtral-8x22b", 140'630'071'296, 39'161'468'928, 0, 0},
        Published{"olmoe-1b-7b", 6'919'161'856, 1'282'017'280, 0, 0},
        Published{"qwen3-30b-a3b", 30'532'122'624, 3'353'032'704, 0, 0},
        Published{"qwen3-235b-a22b", 235'093'634'560, 22'190'763'520, 0, 0},
        Published{"gpt-oss-120b", 116'829'156'672, 5'711'982'912, 5'132'849'472, 0},
        Published{"gpt-oss-20b", 20'914'757'184, 4'187'440'704, 3'608'307'264, 0},
        Published{"deepseek-v3", 671'026'419'200, 37'552'297'472, 36'625'618'432, 0},
        Published{"emo-1b14b", 13'568'641'024, 1'489'045'504, 1'283'524'608, 1'078'003'712},
        Published{"emo-std-1b14b", 13'568'641'024, 1'489'045'504, 1'283'524'608, 1'078'003'712},
        Published{"emo-std-1b4b", 3'901'818'880, 1'485'899'776, 0, 0},
        Published{"emo-dense-1b", 1'484'851'200, 1'484'851'200, 0, 0}),
    [](const auto& info) {
        std::string name = info.param.model;
        for (char& c : name)
            if (c == '-') c = '_';
        return name;
    });

TEST(BuildingBlocks, AreThePublishedOnes) {
    const auto one = [](const char* name) {
        const ModelSpec model = load_model(name);
        return layer_parameters(model, model.layers.back());
    };
    EXPECT_EQ(one("mixtral-8x7b").one_expert, 176'160'768);  // 3·4096·14336
    EXPECT_EQ(one("olmoe-1b-7b").one_expert, 6'291'456);     // 3·2048·1024
    EXPECT_EQ(one("emo-1b14b").one_expert, 6'291'456);
    EXPECT_EQ(one("qwen3-30b-a3b").one_expert, 4'718'592);  // 3·2048·768
    EXPECT_EQ(one("deepseek-v3").one_expert, 44'040'192);   // 3·7168·2048
    EXPECT_EQ(one("deepseek-v3").attention, 187'107'328);   // latent attention with its two norms
    EXPECT_EQ(one("gpt-oss-120b").one_expert, 24'891'840);  // 3·2880² + 3·2880 biases
    EXPECT_EQ(count_parameters(load_model("mixtral-8x7b")).parts.at("experts"), 45'097'156'608);
    EXPECT_EQ(count_parameters(load_model("deepseek-v3")).parts.at("experts"), 653'908'770'816);
    EXPECT_EQ(count_parameters(load_model("qwen3-30b-a3b")).parts.at("router"), 12'582'912);
}

// MH-MoE's FLOP-matched set: one MoE layer, SwiGLU, router apart.
// params = E·3·(d/h)·f + 2d² (heads > 1); MACs a token = h·k·3·(d/h)·f + 2d²; router = E·d/h.
struct Matched {
    const char* model;
    long long parameters, macs, router;
};
class MhMoe2 : public testing::TestWithParam<Matched> {};
TEST_P(MhMoe2, LayersMatchThePaperExactly) {
    const Matched& want = GetParam();
    const ModelSpec model = load_model(want.model);
    ASSERT_EQ(num_moe_layers(model), 6);
    const LayerSpec& layer = model.layers[1];
    const auto& moe = std::get<MoeFeedForward>(layer.feed_forward);
    const LayerParameters got = layer_parameters(model, layer);
    EXPECT_EQ(moe.num_experts * got.one_expert + got.mh_projections, want.parameters);
    EXPECT_EQ(got.router, want.router);
    const LayerMacs macs = layer_macs(model, layer, 2048);
    EXPECT_EQ(macs.experts + macs.mh_projections, static_cast<double>(want.macs));
    EXPECT_EQ(macs.router,
              768.0 * moe.num_experts);  // h sub-tokens of width d/h: the same at any h
}
INSTANTIATE_TEST_SUITE_P(
    Table, MhMoe2,
    testing::Values(Matched{"mh-moe-mh2-smoe-e8", 37'748'736, 4'718'592, 6'144},
                    Matched{"mh-moe-mh2-fine-grained-e16", 37'748'736, 4'718'592, 12'288},
                    Matched{"mh-moe-mh2-mh-h2-e40", 36'569'088, 4'718'592, 15'360},
                    Matched{"mh-moe-mh2-mh-h3-e96", 38'928'384, 4'718'592, 24'576}));

// Multi-Head MoE's Table 11 leaves norms and routers out; millions, as computed from its recipe.
TEST(MhMoe1, PartsMatchTableEleven) {
    const auto parts = [](const char* name) { return count_parameters(load_model(name)).parts; };
    const auto dense = parts("mh1-dense");
    EXPECT_NEAR(
        static_cast<double>(dense.at("embedding") + dense.at("attention") + dense.at("dense")) /
            1e6,
        162.030, 5e-4);
    const auto xmoe = parts("mh1-xmoe-e8");
    EXPECT_NEAR(
        static_cast<double>(xmoe.at("embedding") + xmoe.at("attention") + xmoe.at("dense")) / 1e6,
        133.70, 5e-3);
    const auto mh = parts("mh-moe-mh1-h4-e32");
    EXPECT_NEAR(static_cast<double>(mh.at("embedding") + mh.at("attention") + mh.at("dense") +
                                    mh.at("mh_projections")) /
                    1e6,
                140.78, 1e-2);
    EXPECT_EQ(mh.at("mh_projections"), 7'087'104);
    // X-MoE's expert 2·d·f + f + d + 2·f = 4,728,576; N of them in six layers.
    const std::pair<const char*, double> experts[] = {
        {"mh1-xmoe-e8", 226.97},        {"mh1-xmoe-e16", 453.94},
        {"mh1-xmoe-e32", 907.89},       {"mh1-xmoe-e64", 1815.77},
        {"mh1-xmoe-e128", 3631.55},     {"mh1-xmoe-e256", 7263.09},
        {"mh-moe-mh1-h4-e32", 898.82},  {"mh-moe-mh1-h4-e64", 1797.64},
        {"mh-moe-mh1-h4-e8", 213.0},    {"mh-moe-mh1-h4-e16", 430.0},
        {"mh-moe-mh1-h4-e128", 3624.0}, {"mh-moe-mh1-h4-e256", 7230.0}};
    for (const auto& [name, millions] : experts)
        EXPECT_NEAR(static_cast<double>(parts(name).at("experts")) / 1e6, millions,
                    millions == static_cast<int>(millions) ? 0.6 : 0.01)
            << name;
}

// 6·(matrices) + 12·L·heads·head_size·s, router included, input embedding left out.
TEST(TokenFlops, AreThePublishedFigures) {
    // MaxText counts 79.977 TFLOP for 1024 tokens of Mixtral at s = 1024.
    EXPECT_TRUE(close(flops_per_token(load_model("mixtral-8x7b"), 1024).training.value,
                      79.977e12 / 1024, 1e-4));
    // torchtitan's own count adds the norms: 37,578,559,488 a token; they are 0.003 % of it.
    EXPECT_TRUE(close(flops_per_token(load_model("qwen3-30b-a3b"), 8192).training.value,
                      37'578'559'488.0, 1e-4));
    // Megatron's 148.33 GFLOP a token of Qwen3-235B halve the causal scores; 167.26 does not.
    EXPECT_TRUE(
        close(flops_per_token(load_model("qwen3-235b-a22b"), 4096).training.value, 167.26e9, 1e-4));
    EXPECT_TRUE(
        close(flops_per_token(load_model("qwen3-235b-a22b"), 4096).training_causal_half.value,
              148.33e9, 1e-4));
}

TEST(TokenFlops, AWindowWiderThanTheSequenceChangesNothing) {
    ModelSpec model = load_model("mixtral-8x7b");
    const double whole = flops_per_token(model, 4096).training_causal_half.value;
    for (auto& layer : model.layers) layer.window = 5000;
    EXPECT_EQ(flops_per_token(model, 4096).training_causal_half.value, whole);
    for (auto& layer : model.layers) layer.window = 1;  // each token sees itself
    const double narrow = flops_per_token(model, 4096).training_causal_half.value;
    EXPECT_LT(narrow, whole);
}

}  // namespace
}  // namespace moeplan
