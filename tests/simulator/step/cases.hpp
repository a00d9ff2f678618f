#pragma once
/// Small cases that the step's tests share. Figures are round, so that answers can be worked by
/// hand.

#include <memory>

#include "simulator/step.hpp"

namespace moeplan::tests {

/// 1 TFlop/s in every precision at the stated efficiency of one, 1 TB/s memory, no overheads: time
/// = work.
inline std::shared_ptr<const Profile> plain_profile() {
    static const auto profile = [] {
        Profile p;
        p.name = "plain";
        p.device = "a device for tests";
        for (const Precision precision :
             {Precision::fp32, Precision::fp16, Precision::bf16, Precision::fp8})
            p.roofline.peak[precision] = FlopsPerSecond{1e12};
        p.roofline.memory_bandwidth = BytesPerSecond{1e12};
        p.roofline.gemm_efficiency = p.roofline.attention_efficiency =
            p.roofline.memory_efficiency = 1;
        p.roofline.attention_backward = 1;
        p.host_overlap =
            1;  // launches cost nothing, but the device works by itself: communication can overlap
        prepare(p);
        return std::make_shared<const Profile>(p);
    }();
    return profile;
}

/// `layers` equal layers; every `moe_every`-th has 8 experts, top-2 (0: none).
inline ModelSpec small_model(int layers = 4, int moe_every = 1) {
    ModelSpec model;
    model.name = "small";
    model.hidden_size = 256;
    model.vocab_size = 512;
    for (int l = 0; l < layers; ++l) {
        LayerSpec layer;
        layer.attention =
            GroupedQueryAttention{.num_attention_heads = 8, .num_kv_heads = 4, .head_size = 32};
        if (moe_every > 0 && l % moe_every == 0) {
            MoeFeedForward moe;
            moe.num_experts = 8;
            moe.top_k = 2;
            moe.expert_hidden_size = 512;
            layer.feed_forward = moe;
        } else {
            layer.feed_forward = DenseFeedForward{.dense_hidden_size = 1024};
        }
        model.layers.push_back(layer);
    }
    return model;
}

inline StepCase small_case(int nodes = 2) {
    StepCase step;
    step.model = small_model();
    step.cluster = load_cluster("dgx-h100:" + std::to_string(nodes));
    step.layout.data_parallel_size = 8 * nodes;
    step.schedule.sequence_length = 512;
    step.schedule.num_micro_batches = 4;
    step.profile = plain_profile();
    return step;
}

}  // namespace moeplan::tests
