/// Layouts as people give them.
#include "model/layout_words.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/errors.hpp"

namespace moeplan {
namespace {

std::map<std::string, std::string> assumed(const ResolvedLayout& resolved) {
    std::map<std::string, std::string> out;
    for (const Finding& finding : resolved.assumed) out[finding.key] = finding.value;
    return out;
}

TEST(ResolveLayout, ExpertTensorSizeFollowsTheFrameworksRule) {
    const ModelSpec model = load_model("mixtral-8x7b");
    EXPECT_EQ(resolve_layout({{"tp", "4"}, {"framework", "megatron-core"}}, model, 8)
                  .layout.expert_tensor_parallel_size,
              4);
    EXPECT_EQ(
        assumed(resolve_layout({{"tp", "4"}, {"framework", "megatron-bridge@26.04"}}, model, 8))
            .at("etp"),
        "4");
    EXPECT_EQ(resolve_layout({{"tp", "4"}, {"framework", "torchtitan"}}, model, 8)
                  .layout.expert_tensor_parallel_size,
              1);
    const ResolvedLayout given =
        resolve_layout({{"tp", "4"}, {"etp", "2"}, {"framework", "megatron-core"}}, model, 8);
    EXPECT_EQ(given.layout.expert_tensor_parallel_size, 2);
    EXPECT_EQ(assumed(given).count("etp"), 0u);
}

TEST(ResolveLayout, DataParallelSizeIsWhatTheWorldLeaves) {
    const ModelSpec model = load_model("mixtral-8x7b");
    EXPECT_EQ(resolve_layout({{"tp", "2"}, {"pp", "4"}}, model, 64).layout.data_parallel_size, 8);
    // Without a world: the least that holds the expert groups, 8 experts ranks over 2 tensor ranks.
    EXPECT_EQ(
        resolve_layout({{"tp", "2"}, {"ep", "8"}}, model, std::nullopt).layout.data_parallel_size,
        4);
    EXPECT_EQ(resolve_layout({}, model, std::nullopt).layout, ParallelLayout{});
}

TEST(ResolveLayout, MicroBatchesComeFromTheGlobalBatch) {
    const ModelSpec model = load_model("mixtral-8x7b");
    EXPECT_EQ(resolve_layout({{"global_batch", "256"}, {"micro_batch", "2"}}, model, 8)
                  .schedule.num_micro_batches,
              16);
    const ResolvedLayout odd =
        resolve_layout({{"global_batch", "100"}, {"micro_batch", "2"}}, model, 8);
    ASSERT_EQ(odd.broken.size(), 1u);
    EXPECT_EQ(odd.broken[0].rule, "global_batch");
    EXPECT_EQ(odd.broken[0].nearest, (std::vector<std::string>{"96", "112"}));
}

TEST(ResolveLayout, EmbeddingAndHeadMayCountAsLayers) {
    // 94 layers over PP 32 · VPP 3: (94 + 2) / 96 = 1, the first and last chunk hold none.
    const ResolvedLayout resolved =
        resolve_layout({{"pp", "32"},
                        {"vpp", "3"},
                        {"account_for_embedding_in_pipeline_split", "true"},
                        {"account_for_loss_in_pipeline_split", "true"}},
                       load_model("qwen3-235b-a22b"), 32);
    ASSERT_EQ(resolved.schedule.stage_layers.size(), 96u);
    EXPECT_EQ(resolved.schedule.stage_layers.front(), 0);
    EXPECT_EQ(resolved.schedule.stage_layers[1], 1);
    EXPECT_EQ(resolved.schedule.stage_layers.back(), 0);
}

TEST(ResolveLayout, WrongWordsNameTheirFlag) {
    const ModelSpec model = load_model("mixtral-8x7b");
    const auto message = [&](const LayoutWords& words) {
        try {
            resolve_layout(words, model, 8);
        } catch (const InputError& error) {
            return std::string(error.what());
        }
        return std::string("accepted");
    };
    for (const auto& [key, value] : LayoutWords{{"tp", "0"},
                                                {"tp", "-1"},
                                                {"tp", "2.5"},
                                                {"ep", "x"},
                                                {"seq", ""},
                                                {"recompute", "some"},
                                                {"precision", "fp12"},
                                                {"zero", "4"},
                                                {"schedule", "2f2b"},
                                                {"sequence_parallel", "maybe"},
                                                {"stage_layers", "1,,2"},
                                                {"dispatcher", "fast"},
                                                {"main_grads", "fp8"},
                                                {"tp", "99999999999999999999"},
                                                {"recompute_modules", "core_attn,nothing"}})
        EXPECT_NE(message({{key, value}}).find("--"), std::string::npos)
            << key << " " << value << ": " << message({{key, value}});
    EXPECT_NE(message({{"tpp", "2"}}).find("--tp perhaps"), std::string::npos);
    EXPECT_NE(message({{"tp", "1000000"}, {"pp", "1000000"}}).find("ranks"), std::string::npos);
}

TEST(LayoutFile, WhatIsWrittenReadsBack) {
    const ModelSpec model = load_model("deepseek-v3");
    const ResolvedLayout first = resolve_layout({{"tp", "2"},
                                                 {"pp", "4"},
                                                 {"ep", "8"},
                                                 {"etp", "1"},
                                                 {"cp", "2"},
                                                 {"vpp", "2"},
                                                 {"zero", "2"},
                                                 {"global_batch", "512"},
                                                 {"seq", "8192"},
                                                 {"stage_layers", "7,8,8,8,8,8,8,6"},
                                                 {"recompute", "selective"},
                                                 {"recompute_modules", "moe_act,layernorm"},
                                                 {"precision", "fp8"},
                                                 {"main_grads", "bf16"},
                                                 {"dispatcher", "deepep"},
                                                 {"sequence_parallel", "true"},
                                                 {"overlap_experts", "true"},
                                                 {"framework", "megatron-core@0.14"}},
                                                model, 64);
    const std::string file = testing::TempDir() + "/layout.json";
    std::ofstream(file) << to_file_text(layout_to_json(first.layout, first.schedule));
    const ResolvedLayout again = resolve_layout(read_layout_words(file), model, 64);
    EXPECT_EQ(again.layout, first.layout);
    EXPECT_EQ(again.schedule, first.schedule);
    EXPECT_TRUE(again.assumed.empty());
    std::filesystem::remove(file);
}

TEST(LayoutFile, UnknownKeysAreRefused) {
    const std::string file = testing::TempDir() + "/layout2.json";
    std::ofstream(file) << R"({"tp": 2, "microbatch": 1})";
    try {
        read_layout_words(file);
        FAIL();
    } catch (const InputError& error) {
        EXPECT_NE(std::string(error.what()).find("\"micro_batch\" perhaps"), std::string::npos)
            << error.what();
    }
    std::filesystem::remove(file);
}

TEST(LayoutFile, AWrongValueIsNamedByItsPlaceUnlessAFlagReplacedIt) {
    const std::string file = testing::TempDir() + "/layout3.json";
    std::ofstream(file) << R"({"tp": 2, "zero": "most", "micro_batch": 3, "global_batch": 16})";
    LayoutWords words = read_layout_words(file);
    const auto message = [&] {
        try {
            resolve_layout(words, load_model("mixtral-8x7b"), 8);
        } catch (const InputError& error) {
            return std::string(error.what());
        }
        return std::string("accepted");
    };
    EXPECT_TRUE(message().starts_with(file + ": /zero is most, expected ")) << message();
    words.replace("zero", "some");
    EXPECT_TRUE(message().starts_with("--zero: some, expected ")) << message();
    words.replace("zero", "1");
    ASSERT_EQ(message(), "accepted");
    const ResolvedLayout resolved = resolve_layout(words, load_model("mixtral-8x7b"), 8);
    ASSERT_EQ(resolved.broken.size(), 1u);  // 3 · dp 4 does not divide 16
    const std::string refused = refusal(resolved.broken[0], words, "layout").what();
    EXPECT_TRUE(refused.starts_with(file + ": /global_batch is 16, expected another layout: "))
        << refused;
    EXPECT_NE(refused.find("(would do: 12, 24)"), std::string::npos) << refused;
    std::filesystem::remove(file);
}

TEST(LayoutFile, AMegatronScriptIsALayout) {
    const LayoutWords words =
        read_layout_words(std::string(MOEPLAN_TEST_DATA) + "/model_spec/megatron-dsv3-args.sh");
    const LayoutWords want = {{"framework", "megatron-core"},
                              {"tp", "2"},
                              {"pp", "8"},
                              {"ep", "64"},
                              {"etp", "1"},
                              {"micro_batch", "1"},
                              {"global_batch", "8192"},
                              {"seq", "4096"},
                              {"sequence_parallel", "true"},
                              {"pipeline_layout", "Et|(tt|)*30mL"},
                              {"zero", "1"},
                              {"precision", "bf16"},
                              {"dispatcher", "deepep"},
                              {"load_balancing", "seq_aux_loss"}};
    EXPECT_EQ(words, want);
    const ResolvedLayout resolved = resolve_layout(words, load_model("deepseek-v3"), 1024);
    EXPECT_EQ(resolved.schedule.virtual_pipeline_size, 4);
    EXPECT_TRUE(resolved.broken.empty());
}

}  // namespace
}  // namespace moeplan
