/// Other programs' configurations.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "core/errors.hpp"
#include "model/import/hugging_face.hpp"
#include "model/import/megatron.hpp"
#include "model/import/olmo_core.hpp"
#include "model/import/text_file.hpp"
#include "model/model_spec.hpp"
#include "model/op_counts.hpp"

namespace moeplan {
namespace {

std::string sample(const std::string& name) {
    return std::string(MOEPLAN_TEST_DATA) + "/model_spec/" + name;
}

ModelSpec hugging_face_text(const std::string& text) {
    return model_from_hugging_face(JsonReader::from_text(text, "config.json"), "test");
}
ModelSpec hugging_face(const Json& json) {
    return model_from_hugging_face(JsonReader::from_value(json, "config.json"), "test");
}

/// A small configuration to vary.
Json small() {
    return Json::parse(
        R"({"model_type": "qwen3_moe", "hidden_size": 64, "intermediate_size": 128, "moe_intermediate_size": 32, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "num_experts": 8, "num_experts_per_tok": 2, "vocab_size": 100})");
}
std::vector<int> moe_at(const ModelSpec& model) {
    std::vector<int> out;
    for (const auto& layer : model.layers)
        out.push_back(std::holds_alternative<MoeFeedForward>(layer.feed_forward));
    return out;
}
std::string message(const Json& json) {
    try {
        hugging_face(json);
    } catch (const InputError& error) {
        return error.what();
    }
    return "accepted";
}

TEST(HuggingFace, SamplesHaveTheirPublishedTotals) {
    const std::pair<const char*, long long> totals[] = {
        {"mixtral-8x7b", 46'702'792'704},    {"qwen3-30b-a3b", 30'532'122'624},
        {"olmoe-1b-7b", 6'919'161'856},      {"gpt-oss-120b", 116'829'156'672},
        {"deepseek-v3", 671'026'419'200},    {"kimi-k2", 1'026'408'232'448},
        {"llama4-maverick", 400'711'848'960}};
    for (const auto& [name, total] : totals)
        EXPECT_EQ(count_parameters(load_model(sample(std::string(name) + ".config.json"))).total,
                  total)
            << name;
    EXPECT_EQ(
        count_parameters(load_model(sample("llama4-maverick.config.json"))).active_with_embeddings,
        17'184'691'200);
    EXPECT_EQ(count_parameters(load_model(sample("kimi-k2.config.json"))).active_with_embeddings,
              32'861'500'928);
    EXPECT_EQ(num_moe_layers(load_model(sample("llama4-maverick.config.json"))), 24);
}

TEST(HuggingFace, SamplesEqualTheShippedModels) {
    for (const char* name :
         {"mixtral-8x7b", "qwen3-30b-a3b", "gpt-oss-120b", "deepseek-v3", "olmoe-1b-7b"}) {
        const ModelSpec read = load_model(sample(std::string(name) + ".config.json")),
                        shipped = load_model(name);
        EXPECT_EQ(read.name, name);
        ASSERT_EQ(read.layers.size(), shipped.layers.size());
        for (std::size_t i = 0; i < read.layers.size(); ++i) {
            EXPECT_EQ(read.layers[i].attention, shipped.layers[i].attention)
                << name << " layer " << i;
            EXPECT_EQ(read.layers[i].window, shipped.layers[i].window) << name << " layer " << i;
        }
    }
}

TEST(HuggingFace, AnExplicitHeadSizeWins) {
    // Qwen3-32B: (64 + 2·8)·128 = 10240 rows of q, k, v, not 80-wide heads.
    const ModelSpec model = hugging_face_text(
        R"({"model_type":"qwen3","hidden_size":5120,"intermediate_size":25600,"num_hidden_layers":64,"num_attention_heads":64,
        "num_key_value_heads":8,"head_dim":128,"vocab_size":151936,"tie_word_embeddings":false})");
    EXPECT_EQ(count_parameters(model).total, 32'762'123'264);
    Json json = small();
    json.erase("head_dim");
    EXPECT_EQ(std::get<GroupedQueryAttention>(hugging_face(json).layers[0].attention).head_size,
              16);
    json["num_attention_heads"] = 6;
    EXPECT_NE(message(json).find("head_dim is not given"), std::string::npos);
}

TEST(HuggingFace, FamiliesWithTheirOwnDefaults) {
    // GPT-2 (124,439,808): learned positions, biases everywhere, layer norms with bias, tied.
    EXPECT_EQ(
        count_parameters(
            hugging_face_text(
                R"({"model_type":"gpt2","n_embd":768,"n_head":12,"n_layer":12,"n_positions":1024,"vocab_size":50257,
        "n_inner":null,"activation_function":"gelu_new"})"))
            .total,
        124'439'808);
    // Qwen3-VL's text model is Qwen3-235B-A22B.
    EXPECT_EQ(
        count_parameters(
            hugging_face_text(
                R"({"model_type":"qwen3_vl_moe","tie_word_embeddings":false,"vision_config":{"hidden_size":1152,"depth":27},"text_config":{
        "model_type":"qwen3_vl_moe_text","hidden_size":4096,"intermediate_size":12288,"moe_intermediate_size":1536,"num_hidden_layers":94,"num_attention_heads":64,
        "num_key_value_heads":4,"head_dim":128,"num_experts":128,"num_experts_per_tok":8,"decoder_sparse_step":1,"mlp_only_layers":[],"vocab_size":151936}})"))
            .total,
        235'093'634'560);
    // GLM-4.7-Flash: latent attention, one dense layer, a bias for selection that its class always
    // has.
    const ModelSpec flash = hugging_face_text(
        R"({"model_type":"glm4_moe_lite","num_hidden_layers":47,"hidden_size":2048,"num_attention_heads":20,"num_key_value_heads":20,"head_dim":64,
        "intermediate_size":10240,"vocab_size":154880,"n_routed_experts":64,"n_shared_experts":1,"num_experts_per_tok":4,"moe_intermediate_size":1536,"first_k_dense_replace":1,
        "kv_lora_rank":512,"q_lora_rank":768,"qk_nope_head_dim":192,"qk_rope_head_dim":64,"v_head_dim":256,"tie_word_embeddings":false})");
    EXPECT_TRUE(std::holds_alternative<LatentAttention>(flash.layers[0].attention));
    EXPECT_EQ(num_moe_layers(flash), 46);
    EXPECT_TRUE(first_moe(flash)->selection_bias);
    Json gemma = small();
    gemma["model_type"] = "gemma3_text";
    EXPECT_NE(message(gemma).find("block"), std::string::npos);
}

TEST(HuggingFace, ExpertCountHasManyNames) {
    for (const char* key :
         {"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"}) {
        Json json = small();
        json.erase("num_experts");
        json[key] = 16;
        EXPECT_EQ(first_moe(hugging_face(json))->num_experts, 16) << key;
    }
    Json dense = small();
    dense["num_experts"] = nullptr;
    EXPECT_EQ(num_moe_layers(hugging_face(dense)), 0);
}

TEST(HuggingFace, WhichLayersAreMoeIsSaidInSevenWays) {
    const auto with = [](const std::string& key, const Json& value) {
        Json json = small();
        json[key] = value;
        return moe_at(hugging_face(json));
    };
    using Layers = std::vector<int>;
    EXPECT_EQ(moe_at(hugging_face(small())), (Layers{1, 1, 1, 1}));
    EXPECT_EQ(with("first_k_dense_replace", 1), (Layers{0, 1, 1, 1}));
    EXPECT_EQ(with("moe_layer_freq", 2), (Layers{1, 0, 1, 0}));  // DeepSeek: layer % freq = 0
    EXPECT_EQ(with("moe_layer_freq", Json::array({0, 1, 1, 0})), (Layers{0, 1, 1, 0}));
    EXPECT_EQ(with("decoder_sparse_step", 2),
              (Layers{0, 1, 0, 1}));  // Qwen: (layer + 1) % step = 0
    EXPECT_EQ(with("mlp_only_layers", Json::array({0, 3})), (Layers{0, 1, 1, 0}));
    EXPECT_EQ(with("interleave_moe_layer_step", 2), (Layers{0, 1, 0, 1}));
    EXPECT_EQ(with("moe_layers", Json::array({2})), (Layers{0, 0, 1, 0}));
    Json both = small();
    both["first_k_dense_replace"] = 2, both["moe_layer_freq"] = 1;
    EXPECT_EQ(moe_at(hugging_face(both)), (Layers{0, 0, 1, 1}));
}

TEST(HuggingFace, SharedExperts) {
    Json json = small();
    json["n_shared_experts"] = 2;
    EXPECT_EQ(first_moe(hugging_face(json))->num_shared_experts, 2);
    EXPECT_EQ(first_moe(hugging_face(json))->shared_expert_hidden_size, 32);
    json = small();
    json["model_type"] = "qwen2_moe", json["shared_expert_intermediate_size"] = 96;
    const MoeFeedForward moe = *first_moe(hugging_face(json));
    EXPECT_EQ(moe.num_shared_experts, 1);
    EXPECT_EQ(moe.shared_expert_hidden_size, 96);
    EXPECT_TRUE(moe.shared_gate);
    EXPECT_TRUE(std::get<GroupedQueryAttention>(hugging_face(json).layers[0].attention)
                    .bias);  // Qwen2's q, k, v
}

TEST(HuggingFace, Windows) {
    Json json = small();
    json["model_type"] = "mistral", json["sliding_window"] = 128;
    EXPECT_EQ(hugging_face(json).layers[3].window, 128);
    json["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention",
                           "full_attention"};
    EXPECT_EQ(hugging_face(json).layers[0].window, 128);
    EXPECT_EQ(hugging_face(json).layers[1].window, std::nullopt);
    json = small();
    json["sliding_window"] = 128, json["use_sliding_window"] = false;
    EXPECT_EQ(hugging_face(json).layers[0].window, std::nullopt);
}

TEST(HuggingFace, ForeignLayersAreRefusedAndNotCountedWrong) {
    Json json = small();
    json["layer_types"] = {"linear_attention", "full_attention", "linear_attention",
                           "full_attention"};
    EXPECT_NE(message(json).find("linear_attention"), std::string::npos);
    json = small();
    json["mamba_d_state"] = 16;
    EXPECT_NE(message(json).find("state-space"), std::string::npos);
}

TEST(HuggingFace, WrongValuesGetOneMessageWithTheirPlace) {
    const auto with = [](const std::string& key, const Json& value) {
        Json json = small();
        json[key] = value;
        return message(json);
    };
    EXPECT_NE(with("num_experts_per_tok", 9).find("1 … the number of experts (8)"),
              std::string::npos);
    EXPECT_NE(with("hidden_size", -1).find("/hidden_size is -1"), std::string::npos);
    EXPECT_NE(with("hidden_size", "64").find("/hidden_size"), std::string::npos);
    EXPECT_NE(with("num_hidden_layers", 1'000'000).find("/num_hidden_layers"), std::string::npos);
    EXPECT_NE(with("num_hidden_layers", 1e300).find("/num_hidden_layers"), std::string::npos);
    EXPECT_NE(with("num_experts", 4'000'000'000LL).find("/num_experts"), std::string::npos);
    EXPECT_NE(with("mlp_only_layers", Json::array({99})).find("/mlp_only_layers/0"),
              std::string::npos);
    EXPECT_NE(with("layer_types", Json::array({"full_attention"})).find("/layer_types"),
              std::string::npos);
    EXPECT_NE(with("moe_layer_freq", Json::array({1, 1})).find("one entry a layer (4)"),
              std::string::npos);
    for (const char* key : {"hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
                            "num_experts_per_tok"}) {
        Json json = small();
        json.erase(key);
        EXPECT_NE(message(json).find(key), std::string::npos) << message(json);
    }
}

TEST(HuggingFace, NoChangedValueEndsInAnythingButAModelOrAMessage) {
    // Seeded: each key in turn takes each of a list of hostile values, alone and in pairs.
    const std::vector<Json> hostile = {nullptr,
                                       -1,
                                       0,
                                       1,
                                       7,
                                       1e308,
                                       2147483647,
                                       9223372036854775807LL,
                                       1.5,
                                       "x",
                                       "",
                                       Json::array(),
                                       Json::object(),
                                       true,
                                       Json::array({1, "a"})};
    std::mt19937 random(7);
    const Json samples[] = {small(), Json::parse(read_text_file(sample("deepseek-v3.config.json"))),
                            Json::parse(read_text_file(sample("llama4-maverick.config.json"))),
                            Json::parse(read_text_file(sample("gpt-oss-120b.config.json")))};
    int models = 0, messages = 0;
    for (const Json& base : samples)
        for (int i = 0; i < 600; ++i) {
            Json json = base;
            Json& at = json.contains("text_config") ? json["text_config"] : json;
            for (int j = 0; j < 1 + i % 2; ++j) {
                auto key = at.begin();
                std::advance(key, random() % at.size());
                *key = hostile[random() % hostile.size()];
            }
            try {
                const ModelSpec model = hugging_face(json);
                count_parameters(model);
                ++models;
            } catch (const InputError&) {
                ++messages;
            }
        }
    EXPECT_GT(models, 100);
    EXPECT_GT(messages, 100);
}

TEST(MegatronScript, DeepSeekV3IsTheShippedModel) {
    const ModelSpec read = load_model(sample("megatron-dsv3-args.sh")),
                    shipped = load_model("deepseek-v3");
    EXPECT_EQ(count_parameters(read).total, count_parameters(shipped).total);
    EXPECT_EQ(read.layers[3].attention, shipped.layers[3].attention);
    EXPECT_EQ(read.num_mtp_layers, 1);
    EXPECT_EQ(num_moe_layers(read), 58);
    EXPECT_EQ(first_moe(read)->balance, BalanceScope::sequence);
    EXPECT_EQ(first_moe(read)->top_k_groups, 4);
}

TEST(MegatronScript, ShellFormsAreUnderstood) {
    const auto arguments = arguments_of_script(R"(#!/bin/bash
LAYERS=24            # not --num-layers 9
WIDTH=${WIDTH:-512}
ARGS="
  --num-layers $LAYERS   --hidden-size=${WIDTH} \
  --num-attention-heads $((2 * 4))
"
OTHER=(
  --vocab-size 1000    # a comment with --num-experts 3
  # --num-experts 5
  --swiglu
  --moe-layer-freq '([0]*1+[1]*23)'
)
OTHER+=(--num-experts "16")
torchrun --nnodes 2 train.py ${ARGS} "${OTHER[@]}" --micro_batch_size=2 | tee log.txt
)",
                                               "run.sh");
    EXPECT_EQ(arguments.at("num-layers").value, "24");
    EXPECT_EQ(arguments.at("hidden-size").value, "512");
    EXPECT_EQ(arguments.at("num-attention-heads").value, "8");
    EXPECT_EQ(arguments.at("vocab-size").value, "1000");
    EXPECT_EQ(arguments.at("swiglu").value, "true");
    EXPECT_EQ(arguments.at("num-experts").value, "16");
    EXPECT_EQ(arguments.at("micro-batch-size").value, "2");
    EXPECT_EQ(arguments.at("moe-layer-freq").value, "([0]*1+[1]*23)");
}

TEST(MegatronScript, AValueNobodySetIsAskedFor) {
    const auto arguments = arguments_of_script(
        "torchrun --num-layers $LAYERS --hidden-size 64 --num-attention-heads 4 --vocab-size 100",
        "run.sh");
    try {
        model_from_megatron(arguments, "run.sh", "test");
        FAIL();
    } catch (const InputError& error) {
        EXPECT_NE(std::string(error.what()).find("--num-layers"), std::string::npos);
        EXPECT_NE(std::string(error.what()).find("NAME=…"), std::string::npos);
    }
}

TEST(MegatronScript, BranchesThatDisagreeAreNotGuessed) {
    const auto arguments = arguments_of_script(
        "if [ $SIZE = small ]; then\n  L=4\nelse\n  L=8\nfi\nrun --num-layers $L", "run.sh");
    EXPECT_EQ(arguments.at("num-layers").value, "${L}");
}

TEST(MegatronScript, LayerPatterns) {
    using Layers = std::vector<int>;
    EXPECT_EQ(moe_layer_pattern("2", 4, "f", 1), (Layers{1, 0, 1, 0}));
    EXPECT_EQ(moe_layer_pattern("([0]*3+[1]*2)", 5, "f", 1), (Layers{0, 0, 0, 1, 1}));
    EXPECT_EQ(moe_layer_pattern("([0,1]*2)", 4, "f", 1), (Layers{0, 1, 0, 1}));
    EXPECT_EQ(moe_layer_pattern("[1, 0]", 2, "f", 1), (Layers{1, 0}));
    for (const char* wrong :
         {"", "[2]*4", "([0]*3", "[0]*99999999", "((((((((((((((((((((((((((((((", "[0]*3",
          "__import__('os')", "-1", "0"})
        EXPECT_THROW(moe_layer_pattern(wrong, 4, "f", 1), InputError) << wrong;
}

TEST(MegatronScript, NoCutOrChangedByteEndsInAnythingButAModelOrAMessage) {
    const std::string whole = read_text_file(sample("megatron-dsv3-args.sh"));
    std::mt19937 random(3);
    int models = 0, messages = 0;   // anything else that is thrown fails the test
    for (int i = 0; i < 1500; ++i) {
        std::string text = i % 3 == 0 ? whole.substr(0, random() % whole.size()) : whole;
        for (int j = 0; j < 1 + i % 4 && !text.empty(); ++j)
            text[random() % text.size()] =
                static_cast<char>(" \"'$(){}[]#\\\n=-*;|`0a"[random() % 22]);
        try {
            const auto arguments = arguments_of_script(text, "run.sh");
            count_parameters(model_from_megatron(arguments, "run.sh", "test"));
            layout_from_megatron(arguments, "run.sh");
            ++models;
        } catch (const InputError& error) {
            EXPECT_STRNE(error.what(), "");
            ++messages;
        }
    }
    EXPECT_GT(models, 0);     // some changes do no harm,
    EXPECT_GT(messages, 0);   // and some are seen
}

TEST(MegatronYaml, QwenIsTheShippedModel) {
    const ModelSpec read = load_model(sample("qwen3-235b-megatron.yaml")),
                    shipped = load_model("qwen3-235b-a22b");
    EXPECT_EQ(count_parameters(read).total, count_parameters(shipped).total);
    EXPECT_EQ(read.layers[0].attention, shipped.layers[0].attention);
    const LayoutWords words = read_layout_words(sample("qwen3-235b-megatron.yaml"));
    EXPECT_EQ(words.at("tp"), "2");
    EXPECT_EQ(words.at("vpp"), "4");  // (94 + embedding + head) / (8 · 3)
    EXPECT_EQ(words.at("recompute_modules"), "layernorm moe_act");
}

TEST(OlmoCore, OverridesAreNotAModel) {
    try {
        load_model(sample("emo-overrides.sh"));
        FAIL();
    } catch (const InputError& error) {
        const std::string what = error.what();
        EXPECT_NE(what.find("num-experts = 128"), std::string::npos) << what;
        EXPECT_NE(what.find("d_model"), std::string::npos) << what;
    }
}

TEST(PipelineLayoutString, CountsAreThoseOfTheString) {
    const PipelineLayout layout = parse_pipeline_layout("Et|(tt|)*30mL", "--layout");
    EXPECT_EQ(layout.layers.size(), 32u);  // 1 + 30 + 1
    EXPECT_EQ(layout.num_layers, 61);      // 1 + 30·2
    EXPECT_EQ(layout.num_mtp_layers, 1);
    EXPECT_EQ(layout.layers.back(), 0);
    EXPECT_EQ(parse_pipeline_layout("Ettt|t*4|tx2L", "--layout").layers, (std::vector{3, 4, 2}));
    for (const char* wrong :
         {"Et|(tt", "t|E", "tLt", "E|L", "(t)*99999999", "((((((((((((((((((((((((((((t", "q"})
        EXPECT_THROW(parse_pipeline_layout(wrong, "--layout"), InputError) << wrong;
}

}  // namespace
}  // namespace moeplan
