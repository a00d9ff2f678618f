#pragma once
/// Models and text small enough for a test.

#include <memory>
#include <string>
#include <vector>

#include "model/train.hpp"

namespace moeplan::testing {

inline ModelSpec small_model(int layers = 1, int hidden = 8, int vocabulary = 32) {
    ModelSpec model;
    model.name = "small";
    model.hidden_size = hidden;
    model.vocab_size = vocabulary;
    LayerSpec layer;
    layer.attention =
        GroupedQueryAttention{.num_attention_heads = 2, .num_kv_heads = 1, .head_size = hidden / 2};
    layer.feed_forward =
        DenseFeedForward{.dense_hidden_size = 2 * hidden, .activation = Activation::swiglu};
    model.layers.assign(std::size_t(layers), layer);
    return model;
}

inline MoeFeedForward small_moe() {
    MoeFeedForward moe;
    moe.num_experts = 4;
    moe.top_k = 2;
    moe.expert_hidden_size = 6;
    moe.activation = Activation::relu;
    moe.balance_coefficient = 0.05;
    moe.z_loss_coefficient = 0.01;
    return moe;
}

inline ModelSpec with_moe(ModelSpec model, const MoeFeedForward& moe) {
    for (LayerSpec& layer : model.layers) layer.feed_forward = moe;
    return model;
}

/// The three kinds of the quickstart.
inline ModelSpec named_model(const std::string& kind, int layers = 2) {
    ModelSpec model = small_model(layers, 16, 64);
    MoeFeedForward moe = small_moe();
    moe.num_experts = 8;
    moe.expert_hidden_size = 12;
    if (kind == "mh_moe") {
        moe.num_moe_heads = 2;
        moe.head_bias = true;
    } else if (kind == "emo") {
        moe.routing = "emo";
        moe.pool = DocumentPool{2, 8};
        moe.num_shared_experts = 1;
        moe.shared_expert_hidden_size = 12;
        moe.balance = BalanceScope::global;
    } else if (kind == "switch") {
        moe.routing = "switch";
        moe.top_k = 1;
        moe.capacity_factor = 1.0;
    } else if (kind == "gshard" || kind == "gshard_raw") {
        moe.routing = kind;
        moe.capacity_factor = 1.0;
    } else if (kind == "x_moe" || kind == "x_moe_cosine") {
        moe.routing = kind;
        moe.router_size = 4;
    } else if (kind == "sigmoid_top_k") {
        moe.routing = "sigmoid_top_k";
        moe.selection_bias = true;
        moe.num_groups = 4;
        moe.top_k_groups = 2;
        moe.renormalise_gates = true;
        moe.routed_scale = 2.5;
    } else if (kind == "domain" || kind == "idle") {
        // "idle": experts of a fourth domain, of which the text has no token.
        moe.routing = "domain";
        moe.num_groups = kind == "idle" ? 4 : 2;
    }
    return with_moe(model, moe);
}

/// What every layout divides: a dense layer, then two of experts, grouped heads, biases, norms of
/// heads. "tied": with one table at both ends; "dense": without experts; "every": each token goes
/// to every expert.
inline ModelSpec layout_model(const std::string& kind) {
    ModelSpec model = named_model(kind, 3);
    model.tied_embeddings = kind == "tied";
    for (LayerSpec& layer : model.layers) {
        layer.attention = GroupedQueryAttention{.num_attention_heads = 4,
                                                .num_kv_heads = 2,
                                                .head_size = 4,
                                                .bias = true,
                                                .output_bias = true,
                                                .qk_norm = true};
        auto* moe = std::get_if<MoeFeedForward>(&layer.feed_forward);
        if (kind == "every") moe->top_k = moe->num_experts;
        if (kind == "bias") {
            moe->bias = moe->router_bias = true;
            moe->activation = Activation::swiglu;
            moe->num_shared_experts = 2;
            moe->shared_expert_hidden_size = 6;
            moe->balance = BalanceScope::sequence;
        }
    }
    const DenseFeedForward dense{
        .dense_hidden_size = 24, .activation = Activation::swiglu, .bias = true};
    for (LayerSpec& layer : model.layers)
        if (kind == "dense" || &layer == &model.layers.front()) layer.feed_forward = dense;
    return model;
}

inline std::shared_ptr<const PackedTokens> small_text(int vocabulary, int sequence_length,
                                                      Part part = Part::train,
                                                      std::int64_t tokens = 20000) {
    const TokenData data = synthetic_tokens(vocabulary, tokens, 3, Seed{7});
    Packing packing;
    packing.sequence_length = sequence_length;
    packing.held_out = 0.1;
    packing.seed = Seed{7};
    return std::make_shared<PackedTokens>(pack(data, part, packing));
}

inline TrainOptions small_run(const ModelSpec& model, int steps = 20, int sequence_length = 32,
                              int micro_batch = 2, int micro_batches = 2) {
    TrainOptions options;
    options.model = model;
    options.schedule.sequence_length = sequence_length;
    options.schedule.micro_batch_size = micro_batch;
    options.schedule.num_micro_batches = micro_batches;
    options.data = small_text(model.vocab_size, sequence_length);
    options.data_digest = "small";
    options.steps = steps;
    options.optimizer.warmup_steps = 4;
    options.seed = Seed{11};
    return options;
}

}  // namespace moeplan::testing
