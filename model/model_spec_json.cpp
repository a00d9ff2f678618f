/// A model as a file. Layers that repeat are written once: {"count": 58, …}, or a pattern of some
/// layers
/// {"count": 18, "pattern": [{…}, {…}]}.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/errors.hpp"
#include "core/text.hpp"
#include "model/model_spec.hpp"

namespace moeplan {
namespace {

constexpr int kMost = 1 << 30;
constexpr int kMostLayers = 10'000;

Attention read_attention(const JsonReader& json) {
    json.refuse_unknown({"grouped_query", "latent"});
    if (const auto latent = json.find("latent")) {
        if (json.has("grouped_query")) json.fail("either grouped_query or latent");
        latent->refuse_unknown({"num_attention_heads", "q_lora_rank", "kv_lora_rank", "nope_size",
                                "rope_size", "value_size"});
        return LatentAttention{
            .num_attention_heads = latent->at("num_attention_heads").count(1, kMost),
            .q_lora_rank = latent->count_or("q_lora_rank", 0, 0, kMost),
            .kv_lora_rank = latent->at("kv_lora_rank").count(1, kMost),
            .nope_size = latent->at("nope_size").count(0, kMost),
            .rope_size = latent->at("rope_size").count(0, kMost),
            .value_size = latent->at("value_size").count(1, kMost)};
    }
    const JsonReader gqa = json.at("grouped_query");
    gqa.refuse_unknown({"num_attention_heads", "num_kv_heads", "head_size", "bias", "output_bias",
                        "qk_norm", "qk_norm_full", "sinks"});
    const int heads = gqa.at("num_attention_heads").count(1, kMost);
    return GroupedQueryAttention{.num_attention_heads = heads,
                                 .num_kv_heads = gqa.count_or("num_kv_heads", heads, 1, kMost),
                                 .head_size = gqa.at("head_size").count(1, kMost),
                                 .bias = gqa.boolean_or("bias", false),
                                 .output_bias = gqa.boolean_or("output_bias", false),
                                 .qk_norm = gqa.boolean_or("qk_norm", false),
                                 .qk_norm_full = gqa.boolean_or("qk_norm_full", false),
                                 .sinks = gqa.boolean_or("sinks", false)};
}

FeedForward read_feed_forward(const JsonReader& json) {
    json.refuse_unknown({"dense", "moe"});
    if (const auto dense = json.find("dense")) {
        if (json.has("moe")) json.fail("either dense or moe");
        dense->refuse_unknown({"dense_hidden_size", "activation", "bias"});
        return DenseFeedForward{.dense_hidden_size = dense->at("dense_hidden_size").count(1, kMost),
                                .activation = dense->choice_or("activation", Activation::swiglu),
                                .bias = dense->boolean_or("bias", false)};
    }
    const JsonReader moe = json.at("moe");
    moe.refuse_unknown({"num_experts",
                        "top_k",
                        "expert_hidden_size",
                        "num_shared_experts",
                        "shared_expert_hidden_size",
                        "shared_gate",
                        "router_covers_shared",
                        "num_moe_heads",
                        "activation",
                        "bias",
                        "sub_norm",
                        "selection_bias",
                        "renormalise_gates",
                        "router_bias",
                        "head_bias",
                        "inner_residual",
                        "num_groups",
                        "top_k_groups",
                        "router_size",
                        "routed_scale",
                        "balance_coefficient",
                        "z_loss_coefficient",
                        "capacity_factor",
                        "routing",
                        "pool",
                        "balance"});
    const MoeFeedForward otherwise;
    MoeFeedForward out;
    out.num_experts = moe.at("num_experts").count(1, kMost);
    const JsonReader top_k = moe.at("top_k");
    out.top_k = top_k.count(1, kMost);
    if (out.top_k > out.num_experts)
        top_k.fail("1 … num_experts (" + std::to_string(out.num_experts) + ")");
    out.expert_hidden_size = moe.at("expert_hidden_size").count(1, kMost);
    out.num_shared_experts = moe.count_or("num_shared_experts", 0, 0, kMost);
    out.shared_expert_hidden_size =
        moe.count_or("shared_expert_hidden_size",
                     out.num_shared_experts > 0 ? out.expert_hidden_size : 0, 0, kMost);
    out.shared_gate = moe.boolean_or("shared_gate", false);
    out.router_covers_shared = moe.boolean_or("router_covers_shared", false);
    out.num_moe_heads = moe.count_or("num_moe_heads", 1, 1, kMost);
    out.activation = moe.choice_or("activation", otherwise.activation);
    out.bias = moe.boolean_or("bias", false);
    out.sub_norm = moe.boolean_or("sub_norm", false);
    out.selection_bias = moe.boolean_or("selection_bias", false);
    out.renormalise_gates = moe.boolean_or("renormalise_gates", false);
    out.router_bias = moe.boolean_or("router_bias", false);
    out.head_bias = moe.boolean_or("head_bias", false);
    out.inner_residual = moe.boolean_or("inner_residual", false);
    out.num_groups = moe.count_or("num_groups", 0, 0, kMost);
    out.top_k_groups = moe.count_or("top_k_groups", 0, 0, kMost);
    out.router_size = moe.count_or("router_size", 0, 0, kMost);
    out.routed_scale = moe.number_or("routed_scale", otherwise.routed_scale);
    out.balance_coefficient = moe.number_or("balance_coefficient", otherwise.balance_coefficient);
    out.z_loss_coefficient = moe.number_or("z_loss_coefficient", otherwise.z_loss_coefficient);
    if (const auto factor = moe.find("capacity_factor")) out.capacity_factor = factor->number();
    out.routing = moe.text_or("routing", otherwise.routing);
    if (const auto pool = moe.find("pool")) {
        pool->refuse_unknown({"smallest", "largest"});
        out.pool = DocumentPool{.smallest = pool->at("smallest").count(1, kMost),
                                .largest = pool->at("largest").count(1, kMost)};
    }
    out.balance = moe.choice_or("balance", otherwise.balance);
    return out;
}

LayerSpec read_layer(const JsonReader& json) {
    json.refuse_unknown({"count", "attention", "feed_forward", "window"});
    LayerSpec out{.attention = read_attention(json.at("attention")),
                  .feed_forward = read_feed_forward(json.at("feed_forward"))};
    if (const auto window = json.find("window")) out.window = window->count(1, kMost);
    return out;
}

Json attention_json(const Attention& attention) {
    Json out = Json::object();
    if (const auto* mla = std::get_if<LatentAttention>(&attention)) {
        out["latent"] = {{"num_attention_heads", mla->num_attention_heads},
                         {"q_lora_rank", mla->q_lora_rank},
                         {"kv_lora_rank", mla->kv_lora_rank},
                         {"nope_size", mla->nope_size},
                         {"rope_size", mla->rope_size},
                         {"value_size", mla->value_size}};
        return out;
    }
    const auto& gqa = std::get<GroupedQueryAttention>(attention);
    Json& json = out["grouped_query"];
    json["num_attention_heads"] = gqa.num_attention_heads;
    json["num_kv_heads"] = gqa.num_kv_heads;
    json["head_size"] = gqa.head_size;
    if (gqa.bias) json["bias"] = true;
    if (gqa.output_bias) json["output_bias"] = true;
    if (gqa.qk_norm) json["qk_norm"] = true;
    if (gqa.qk_norm_full) json["qk_norm_full"] = true;
    if (gqa.sinks) json["sinks"] = true;
    return out;
}

/// Only what differs from the default is written, so that a file shows what is special.
Json feed_forward_json(const FeedForward& feed_forward) {
    Json out = Json::object();
    if (const auto* dense = std::get_if<DenseFeedForward>(&feed_forward)) {
        Json& json = out["dense"];
        json["dense_hidden_size"] = dense->dense_hidden_size;
        json["activation"] = std::string(name_of(dense->activation));
        if (dense->bias) json["bias"] = true;
        return out;
    }
    const auto& moe = std::get<MoeFeedForward>(feed_forward);
    const MoeFeedForward otherwise;
    Json& json = out["moe"];
    json["num_experts"] = moe.num_experts;
    json["top_k"] = moe.top_k;
    json["expert_hidden_size"] = moe.expert_hidden_size;
    if (moe.num_shared_experts > 0) json["num_shared_experts"] = moe.num_shared_experts;
    if (moe.shared_expert_hidden_size > 0)
        json["shared_expert_hidden_size"] = moe.shared_expert_hidden_size;
    if (moe.shared_gate) json["shared_gate"] = true;
    if (moe.router_covers_shared) json["router_covers_shared"] = true;
    if (moe.num_moe_heads != 1) json["num_moe_heads"] = moe.num_moe_heads;
    json["activation"] = std::string(name_of(moe.activation));
    if (moe.bias) json["bias"] = true;
    if (moe.sub_norm) json["sub_norm"] = true;
    if (moe.selection_bias) json["selection_bias"] = true;
    if (moe.renormalise_gates) json["renormalise_gates"] = true;
    if (moe.router_bias) json["router_bias"] = true;
    if (moe.head_bias) json["head_bias"] = true;
    if (moe.inner_residual) json["inner_residual"] = true;
    if (moe.num_groups > 0) json["num_groups"] = moe.num_groups;
    if (moe.top_k_groups > 0) json["top_k_groups"] = moe.top_k_groups;
    if (moe.router_size > 0) json["router_size"] = moe.router_size;
    if (moe.routed_scale != otherwise.routed_scale) json["routed_scale"] = moe.routed_scale;
    if (moe.balance_coefficient != otherwise.balance_coefficient)
        json["balance_coefficient"] = moe.balance_coefficient;
    if (moe.z_loss_coefficient != otherwise.z_loss_coefficient)
        json["z_loss_coefficient"] = moe.z_loss_coefficient;
    if (moe.capacity_factor) json["capacity_factor"] = *moe.capacity_factor;
    if (moe.routing != otherwise.routing) json["routing"] = moe.routing;
    if (moe.pool) json["pool"] = {{"smallest", moe.pool->smallest}, {"largest", moe.pool->largest}};
    if (moe.balance != otherwise.balance) json["balance"] = std::string(name_of(moe.balance));
    return out;
}

Json layer_json(const LayerSpec& layer) {
    Json out = Json::object();
    out["attention"] = attention_json(layer.attention);
    out["feed_forward"] = feed_forward_json(layer.feed_forward);
    if (layer.window) out["window"] = *layer.window;
    return out;
}

/// Greedy: from each layer on, the period (of at most eight layers) whose repetitions reach
/// furthest; on a tie the shortest.
Json layers_json(const std::vector<LayerSpec>& layers) {
    constexpr std::size_t kLongestPattern = 8;
    Json out = Json::array();
    std::size_t i = 0;
    while (i < layers.size()) {
        std::size_t period = 1, reach = 0;
        for (std::size_t p = 1; p <= std::min(kLongestPattern, layers.size() - i); ++p) {
            std::size_t end = i + p;
            while (end < layers.size() && layers[end] == layers[end - p]) ++end;
            const std::size_t repetitions = (end - i) / p;
            if (p > 1 && repetitions < 2) continue;
            if (repetitions * p > reach) reach = repetitions * p, period = p;
        }
        Json entry = Json::object();
        entry["count"] = reach / period;
        if (period == 1) {
            entry.update(layer_json(layers[i]));
        } else {
            Json& pattern = entry["pattern"] = Json::array();
            for (std::size_t j = 0; j < period; ++j) pattern.push_back(layer_json(layers[i + j]));
        }
        out.push_back(std::move(entry));
        i += reach;
    }
    return out;
}

}  // namespace

ModelSpec model_from_json(const JsonReader& json) {
    json.refuse_unknown({"name", "source", "hidden_size", "vocab_size", "num_mtp_layers",
                         "max_sequence_length", "tied_embeddings", "learned_positions", "norm",
                         "rope_theta", "layers"});
    ModelSpec out;
    out.name = json.text_or("name", "model");
    out.hidden_size = json.at("hidden_size").count(1, kMost);
    out.vocab_size = json.at("vocab_size").count(1, kMost);
    out.num_mtp_layers = json.count_or("num_mtp_layers", 0, 0, kMost);
    out.max_sequence_length = json.count_or("max_sequence_length", 0, 0, kMost);
    out.tied_embeddings = json.boolean_or("tied_embeddings", false);
    out.learned_positions = json.boolean_or("learned_positions", false);
    out.norm = json.choice_or("norm", Norm::rms);
    out.rope_theta = json.number_or("rope_theta", 10000);
    for (const JsonReader& entry : json.at("layers").items()) {
        const int count = entry.count_or("count", 1, 1, kMostLayers);
        std::vector<LayerSpec> pattern;
        if (const auto listed = entry.find("pattern")) {
            entry.refuse_unknown({"count", "pattern"});
            for (const JsonReader& layer : listed->items()) pattern.push_back(read_layer(layer));
            if (pattern.empty()) listed->fail("at least one layer");
        } else {
            pattern.push_back(read_layer(entry));
        }
        if (out.layers.size() + pattern.size() * static_cast<std::size_t>(count) > kMostLayers)
            entry.fail("at most " + std::to_string(kMostLayers) + " layers in all");
        for (int i = 0; i < count; ++i)
            out.layers.insert(out.layers.end(), pattern.begin(), pattern.end());
    }
    require_sound(out, json.file());
    return out;
}

Json to_json(const ModelSpec& model) {
    Json out = json_header("model");
    out["name"] = model.name;
    out["hidden_size"] = model.hidden_size;
    out["vocab_size"] = model.vocab_size;
    if (model.num_mtp_layers > 0) out["num_mtp_layers"] = model.num_mtp_layers;
    if (model.max_sequence_length > 0) out["max_sequence_length"] = model.max_sequence_length;
    out["tied_embeddings"] = model.tied_embeddings;
    if (model.learned_positions) out["learned_positions"] = true;
    out["norm"] = std::string(name_of(model.norm));
    out["rope_theta"] = model.rope_theta;
    out["layers"] = layers_json(model.layers);
    return out;
}

}  // namespace moeplan
