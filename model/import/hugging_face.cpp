/// The keys differ by family, and so do defaults that no file states; each is taken from the
/// family's class in Transformers (src/transformers/models/<model_type>/) and marked with it here.
#include "model/import/hugging_face.hpp"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/errors.hpp"

namespace moeplan {
namespace {

constexpr int kMost = 1 << 30;
constexpr int kMostLayers = 10'000;

using Names = std::initializer_list<const char*>;

/// The first of several spellings of one key that is present.
std::optional<JsonReader> any_of(const JsonReader& json, Names names) {
    for (const char* name : names)
        if (auto found = json.find(name)) return found;
    return std::nullopt;
}

int required(const JsonReader& json, Names names, int least = 1) {
    if (const auto found = any_of(json, names)) return found->count(least, kMost);
    throw InputError(json.file(), json.pointer() + "/" + *names.begin(), "missing",
                     "an integer (Hugging Face config)");
}

int count_or(const JsonReader& json, Names names, int otherwise, int least = 0) {
    const auto found = any_of(json, names);
    return found ? found->count(least, kMost) : otherwise;
}

bool starts_with_any(std::string_view text, std::initializer_list<std::string_view> prefixes) {
    return std::any_of(prefixes.begin(), prefixes.end(),
                       [&](std::string_view prefix) { return text.starts_with(prefix); });
}
bool is_any(std::string_view text, std::initializer_list<std::string_view> words) {
    return std::find(words.begin(), words.end(), text) != words.end();
}

/// The text model of a multi-modal configuration is nested.
JsonReader text_part(const JsonReader& root) {
    if (any_of(root, {"num_hidden_layers", "n_layer", "n_layers", "num_layers"})) return root;
    for (const char* key : {"text_config", "language_config", "llm_config", "thinker_config"})
        if (const auto inner = root.find(key); inner && inner->is_object())
            return text_part(*inner);
    return root;
}

/// What we have no layer for must not be read as something else.
void refuse_foreign_layers(const JsonReader& json, const std::string& type) {
    const auto refuse = [&](const JsonReader& at, const char* what) {
        at.fail(
            std::string("a model whose layers are softmax attention and a feed-forward network (") +
            what + " is not modelled)");
    };
    for (const char* key : {"linear_num_value_heads", "linear_key_head_dim", "mamba_d_state",
                            "mamba_d_conv", "ssm_state_size", "attn_layer_period",
                            "lightning_attention", "hybrid_override_pattern", "linear_attn_config"})
        if (const auto found = json.find(key))
            refuse(*found, "linear attention or a state-space layer");
    for (const char* key : {"index_n_heads", "index_topk", "sparse_attention_config"})
        if (const auto found = json.find(key)) refuse(*found, "sparse attention with an indexer");
    if (const auto kinds = json.find("attn_type_list"); kinds && kinds->is_array())
        for (const JsonReader& one : kinds->items())
            if (one.is_number() && one.number() == 0) refuse(one, "lightning attention");
    if (const auto bias = json.find("lm_head_bias"); bias && bias->boolean())
        refuse(*bias, "a bias of the head");
    if (const auto residual = json.find("parallel_attn_mlp_res"); residual && residual->boolean())
        refuse(*residual, "a dense network beside the experts");
    // Other norms or blocks than two norms around attention and feed-forward network: the counts
    // would be wrong.
    if (const auto family = json.find("model_type");
        family && (starts_with_any(type, {"gemma2", "gemma3", "gemma4", "cohere", "command",
                                          "falcon", "bloom", "mpt", "gptj", "codegen"}) ||
                   is_any(type, {"phi", "opt", "gpt_neo"})))
        refuse(*family, "this family's block");
    if (const auto types = json.find("layer_types"))
        for (const JsonReader& one : types->items())
            if (!is_any(one.text(), {"full_attention", "sliding_attention", "chunked_attention"}))
                refuse(one, "this layer type");
    if (starts_with_any(type, {"t5", "mt5", "bart", "mbart", "whisper", "bert", "roberta",
                               "switch_transformers", "nllb"}) &&
        json.find("model_type"))
        refuse(*json.find("model_type"), "an encoder");
    if (starts_with_any(type, {"mamba", "rwkv", "falcon_mamba", "jamba", "bamba", "zamba",
                               "recurrent_gemma"}) &&
        json.find("model_type"))
        refuse(*json.find("model_type"), "linear attention or a state-space layer");
}

Activation activation_of(const JsonReader& json, const std::string& type) {
    const auto named =
        any_of(json, {"hidden_act", "hidden_activation", "activation_function", "mlp_hidden_act"});
    const std::string word = named ? named->text() : "silu";
    const bool gelu = word.starts_with("gelu") || word == "quick_gelu";
    // Two matrices and no gate.
    if (is_any(type, {"gpt2", "gptj", "gpt_neo", "gpt_neox", "gpt_bigcode", "opt", "bloom",
                      "falcon", "phi", "starcoder2", "mpt"}))
        return word.starts_with("relu") ? Activation::relu : Activation::gelu;
    if (word.starts_with("relu")) return Activation::relu;
    (void)gelu;  // a gated GELU (Gemma) has three matrices, as SwiGLU has
    return Activation::swiglu;
}

Attention attention_of(const JsonReader& json, const std::string& type, int hidden_size) {
    const JsonReader heads_at = [&] {
        if (const auto found = any_of(json, {"num_attention_heads", "n_head", "n_heads"}))
            return *found;
        throw InputError(json.file(), json.pointer() + "/num_attention_heads", "missing",
                         "an integer (Hugging Face config)");
    }();
    const int heads = heads_at.count(1, kMost);
    if (json.has("kv_lora_rank") && count_or(json, {"kv_lora_rank"}, 0) > 0)
        return LatentAttention{.num_attention_heads = heads,
                               .q_lora_rank = count_or(json, {"q_lora_rank"}, 0),
                               .kv_lora_rank = required(json, {"kv_lora_rank"}),
                               .nope_size = required(json, {"qk_nope_head_dim"}, 0),
                               .rope_size = required(json, {"qk_rope_head_dim"}, 0),
                               .value_size = required(json, {"v_head_dim"})};
    GroupedQueryAttention out;
    out.num_attention_heads = heads;
    out.num_kv_heads = count_or(
        json, {"num_key_value_heads", "n_kv_heads", "num_kv_heads", "multi_query_group_num"}, heads,
        1);
    if (const auto given = any_of(json, {"head_dim", "attention_head_dim"})) {
        out.head_size = given->count(1, kMost);
    } else {
        if (hidden_size % heads != 0)
            heads_at.fail("a divisor of hidden_size (" + std::to_string(hidden_size) +
                          "), as head_dim is not given");
        out.head_size = hidden_size / heads;
    }
    const bool stated = json.boolean_or("attention_bias", false);
    // Qwen2 has biases on q, k, v that no key states; GLM-4 leaves the output projection without
    // one.
    const bool query_only = starts_with_any(type, {"qwen2", "glm4", "chatglm", "glm"});
    out.bias = stated || starts_with_any(type, {"qwen2"}) || json.boolean_or("qkv_bias", false) ||
               json.boolean_or("add_qkv_bias", false) ||
               (starts_with_any(type, {"ernie4_5"}) && json.boolean_or("use_bias", false));
    out.output_bias = (stated && !query_only) ||
                      (starts_with_any(type, {"ernie4_5"}) && json.boolean_or("use_bias", false));
    if (starts_with_any(type, {"qwen3", "gemma3", "dots1", "hunyuan_v1"}))
        out.qk_norm = true;
    else if (is_any(type, {"olmoe", "olmo2", "olmo3", "flex_olmo"}))
        out.qk_norm = out.qk_norm_full = true;
    else if (json.boolean_or("use_qk_norm", false) &&
             !starts_with_any(type, {"llama4"}))  // Llama 4's has no weights
        out.qk_norm = true, out.qk_norm_full = json.text_or("qk_norm_type", "") == "per_layer";
    out.sinks = type == "gpt_oss";
    if (is_any(type, {"gpt2", "opt", "gpt_neox", "starcoder2", "gpt_bigcode"}))
        out.bias = out.output_bias = true;
    return out;
}

/// Which layers are MoE. The five conventions in use; a file states at most one beside
/// `first_k_dense_replace`.
std::vector<bool> moe_layers(const JsonReader& json, const std::string& type, int num_layers) {
    std::vector<bool> out(static_cast<std::size_t>(num_layers), true);
    const auto each = [&](auto&& rule) {
        for (int i = 0; i < num_layers; ++i)
            if (!rule(i)) out[static_cast<std::size_t>(i)] = false;
    };
    if (const auto frequency = json.find("moe_layer_freq")) {
        if (frequency->is_array()) {
            const auto items = frequency->items();
            if (static_cast<int>(items.size()) != num_layers)
                frequency->fail("one entry a layer (" + std::to_string(num_layers) + ")");
            each([&](int i) { return items[static_cast<std::size_t>(i)].count(0, 1) == 1; });
        } else {
            const int every = frequency->count(1, kMost);
            each([&](int i) { return i % every == 0; });
        }
    }
    if (const auto first = any_of(json, {"first_k_dense_replace"})) {
        const int dense = first->count(0, kMost);
        each([&](int i) { return i >= dense; });
    }
    if (const auto step = json.find("decoder_sparse_step")) {
        const int every = step->count(0, kMost);
        each([&](int i) { return every > 0 && (i + 1) % every == 0; });
    }
    if (const auto dense = json.find("mlp_only_layers"))
        for (const JsonReader& one : dense->items())
            out[static_cast<std::size_t>(one.count(0, num_layers - 1))] = false;
    if (const auto listed = json.find("moe_layers"); listed && listed->is_array()) {
        std::vector<bool> named(out.size(), false);
        for (const JsonReader& one : listed->items())
            named[static_cast<std::size_t>(one.count(0, num_layers - 1))] = true;
        each([&](int i) { return static_cast<bool>(named[static_cast<std::size_t>(i)]); });
    } else if (const auto step = json.find("interleave_moe_layer_step")) {
        const int every = step->count(1, kMost);  // Llama 4: the last of each `every` layers
        each([&](int i) { return i % every == every - 1; });
    }
    if (starts_with_any(type, {"ernie4_5_moe"})) {
        const int start = json.count_or("moe_layer_start_index", 1, 0, kMost),
                  every = json.count_or("moe_layer_interval", 1, 1, kMost);
        const auto last = json.find("moe_layer_end_index");
        const int end = last && last->integer() >= 0 ? last->count(0, kMost) : num_layers - 1;
        each([&](int i) { return i >= start && i <= end && (i + 1) % every == 0; });
    }
    return out;
}

MoeFeedForward moe_of(const JsonReader& json, const std::string& type, int num_experts,
                      Activation activation) {
    MoeFeedForward out;
    out.num_experts = num_experts;
    out.activation = activation;
    const auto top_k = any_of(json, {"num_experts_per_tok", "num_experts_per_token", "moe_top_k",
                                     "moe_k", "moe_topk", "experts_per_token", "top_k_experts"});
    if (!top_k)
        throw InputError(json.file(), json.pointer() + "/num_experts_per_tok", "missing",
                         "1 … the number of experts (" + std::to_string(num_experts) + ")");
    out.top_k = top_k->count(1, kMost);
    if (out.top_k > num_experts)
        top_k->fail("1 … the number of experts (" + std::to_string(num_experts) + ")");
    out.expert_hidden_size =
        required(json, {"moe_intermediate_size", "expert_intermediate_size", "moe_ffn_hidden_size",
                        "intermediate_size", "ffn_hidden_size"});

    out.num_shared_experts =
        count_or(json, {"n_shared_experts", "num_shared_experts", "moe_num_shared_experts"}, 0);
    if (const auto width =
            json.find("shared_expert_intermediate_size")) {  // one expert of this width (Qwen2-MoE)
        out.shared_expert_hidden_size = width->count(0, kMost);
        out.num_shared_experts = out.shared_expert_hidden_size > 0 ? 1 : 0;
        out.shared_gate = out.num_shared_experts > 0 && starts_with_any(type, {"qwen"});
    } else if (type.starts_with("llama4")) {  // one, as wide as a routed one
        out.num_shared_experts = 1;
        out.shared_expert_hidden_size = out.expert_hidden_size;
    } else if (out.num_shared_experts > 0) {
        out.shared_expert_hidden_size = out.expert_hidden_size;
    }

    const bool sigmoid =
        json.text_or("scoring_func", "") == "sigmoid" ||
        starts_with_any(type, {"glm4_moe", "dots1", "deepseek_v3", "kimi_k2", "llama4"});
    // DeepSeek-V3's correction bias takes part in the choice alone. It is there for "noaux_tc" and
    // in the families whose class has it always.
    const std::string method = json.text_or("topk_method", "");
    out.selection_bias =
        method == "noaux_tc" || json.boolean_or("use_routing_bias", false) ||
        json.boolean_or("moe_use_aux_free", false) ||
        (method.empty() && starts_with_any(type, {"glm4_moe", "dots1", "deepseek_v3", "kimi_k2"}));
    out.renormalise_gates =
        json.boolean_or("norm_topk_prob",
                        is_any(type, {"mixtral", "gpt_oss"}) ||
                            starts_with_any(type, {"glm4_moe", "deepseek_v3", "kimi_k2", "dots1"}));
    if (sigmoid) out.routing = "sigmoid_top_k";
    out.num_groups = count_or(json, {"n_group"}, 0);
    out.top_k_groups = count_or(json, {"topk_group"}, 0);
    if (out.num_groups <= 1) out.num_groups = out.top_k_groups = 0;  // one group limits nothing
    out.routed_scale = json.number_or("routed_scaling_factor", 1);
    out.balance_coefficient =
        json.number_or("router_aux_loss_coef", json.number_or("aux_loss_alpha", 0));
    out.z_loss_coefficient = json.number_or("router_z_loss_coef", 0);
    if (json.boolean_or("seq_aux", false)) out.balance = BalanceScope::sequence;
    if (type == "gpt_oss") out.bias = out.router_bias = true;
    return out;
}

std::optional<int> window_of(const JsonReader& json, const std::string& type, int layer) {
    const auto size = any_of(json, {"sliding_window", "attention_chunk_size"});
    if (!size) return std::nullopt;
    const int window = size->count(0, kMost);
    if (window == 0) return std::nullopt;
    if (const auto types = json.find("layer_types")) {
        const std::string word = types->at(static_cast<std::size_t>(layer)).text();
        if (word == "full_attention") return std::nullopt;
        return window;
    }
    if (!json.boolean_or("use_sliding_window", true)) return std::nullopt;
    if (starts_with_any(type, {"qwen"}) && !json.has("use_sliding_window"))
        return std::nullopt;  // their default is off
    if (starts_with_any(type, {"qwen"}) && layer < json.count_or("max_window_layers", 0, 0, kMost))
        return std::nullopt;
    if (type == "gpt_oss" || type.starts_with("gemma2"))
        return layer % 2 == 0 ? std::optional(window) : std::nullopt;
    if (type.starts_with("llama4"))  // every fourth layer sees everything
        return (layer + 1) % 4 == 0 ? std::nullopt : std::optional(window);
    if (const int pattern = json.count_or("sliding_window_pattern", 0, 0, kMost); pattern > 0)
        return (layer + 1) % pattern == 0 ? std::nullopt : std::optional(window);
    return window;
}

}  // namespace

bool is_hugging_face(const JsonReader& json) {
    return json.is_object() &&
           (json.has("model_type") || json.has("architectures") || json.has("text_config") ||
            json.has("num_hidden_layers") || json.has("num_attention_heads"));
}

ModelSpec model_from_hugging_face(const JsonReader& root, const std::string& name) {
    const JsonReader json = text_part(root);
    std::string type = json.text_or("model_type", root.text_or("model_type", ""));
    refuse_foreign_layers(json, type);

    ModelSpec out;
    out.name = name;
    out.hidden_size = required(json, {"hidden_size", "d_model", "n_embd"});
    const JsonReader layers_at = [&] {
        if (const auto found =
                any_of(json, {"num_hidden_layers", "n_layers", "n_layer", "num_layers"}))
            return *found;
        throw InputError(json.file(), json.pointer() + "/num_hidden_layers", "missing",
                         "an integer (Hugging Face config)");
    }();
    const int num_layers = layers_at.count(1, kMostLayers);
    out.vocab_size = required(json, {"vocab_size"});
    out.num_mtp_layers =
        count_or(json, {"num_nextn_predict_layers", "mtp_num_hidden_layers", "mtp_num_layers"}, 0);
    out.max_sequence_length =
        count_or(json, {"max_position_embeddings", "n_positions", "max_sequence_length"}, 0);
    out.learned_positions = is_any(type, {"gpt2", "gpt_bigcode"});
    // Families that tie by default; the others' classes say false.
    out.tied_embeddings = json.boolean_or(
        "tie_word_embeddings",
        root.boolean_or("tie_word_embeddings",
                        starts_with_any(type, {"gemma", "gpt2", "bloom", "opt", "cohere"})));
    out.norm = is_any(type, {"gpt2", "gpt_bigcode", "gpt_neox", "starcoder2", "phimoe"})
                   ? Norm::layer
                   : Norm::rms;
    if (const auto theta = json.find("rope_theta"))
        out.rope_theta = theta->number();
    else if (const auto nested = json.find("rope_parameters"); nested && nested->has("rope_theta"))
        out.rope_theta = nested->at("rope_theta").number();

    const auto experts_at = any_of(json, {"num_experts", "num_local_experts", "n_routed_experts",
                                          "moe_num_experts", "num_moe_experts"});
    const int num_experts = experts_at ? experts_at->count(0, 65'534) : 0;
    const Activation activation = activation_of(json, type);
    const Attention attention = attention_of(json, type, out.hidden_size);
    const std::vector<bool> is_moe =
        num_experts > 1 ? moe_layers(json, type, num_layers)
                        : std::vector<bool>(static_cast<std::size_t>(num_layers), false);

    std::optional<MoeFeedForward> moe;
    if (num_experts > 1) moe = moe_of(json, type, num_experts, activation);
    std::optional<DenseFeedForward> dense;
    if (std::find(is_moe.begin(), is_moe.end(), false) != is_moe.end()) {
        // GPT-2's class takes four times the hidden size where the file is silent.
        const auto width = any_of(json, {"intermediate_size_mlp", "intermediate_size",
                                         "ffn_hidden_size", "n_inner", "ffn_dim"});
        if (!width && !starts_with_any(type, {"gpt2", "gptj", "bloom", "falcon"}))
            throw InputError(json.file(), json.pointer() + "/intermediate_size", "missing",
                             "an integer (Hugging Face config)");
        dense = DenseFeedForward{
            .dense_hidden_size = width ? width->count(1, kMost) : 4 * out.hidden_size,
            .activation = activation,
            .bias = json.boolean_or("mlp_bias", out.norm == Norm::layer && type != "phimoe")};
    }
    if (const auto types = json.find("layer_types");
        types && static_cast<int>(types->size()) < num_layers)
        types->fail("one entry a layer (" + std::to_string(num_layers) + ")");
    for (int i = 0; i < num_layers; ++i) {
        LayerSpec layer{.attention = attention,
                        .feed_forward = DenseFeedForward{},
                        .window = window_of(json, type, i)};
        if (is_moe[static_cast<std::size_t>(i)])
            layer.feed_forward = *moe;
        else
            layer.feed_forward = *dense;
        out.layers.push_back(std::move(layer));
    }
    require_sound(out, json.file());
    return out;
}

}  // namespace moeplan
