#include "model/op_counts.hpp"

#include <algorithm>

namespace moeplan {
namespace {

using Count = long long;

/// Matrices of a feed-forward network: a gated one has a third.
int num_matrices(Activation activation) { return activation == Activation::swiglu ? 3 : 2; }

/// A network width → inner → width. Biases: one of `inner` for each matrix into it, one of `width`
/// for the one out of it. Sub-norm: an affine layer norm of the inner width (SubLN; layers.md
/// §1.2).
Count network(Count width, Count inner, Activation activation, bool bias, bool sub_norm) {
    const int into = num_matrices(activation) - 1;
    Count out = (into + 1) * width * inner;
    if (bias) out += into * inner + width;
    if (sub_norm) out += 2 * inner;
    return out;
}

Count norm_parameters(const ModelSpec& model, Count width) {
    return model.norm == Norm::layer ? 2 * width : width;
}

/// Inner norms (latent ranks, query and key) count as the attention's own.
Count attention_parameters(const ModelSpec& model, const Attention& attention) {
    const Count d = model.hidden_size;
    if (const auto* mla = std::get_if<LatentAttention>(&attention)) {
        const Count heads = mla->num_attention_heads, qk = mla->nope_size + mla->rope_size;
        const Count query = mla->q_lora_rank > 0 ? d * mla->q_lora_rank + mla->q_lora_rank +
                                                       mla->q_lora_rank * heads * qk
                                                 : d * heads * qk;
        const Count latent = d * (mla->kv_lora_rank + mla->rope_size) + mla->kv_lora_rank;
        const Count key_value =
            static_cast<Count>(mla->kv_lora_rank) * heads * (mla->nope_size + mla->value_size);
        return query + latent + key_value + heads * mla->value_size * d;
    }
    const auto& gqa = std::get<GroupedQueryAttention>(attention);
    const Count query = static_cast<Count>(gqa.num_attention_heads) * gqa.head_size,
                key = static_cast<Count>(gqa.num_kv_heads) * gqa.head_size;
    Count out = d * (query + 2 * key) + query * d;
    if (gqa.bias) out += query + 2 * key;
    if (gqa.output_bias) out += d;
    if (gqa.qk_norm_full)
        out += query + key;
    else if (gqa.qk_norm)
        out += 2 * static_cast<Count>(gqa.head_size);
    if (gqa.sinks) out += gqa.num_attention_heads;
    return out;
}

Count router_parameters(const ModelSpec& model, const MoeFeedForward& moe) {
    const Count width = model.hidden_size / moe.num_moe_heads;
    const Count rows = moe.num_experts + (moe.router_covers_shared ? moe.num_shared_experts : 0);
    Count out =
        moe.router_size > 0 ? width * moe.router_size + rows * moe.router_size : rows * width;
    if (moe.router_bias) out += rows;
    if (moe.routing == "x_moe_cosine") ++out;  // its temperature
    if (moe.selection_bias) out += moe.num_experts;
    return out;
}

/// MH-MoE's head and merge projections exist when a token is split.
Count mh_projection_parameters(const ModelSpec& model, const MoeFeedForward& moe) {
    if (moe.num_moe_heads == 1) return 0;
    const Count d = model.hidden_size;
    return 2 * (d * d + (moe.head_bias ? d : 0));
}

}  // namespace

LayerParameters layer_parameters(const ModelSpec& model, const LayerSpec& layer) {
    LayerParameters out;
    const Count d = model.hidden_size;
    out.attention = attention_parameters(model, layer.attention);
    out.norms = 2 * norm_parameters(model, d);
    if (const auto* dense = std::get_if<DenseFeedForward>(&layer.feed_forward)) {
        out.dense = network(d, dense->dense_hidden_size, dense->activation, dense->bias, false);
        return out;
    }
    const auto& moe = std::get<MoeFeedForward>(layer.feed_forward);
    out.router = router_parameters(model, moe);
    out.one_expert = network(d / moe.num_moe_heads, moe.expert_hidden_size, moe.activation,
                             moe.bias, moe.sub_norm);
    if (moe.num_shared_experts > 0)
        out.shared_experts =
            moe.num_shared_experts *
                network(d, moe.shared_expert_hidden_size, moe.activation, moe.bias, moe.sub_norm) +
            (moe.shared_gate ? d : 0);
    out.mh_projections = mh_projection_parameters(model, moe);
    return out;
}

LayerParameters mtp_layer_parameters(const ModelSpec& model) {
    LayerParameters out = layer_parameters(model, model.layers.back());
    const Count d = model.hidden_size;
    out.dense += 2 * d * d;
    out.norms += 3 * norm_parameters(model, d);
    return out;
}

ParameterCounts count_parameters(const ModelSpec& model) {
    ParameterCounts out;
    const Count embedding = static_cast<Count>(model.vocab_size) * model.hidden_size;
    auto& parts = out.parts;
    for (const char* part : {"embedding", "lm_head", "attention", "router", "experts",
                             "shared_experts", "dense", "norms", "mh_projections"})
        parts[part] = 0;
    const Count positions = model.learned_positions
                                ? static_cast<Count>(model.max_sequence_length) * model.hidden_size
                                : 0;
    parts["embedding"] = embedding + positions;
    parts["lm_head"] = model.tied_embeddings ? 0 : embedding;
    parts["norms"] = norm_parameters(model, model.hidden_size);  // before the head
    Count idle = 0;  // of experts that a token does not visit
    const auto slots = [](const LayerSpec& layer) {
        const auto* moe = std::get_if<MoeFeedForward>(&layer.feed_forward);
        // A token of h sub-tokens fills h·k slots, but may visit one expert several times: at most
        // all experts are active.
        return moe ? std::min<Count>(moe->num_experts,
                                     static_cast<Count>(moe->top_k) * moe->num_moe_heads)
                   : 0;
    };
    for (const auto& layer : model.layers) {
        const LayerParameters one = layer_parameters(model, layer);
        const auto* moe = std::get_if<MoeFeedForward>(&layer.feed_forward);
        const Count num_experts = moe ? moe->num_experts : 0;
        parts["attention"] += one.attention;
        parts["router"] += one.router;
        parts["experts"] += num_experts * one.one_expert;
        parts["shared_experts"] += one.shared_experts;
        parts["dense"] += one.dense;
        parts["norms"] += one.norms;
        parts["mh_projections"] += one.mh_projections;
        idle += (num_experts - slots(layer)) * one.one_expert;
    }
    for (const auto& [part, count] : parts) out.total += count;
    out.active_with_embeddings = out.total - idle;
    out.active_without_input_embedding = out.active_with_embeddings - embedding - positions;
    out.active_without_embeddings = out.active_without_input_embedding - parts["lm_head"];
    if (model.tied_embeddings) {
        // The one table is the head too: leaving out "the input embedding" leaves nothing out.
        out.active_without_input_embedding = out.active_with_embeddings - positions;
        out.active_without_embeddings = out.active_with_embeddings - embedding - positions;
    }
    if (model.num_mtp_layers > 0 && !model.layers.empty()) {
        const LayerParameters one = mtp_layer_parameters(model);
        const auto* moe = std::get_if<MoeFeedForward>(&model.layers.back().feed_forward);
        out.mtp = model.num_mtp_layers * (one.attention + one.dense + one.router +
                                          (moe ? moe->num_experts : 0) * one.one_expert +
                                          one.shared_experts + one.mh_projections + one.norms);
    }
    return out;
}

double parameter_estimate(const ModelSpec& model) {
    const double d = model.hidden_size;
    double sum = 2.0 * model.vocab_size * d;
    for (const auto& layer : model.layers) {
        if (const auto* gqa = std::get_if<GroupedQueryAttention>(&layer.attention)) {
            sum += 4 * d * static_cast<double>(gqa->num_attention_heads) * gqa->head_size;
        } else {
            const auto& mla = std::get<LatentAttention>(layer.attention);
            const double heads = mla.num_attention_heads,
                         widths =
                             static_cast<double>(mla.nope_size) + mla.rope_size + mla.value_size;
            sum += d * (mla.q_lora_rank + static_cast<double>(mla.kv_lora_rank)) +
                   heads * widths * (d + mla.q_lora_rank + mla.kv_lora_rank);
        }
        if (const auto* dense = std::get_if<DenseFeedForward>(&layer.feed_forward)) {
            sum += 3 * d * dense->dense_hidden_size;
        } else {
            const auto& moe = std::get<MoeFeedForward>(layer.feed_forward);
            sum +=
                3 * d *
                    (static_cast<double>(moe.num_experts) * moe.expert_hidden_size +
                     static_cast<double>(moe.num_shared_experts) * moe.shared_expert_hidden_size) +
                d * moe.num_experts + 2 * d * d;
        }
    }
    return sum;
}

LayerMacs layer_macs(const ModelSpec& model, const LayerSpec& layer, int sequence_length) {
    LayerMacs out;
    const double d = model.hidden_size;
    const double keys = layer.window ? std::min(*layer.window, sequence_length) : sequence_length;
    if (const auto* mla = std::get_if<LatentAttention>(&layer.attention)) {
        const double heads = mla->num_attention_heads, qk = mla->nope_size + mla->rope_size;
        out.attention = (mla->q_lora_rank > 0 ? d * mla->q_lora_rank + mla->q_lora_rank * heads * qk
                                              : d * heads * qk) +
                        d * (mla->kv_lora_rank + mla->rope_size) +
                        mla->kv_lora_rank * heads * (mla->nope_size + mla->value_size) +
                        heads * mla->value_size * d;
        out.scores = keys * heads * (qk + mla->value_size);
    } else {
        const auto& gqa = std::get<GroupedQueryAttention>(layer.attention);
        const double query = static_cast<double>(gqa.num_attention_heads) * gqa.head_size,
                     key = static_cast<double>(gqa.num_kv_heads) * gqa.head_size;
        out.attention = d * (query + 2 * key) + query * d;
        out.scores = 2 * keys * query;
    }
    if (const auto* dense = std::get_if<DenseFeedForward>(&layer.feed_forward)) {
        out.dense = num_matrices(dense->activation) * d * dense->dense_hidden_size;
        return out;
    }
    const auto& moe = std::get<MoeFeedForward>(layer.feed_forward);
    const double heads = moe.num_moe_heads, width = d / heads;
    const double rows = moe.num_experts + (moe.router_covers_shared ? moe.num_shared_experts : 0);
    out.router = heads * (moe.router_size > 0 ? width * moe.router_size + rows * moe.router_size
                                              : rows * width);
    out.experts = heads * moe.top_k * num_matrices(moe.activation) * width * moe.expert_hidden_size;
    out.shared_experts = moe.num_shared_experts * num_matrices(moe.activation) * d *
                             static_cast<double>(moe.shared_expert_hidden_size) +
                         (moe.shared_gate ? d : 0);
    out.mh_projections = moe.num_moe_heads > 1 ? 2 * d * d : 0;
    return out;
}

TokenFlops flops_per_token(const ModelSpec& model, int sequence_length) {
    double matrices = static_cast<double>(model.vocab_size) * model.hidden_size, scores = 0,
           causal_scores = 0;
    const double s = sequence_length;
    for (const auto& layer : model.layers) {
        const LayerMacs macs = layer_macs(model, layer, sequence_length);
        scores += macs.scores;
        matrices += macs.total() - macs.scores;
        // Keys before a token, averaged over the sequence: w·(1 − w/2s); half of them all without a
        // window (w = s).
        const double window = layer.window ? std::min<double>(*layer.window, s) : s;
        causal_scores += macs.scores * (1 - window / (2 * s));
    }
    return {.forward = {2 * (matrices + scores)},
            .training = {6 * (matrices + scores)},
            .training_causal_half = {6 * (matrices + causal_scores)}};
}

}  // namespace moeplan
