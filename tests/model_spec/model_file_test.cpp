/// Models as files: what is written reads back, what is wrong is refused with its place.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/errors.hpp"
#include "model/model_spec.hpp"
#include "model/op_counts.hpp"

namespace moeplan {
namespace {

std::string message(const std::string& text) {
    try {
        model_from_json(JsonReader::from_text(text, "model.json"));
    } catch (const InputError& error) {
        return error.what();
    }
    return "accepted";
}

TEST(ModelFile, EveryShippedModelReadsBackEqual) {
    for (const auto& name : shipped_models()) {
        const ModelSpec model = load_model(name);
        EXPECT_EQ(model.name, name);
        const Json json = to_json(model);
        EXPECT_EQ(model_from_json(JsonReader::from_value(json, "again")), model) << name;
        EXPECT_LE(json.at("layers").size(), 2u) << name << ": repeated layers are written once";
    }
}

TEST(ModelFile, IrregularLayersSurvive) {
    ModelSpec model = load_model("deepseek-v3");
    model.layers[10].window = 77;
    std::swap(model.layers[2], model.layers[40]);
    EXPECT_EQ(model_from_json(JsonReader::from_value(to_json(model), "again")), model);
}

TEST(ModelFile, FaultsNameTheirPlace) {
    const std::string attention =
        R"("attention": {"grouped_query": {"num_attention_heads": 4, "head_size": 8}})";
    const auto with = [&](const std::string& feed_forward) {
        return R"({"hidden_size": 32, "vocab_size": 100, "layers": [{)" + attention +
               R"(, "feed_forward": )" + feed_forward + "}]}";
    };
    EXPECT_EQ(
        message(with(R"({"moe": {"num_experts": 8, "top_k": 12, "expert_hidden_size": 16}})")),
        "model.json: /layers/0/feed_forward/moe/top_k is 12, expected 1 … num_experts (8)");
    EXPECT_NE(message(with(R"({"moe": {"num_expert": 8, "top_k": 1, "expert_hidden_size": 16}})"))
                  .find("num_experts\" perhaps"),
              std::string::npos);
    EXPECT_NE(message(with(R"({"dense": {"dense_hidden_size": 0}})")).find("dense_hidden_size"),
              std::string::npos);
    EXPECT_NE(message(with(R"({"dense": {"dense_hidden_size": "64"}})")).find("an integer"),
              std::string::npos);
    EXPECT_NE(message(with(R"({})")).find("moe"), std::string::npos);
    EXPECT_NE(message(R"({"hidden_size": 32, "vocab_size": 100, "layers": []})")
                  .find("at least one layer"),
              std::string::npos);
    EXPECT_NE(message(R"({"hidden_size": 32, "vocab_size": 100, "layers": [{"count": 10000000, )" +
                      attention + R"(, "feed_forward": {"dense": {"dense_hidden_size": 4}}}]})")
                  .find("count"),
              std::string::npos);
    EXPECT_EQ(message(with(R"({"dense": {"dense_hidden_size": 64}})")), "accepted");
    EXPECT_NE(
        message(
            with(
                R"({"moe": {"num_experts": 8, "top_k": 1, "expert_hidden_size": 16, "num_moe_heads": 3}})"))
            .find("a divisor of hidden_size (32)"),
        std::string::npos);
}

TEST(ModelFile, AnImpossiblyLargeModelIsRefusedAndNotCounted) {
    const std::string text =
        R"({"hidden_size": 1048576, "vocab_size": 100, "layers": [{"count": 10000,
        "attention": {"grouped_query": {"num_attention_heads": 1000000, "head_size": 1000000}},
        "feed_forward": {"moe": {"num_experts": 60000, "top_k": 1, "expert_hidden_size": 16000000}}}]})";
    EXPECT_NE(message(text).find("parameters"), std::string::npos) << message(text);
}

TEST(ModelName, AMisspeltOneGetsTheNearest) {
    try {
        load_model("mixtral-8x7");
        FAIL();
    } catch (const InputError& error) {
        EXPECT_NE(std::string(error.what()).find("mixtral-8x7b"), std::string::npos);
    }
}

}  // namespace
}  // namespace moeplan
