/// The rules of a layout.
#include "model/check.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "model/layout_words.hpp"
#include "model/stage_layers.hpp"

namespace moeplan {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Not;

ModelSpec small_moe(int layers = 8, int heads = 32, int kv_heads = 4, int experts = 64) {
    ModelSpec out{.name = "small", .hidden_size = 256, .vocab_size = 32000};
    for (int i = 0; i < layers; ++i)
        out.layers.push_back({.attention = GroupedQueryAttention{.num_attention_heads = heads,
                                                                 .num_kv_heads = kv_heads,
                                                                 .head_size = 64},
                              .feed_forward = MoeFeedForward{
                                  .num_experts = experts, .top_k = 4, .expert_hidden_size = 64}});
    return out;
}

std::vector<std::string> rules(const ModelSpec& model, LayoutWords words, int world,
                               Severity severity = Severity::broken) {
    const ResolvedLayout resolved = resolve_layout(words, model, world);
    std::vector<std::string> out;
    for (const Finding& finding : resolved.broken)
        if (finding.severity == severity) out.push_back(finding.rule);
    for (const Finding& finding : check_layout(model, resolved.layout, resolved.schedule, world))
        if (finding.severity == severity) out.push_back(finding.rule);
    return out;
}
Finding broken(const ModelSpec& model, LayoutWords words, int world, const std::string& rule) {
    const ResolvedLayout resolved = resolve_layout(words, model, world);
    for (const Finding& finding : check_layout(model, resolved.layout, resolved.schedule, world))
        if (finding.rule == rule) return finding;
    ADD_FAILURE() << rule << " was not broken";
    return {};
}

TEST(CheckLayout, AllSizesOneBreakNothing) {
    for (const auto& name : shipped_models())
        EXPECT_THAT(rules(load_model(name), {}, 1), IsEmpty()) << name;
}

TEST(CheckLayout, GshardsCoefficientIsWarnedOfWhereItWeighsNothing) {
    ModelSpec model = small_moe(2, 32, 4, 16);
    const auto with = [&](const char* routing, double coefficient) {
        for (LayerSpec& layer : model.layers) {
            auto& moe = std::get<MoeFeedForward>(layer.feed_forward);
            moe.routing = routing;
            moe.balance_coefficient = coefficient;
            moe.top_k = 2;
        }
        return rules(model, {}, 1, Severity::warning);
    };
    // 16 experts: 0.01 / 16² = 3.9e-5; 2.56 / 16² = 0.01
    EXPECT_THAT(with("gshard", 0.01), Contains("balance_coefficient"));
    EXPECT_THAT(with("gshard_raw", 0.01), Contains("balance_coefficient"));
    EXPECT_THAT(with("gshard", 2.56), Not(Contains("balance_coefficient")));
    EXPECT_THAT(with("softmax_top_k", 0.01), Not(Contains("balance_coefficient")));
    EXPECT_THAT(with("gshard", 0), Not(Contains("balance_coefficient")));
    with("gshard", 0.01);
    const Finding finding = broken(model, {}, 1, "balance_coefficient");
    EXPECT_DOUBLE_EQ(finding.figures.at("common_here"), 2.56);
    EXPECT_THAT(finding.detail, testing::HasSubstr("0.01 weighs as 3.91e-05 does there"));
}

TEST(CheckLayout, ExpertGroupsMustDivideTheWorld) {
    const Finding finding =
        broken(small_moe(),
               {{"tp", "2"}, {"pp", "2"}, {"ep", "8"}, {"etp", "1"}, {"sequence_parallel", "true"}},
               8, "expert_groups");
    EXPECT_THAT(finding.nearest, Contains("4"));  // ETP·EP·PP = 1·8·2 = 16 > 8
    EXPECT_EQ(finding.figures.at("max_valid_ep"), 4);
    EXPECT_EQ(finding.figures.at("min_gpus"), 16);
    EXPECT_THAT(
        rules(small_moe(),
              {{"tp", "2"}, {"pp", "2"}, {"ep", "4"}, {"etp", "1"}, {"sequence_parallel", "true"}},
              8),
        IsEmpty());
}

TEST(CheckLayout, ContextAndExpertParallelismMeetInTwoGrids) {
    // 16 = cp 2 · dp 8 = ep 8 · edp 2
    EXPECT_THAT(
        rules(small_moe(),
              {{"cp", "2"}, {"dp", "8"}, {"ep", "8"}, {"etp", "1"}, {"framework", "megatron-core"}},
              16),
        IsEmpty());
}

TEST(CheckLayout, ExpertSizesNeedNotBePowersOfTwo) {
    const ModelSpec model = small_moe(4, 32, 4, 384);
    for (const char* ep : {"48", "64", "96"})
        EXPECT_THAT(rules(model, {{"ep", ep}}, 192), IsEmpty()) << ep;
    EXPECT_THAT(rules(model, {{"ep", "128"}}, 192), ElementsAre("expert_groups"));
    EXPECT_THAT(rules(model, {{"ep", "256"}}, 192), ElementsAre("expert_groups", "experts"));
}

TEST(CheckLayout, EveryFaultShowsAtOnce) {
    // 3 divides neither 64 heads nor 256 experts; the experts' rule belongs to the back end.
    const ModelSpec model = small_moe(4, 64, 1, 256);
    EXPECT_THAT(rules(model,
                      {{"tp", "3"},
                       {"ep", "3"},
                       {"framework", "vllm"},
                       {"moe_backend", "deep_gemm_mega_moe"}},
                      3),
                ElementsAre("attention_heads", "experts"));
    EXPECT_THAT(rules(model, {{"tp", "3"}, {"ep", "3"}, {"framework", "vllm"}}, 3),
                ElementsAre("attention_heads"));
}

TEST(CheckLayout, KeyValueHeadsLimitTensorParallelismWhereTheyAreNotCopied) {
    const ModelSpec model = small_moe(4, 16, 2);
    EXPECT_THAT(rules(model, {{"tp", "4"}, {"ep", "4"}, {"framework", "torchtitan"}}, 4),
                ElementsAre("kv_heads"));
    EXPECT_THAT(rules(model, {{"tp", "2"}, {"ep", "4"}, {"framework", "torchtitan"}}, 4),
                IsEmpty());
    EXPECT_THAT(rules(model,
                      {{"tp", "4"},
                       {"etp", "1"},
                       {"sequence_parallel", "true"},
                       {"framework", "megatron-core"}},
                      4),
                IsEmpty());
    EXPECT_EQ(layout_facts(model, {.tensor_parallel_size = 4},
                           {.software = {.framework = "torchtitan"}}, 4)
                  .valid_tp,
              (std::vector{1, 2}));
}

TEST(CheckLayout, LayersAreNeverDroppedInSilence) {
    const auto eighty = small_moe(80);
    const Finding finding = broken(eighty,
                                   {{"pp", "16"},
                                    {"vpp", "2"},
                                    {"etp", "1"},
                                    {"framework", "megatron-core"},
                                    {"global_batch", "64"}},
                                   16, "layers_per_stage");
    EXPECT_EQ(finding.figures.at("built_layers"), 64);  // ⌊80 / 32⌋ · 32
    EXPECT_EQ(finding.figures.at("missing"), 16);
    EXPECT_THAT(broken(small_moe(30), {{"pp", "4"}, {"etp", "1"}, {"framework", "megatron-core"}},
                       4, "layers_per_stage")
                    .nearest,
                ElementsAre("stage_layers 7,8,8,7"));
    EXPECT_THAT(rules(small_moe(30),
                      {{"pp", "4"},
                       {"etp", "1"},
                       {"framework", "megatron-core"},
                       {"stage_layers", "7,8,8,7"}},
                      4),
                IsEmpty());
    EXPECT_THAT(rules(small_moe(30), {{"pp", "4"}, {"stage_layers", "7,8,8,6"}}, 4),
                ElementsAre("stage_layers"));
    EXPECT_THAT(rules(small_moe(30), {{"pp", "4"}}, 4),
                IsEmpty());  // no framework: uneven, and said so
    EXPECT_THAT(rules(small_moe(30), {{"pp", "4"}}, 4, Severity::warning),
                Contains("layers_per_stage"));
    EXPECT_THAT(rules(small_moe(3), {{"pp", "4"}}, 4), ElementsAre("layers_per_stage"));
}

TEST(CheckLayout, AStageWithoutExpertsIsWarnedOf) {
    ModelSpec model = small_moe(2);
    model.layers[0].feed_forward = DenseFeedForward{.dense_hidden_size = 256};
    EXPECT_THAT(rules(model, {{"pp", "2"}}, 2), IsEmpty());
    EXPECT_THAT(rules(model, {{"pp", "2"}}, 2, Severity::warning), Contains("stage_without_moe"));
    EXPECT_EQ(layout_facts(model, {.pipeline_parallel_size = 2}, {}, 2).moe_layers_per_stage,
              (std::vector{0, 1}));
}

TEST(CheckLayout, WorldMustDivide) {
    const Finding finding = broken(small_moe(6), {{"pp", "3"}, {"ep", "8"}}, 8, "world_size");
    EXPECT_EQ(finding.figures.at("remainder"), 2);
    EXPECT_THAT(finding.nearest, Contains("2"));
    EXPECT_THAT(rules(small_moe(), {{"dp", "4"}}, 8), ElementsAre("world_size"));
}

TEST(CheckLayout, DeepSpeedCutsExpertGroupsFromDataParallelRanks) {
    const ModelSpec model = small_moe(4, 32, 4, 8);
    EXPECT_THAT(rules(model, {{"tp", "2"}, {"ep", "4"}, {"framework", "deepspeed"}}, 4),
                Contains("expert_groups"));  // dp is 2
    EXPECT_THAT(rules(model, {{"ep", "4"}, {"framework", "deepspeed"}}, 4), IsEmpty());
    EXPECT_EQ(
        layout_facts(model, {.data_parallel_size = 4}, {.software = {.framework = "deepspeed"}}, 4)
            .valid_ep,
        (std::vector{1, 2, 4}));
}

TEST(CheckLayout, RulesOfSchedulesAndSequences) {
    EXPECT_THAT(rules(small_moe(),
                      {{"pp", "2"}, {"vpp", "2"}, {"schedule", "1f1b"}, {"global_batch", "8"}}, 2),
                ElementsAre("virtual_stages"));
    EXPECT_THAT(rules(small_moe(), {{"vpp", "2"}}, 1), ElementsAre("virtual_stages"));
    EXPECT_THAT(rules(small_moe(),
                      {{"pp", "4"},
                       {"vpp", "2"},
                       {"etp", "1"},
                       {"global_batch", "6"},
                       {"framework", "megatron-core"}},
                      4),
                ElementsAre("micro_batches"));
    EXPECT_THAT(rules(small_moe(), {{"cp", "2"}, {"seq", "1022"}}, 2),
                ElementsAre("sequence_length"));  // 1022 % 4 = 2
    EXPECT_THAT(rules(small_moe(), {{"tp", "2"}, {"etp", "1"}, {"framework", "megatron-core"}}, 2),
                ElementsAre("sequence_parallel"));
    EXPECT_THAT(rules(small_moe(), {{"pp", "2"}, {"zero", "3"}, {"framework", "deepspeed"}}, 2),
                ElementsAre("sharding"));
    EXPECT_THAT(rules(small_moe(8, 32, 4, 64), {{"etp", "3"}, {"tp", "1"}}, 3),
                ElementsAre("expert_width"));  // 64 % 3
}

TEST(CheckLayout, ADenseModelHasNoExpertGroups) {
    EXPECT_THAT(rules(load_model("emo-dense-1b"), {{"ep", "2"}}, 2), ElementsAre("no_experts"));
}

// Law: whatever is refused names values that would do, and of those at least one does (for rules
// about one size).
TEST(CheckLayout, TheNearestValuesDoWork) {
    std::mt19937 random(11);
    int looked = 0;
    for (int i = 0; i < 400; ++i) {
        const ModelSpec model = small_moe(4 + static_cast<int>(random() % 20), 8 << random() % 4,
                                          1 << random() % 4, 1 << random() % 8);
        const int world = 1 << random() % 6;
        const LayoutWords words = {{"ep", std::to_string(1 + random() % 12)}, {"etp", "1"}};
        if (first_moe(model)->top_k > first_moe(model)->num_experts) continue;
        const ResolvedLayout resolved = resolve_layout(words, model, world);
        for (const Finding& finding :
             check_layout(model, resolved.layout, resolved.schedule, world)) {
            if (finding.rule != "expert_groups") continue;
            ASSERT_FALSE(finding.nearest.empty());
            for (const std::string& value : finding.nearest) {
                LayoutWords mended = words;
                mended["ep"] = value;
                EXPECT_THAT(rules(model, mended, world), Not(Contains("expert_groups")));
                ++looked;
            }
        }
    }
    EXPECT_GT(looked, 50);
}

TEST(Verdict, BrokenRulesComeBeforeMemory) {
    const std::vector<StageMemory> memory = {{.weights = Bytes{10}}};
    EXPECT_EQ(verdict_of({}, memory, Bytes{10}), Verdict::valid);
    EXPECT_EQ(verdict_of({}, memory, Bytes{9}), Verdict::out_of_memory);
    EXPECT_EQ(verdict_of({}, memory, std::nullopt), Verdict::valid);
    EXPECT_EQ(verdict_of({{.severity = Severity::broken}}, memory, Bytes{9}), Verdict::invalid);
    EXPECT_EQ(verdict_of({{.severity = Severity::warning}}, memory, Bytes{10}), Verdict::valid);
}

}  // namespace
}  // namespace moeplan
