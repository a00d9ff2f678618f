#pragma once
/// Small cases that the step's tests share. Figures are round, so that answers can be worked by
/// hand.

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <memory>

#include "core/seed.hpp"
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

/// A case of random shape that can run, by number.
inline StepCase drawn_case(std::uint64_t number) {
    const Seed seed = derive(Seed{7}, "case", number);
    const auto pick = [&](const char* name, std::initializer_list<int> values) {
        return values.begin()[draw(seed, name) % values.size()];
    };
    StepCase step = small_case(2);
    step.model = small_model(8, pick("moe", {1, 2}));
    const int tp = pick("tp", {1, 2, 4}), pp = pick("pp", {1, 2, 4});
    step.layout = {tp, 1, pp, 16 / tp / pp, 1, 1};
    step.layout.expert_parallel_size = std::min(16 / pp, pick("ep", {1, 2, 4, 8}));
    step.schedule.sequence_parallel = tp > 1;
    step.schedule.num_micro_batches = 4;
    if (pp > 1) {
        step.schedule.pipeline = static_cast<Pipeline>(pick("schedule", {0, 1, 2, 3, 4, 5}));
        if (step.schedule.pipeline == Pipeline::interleaved ||
            step.schedule.pipeline == Pipeline::zero_bubble_v)
            step.schedule.virtual_pipeline_size = 2;
        if (step.schedule.pipeline == Pipeline::dual_pipe)
            step.schedule.num_micro_batches = 2 * pp;
    }
    if (pick("shared", {0, 1}))
        for (auto& layer : step.model.layers)
            if (auto* moe = std::get_if<MoeFeedForward>(&layer.feed_forward)) {
                moe->num_shared_experts = 1;
                moe->shared_expert_hidden_size = 512;
            }
    step.schedule.overlap.experts = pick("overlap experts", {0, 1});
    step.schedule.overlap.communication_sms = pick("communication sms", {0, 24});
    step.schedule.overlap.shared_experts = pick("overlap shared experts", {0, 1});
    step.schedule.sharding = static_cast<Sharding>(pick("zero", {0, 1, 2, 3}));
    step.schedule.overlap.gradients = pick("overlap", {0, 1});
    step.schedule.overlap.parameters = pick("overlap parameters", {0, 1});
    step.schedule.overlap.tensor = pick("overlap tensor", {0, 1});
    step.schedule.recompute.full = pick("recompute", {0, 1});
    step.schedule.dispatcher = static_cast<Dispatcher>(pick("dispatcher", {0, 1, 2}));
    if (pick("skew", {0, 1})) step.routing = SyntheticRouting{"zipf", 1.0, 0};
    step.seed = number;
    return step;
}

}  // namespace moeplan::tests
