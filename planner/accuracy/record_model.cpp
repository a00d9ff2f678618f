/// The `architecture` of a record as a ModelSpec.

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "planner/accuracy/record.hpp"

namespace moeplan {
namespace {

constexpr int kMost = 1 << 24;  ///< of any width; beyond it no model is meant

/// A count under any of the names that sources give it.
std::optional<int> count_of(const JsonReader& reader, std::initializer_list<const char*> keys,
                            int least = 0) {
    for (const char* key : keys)
        if (const auto found = reader.find(key)) return found->count(least, kMost);
    return std::nullopt;
}

int needed(const JsonReader& reader, std::initializer_list<const char*> keys) {
    if (const auto value = count_of(reader, keys, 1)) return *value;
    reader.fail(std::string("an object with \"") + *keys.begin() + "\"");
}

/// "128 tokens on alternate layers", 4096, "1024 tokens on 5 of 6 layers".
struct Windows {
    std::optional<int> tokens;
    int windowed = 1, of = 1;  ///< the first `windowed` of every `of` layers
};
Windows windows_of(const JsonReader& reader) {
    Windows out;
    const auto found = reader.find("sliding_window");
    if (!found) return out;
    if (found->is_number()) {
        out.tokens = found->count(1, kMost);
        return out;
    }
    std::vector<int> numbers;
    bool alternate = false;
    for (const std::string& word : lower_words(found->text())) {
        if (std::all_of(word.begin(), word.end(),
                        [](unsigned char c) { return std::isdigit(c) != 0; }) &&
            word.size() < 9)
            numbers.push_back(std::stoi(word));
        alternate = alternate || word == "alternate" || word == "alternating" || word == "other";
    }
    if (numbers.empty() || numbers[0] < 1)
        found->fail("a number of tokens, as \"128 tokens on alternate layers\"");
    out.tokens = numbers[0];
    if (alternate) out.of = 2;
    if (numbers.size() >= 3 && numbers[1] > 0 && numbers[2] >= numbers[1]) {
        out.windowed = numbers[1];
        out.of = numbers[2];
    }
    return out;
}

Activation activation_of(const JsonReader& reader, std::vector<std::string>& assumptions) {
    const auto found = reader.find("activation");
    if (!found) reader.fail("an object with \"activation\"");
    const std::string text = found->text();
    if (text == "swiglu" || text == "geglu" || text == "reglu") return Activation::swiglu;
    if (text == "gelu") return Activation::gelu;
    if (text == "relu" || text == "squared_relu" || text == "relu2") {
        if (text != "relu") assumptions.push_back("activation: " + text + " costs what relu does");
        return Activation::relu;
    }
    found->fail("swiglu, geglu, gelu, relu or squared_relu");
}

bool says(const std::map<std::string, std::string>& arguments, const char* key) {
    const auto found = arguments.find(key);
    return found != arguments.end() && found->second == "true";
}

Attention attention_of(const JsonReader& reader, const std::string& name, bool bias,
                       const std::map<std::string, std::string>& arguments) {
    const std::string kind = reader.text_or("attention", "gqa");
    const int heads = needed(reader, {"heads", "num_attention_heads"});
    if (kind == "mla") {
        LatentAttention out;
        out.num_attention_heads = heads;
        out.kv_lora_rank = needed(reader, {"kv_lora_rank"});
        out.q_lora_rank = count_of(reader, {"q_lora_rank"}).value_or(0);
        out.nope_size = needed(reader, {"qk_head_dim", "qk_nope_head_dim", "qk_nope_dim"});
        out.rope_size = needed(reader, {"qk_rope_dim", "qk_rope_head_dim", "qk_pos_emb_head_dim"});
        out.value_size = needed(reader, {"v_head_dim"});
        return out;
    }
    if (kind != "mha" && kind != "gqa" && kind != "mqa")
        reader.at("attention").fail("mha, gqa, mqa or mla");
    GroupedQueryAttention out;
    out.num_attention_heads = heads;
    out.num_kv_heads = kind == "mha"   ? heads
                       : kind == "mqa" ? 1
                                       : needed(reader, {"kv_heads", "num_kv_heads"});
    if (heads % out.num_kv_heads != 0)
        reader.fail("kv_heads that divide the " + std::to_string(heads) + " heads");
    out.head_size = needed(reader, {"head_dim", "head_size"});
    out.bias = out.output_bias = bias;
    // Qwen3 normalises q and k in every size; a published fact of the family, not of the run.
    out.qk_norm =
        reader.boolean_or("qk_norm", says(arguments, "qk_layernorm") || name.starts_with("Qwen3"));
    out.sinks = reader.boolean_or("sinks", name.starts_with("GPT-OSS"));
    return out;
}

}  // namespace

ModelSpec model_of_architecture(const JsonReader& reader, const std::string& name,
                                int sequence_length,
                                const std::map<std::string, std::string>& arguments,
                                std::vector<std::string>& assumptions) {
    ModelSpec model;
    model.name = name;
    model.hidden_size = needed(reader, {"hidden", "hidden_size"});
    model.vocab_size = needed(reader, {"vocab", "vocab_size"});
    const int layers = reader.at("layers").count(1, 10'000);
    const std::string type = reader.at("type").text();
    if (type != "moe" && type != "dense") reader.at("type").fail("moe or dense");

    const Activation activation = activation_of(reader, assumptions);
    const bool gpt = activation == Activation::gelu;
    // Megatron's GPT has biases, layer norms, one table for input and output and learned positions
    // unless a record says otherwise; gated models have none of them.
    const bool bias = reader.boolean_or("bias", gpt);
    model.norm = gpt ? Norm::layer : Norm::rms;
    model.tied_embeddings = reader.boolean_or("tied_embeddings", gpt);
    model.learned_positions = reader.boolean_or("learned_positions", gpt);
    if (model.learned_positions) model.max_sequence_length = sequence_length;
    model.num_mtp_layers = count_of(reader, {"mtp_layers"}).value_or(0);
    if (model.num_mtp_layers > 64) reader.at("mtp_layers").fail("0 … 64");

    const Attention attention = attention_of(reader, name, bias, arguments);
    const Windows windows = windows_of(reader);
    int dense_layers = layers, every = 1;
    MoeFeedForward moe;
    if (type == "moe") {
        dense_layers = count_of(reader, {"dense_layers"}).value_or(0);
        if (dense_layers > layers) reader.at("dense_layers").fail("at most the layers");
        every = std::max(1, count_of(reader, {"moe_every"}, 1).value_or(1));
        moe.num_experts = needed(reader, {"num_experts"});
        moe.top_k = needed(reader, {"topk", "top_k"});
        if (moe.top_k > moe.num_experts)
            reader.at("topk").fail("at most the " + std::to_string(moe.num_experts) + " experts");
        moe.expert_hidden_size = needed(reader, {"moe_ffn", "expert_ffn"});
        if (const int shared = count_of(reader, {"shared_expert_ffn"}).value_or(0)) {
            moe.num_shared_experts = 1;
            moe.shared_expert_hidden_size = shared;
        }
        moe.activation = activation;
        moe.bias = moe.router_bias = reader.boolean_or("bias", false);
        moe.renormalise_gates = true;
    }
    const bool some_dense = dense_layers > 0 || every > 1;
    DenseFeedForward dense;
    if (type == "dense" || some_dense) {
        dense.dense_hidden_size = type == "dense"
                                      ? needed(reader, {"ffn", "dense_ffn", "ffn_hidden_size"})
                                      : needed(reader, {"dense_ffn", "ffn"});
        dense.activation = activation;
        dense.bias = bias;
    }
    for (int l = 0; l < layers; ++l) {
        LayerSpec layer;
        layer.attention = attention;
        const bool is_moe =
            type == "moe" && l >= dense_layers && (l - dense_layers) % every == every - 1;
        if (is_moe)
            layer.feed_forward = moe;
        else
            layer.feed_forward = dense;
        if (windows.tokens && l % windows.of < windows.windowed) layer.window = *windows.tokens;
        model.layers.push_back(std::move(layer));
    }
    require_sound(model, reader.file() + ": " + reader.pointer());
    return model;
}

}  // namespace moeplan
