#include "model/model_spec.hpp"

#include <cmath>

#include "core/errors.hpp"
#include "core/text.hpp"
#include "model/op_counts.hpp"

namespace moeplan {
namespace {

/// Beyond these no machine is meant; the bounds also keep every count of ours inside 64 bits.
constexpr int kMostLayers = 10'000, kMostWidth = 1 << 20, kMostExperts = 65'534,
              kMostVocabulary = 1 << 27;
constexpr double kMostParameters = 1e18;

}  // namespace

int num_moe_layers(const ModelSpec& model) {
    int count = 0;
    for (const auto& layer : model.layers)
        count += std::holds_alternative<MoeFeedForward>(layer.feed_forward);
    return count;
}

const MoeFeedForward* first_moe(const ModelSpec& model) {
    for (const auto& layer : model.layers)
        if (const auto* moe = std::get_if<MoeFeedForward>(&layer.feed_forward)) return moe;
    return nullptr;
}

void require_sound(const ModelSpec& model, const std::string& file) {
    const auto refuse = [&](const std::string& field, const std::string& value,
                            const std::string& expected) {
        throw InputError(file, field, value, expected);
    };
    const auto within = [&](const std::string& field, long long value, long long least,
                            long long most) {
        if (value < least || value > most)
            refuse(field, std::to_string(value),
                   std::to_string(least) + " … " + std::to_string(most));
    };
    within("hidden_size", model.hidden_size, 1, kMostWidth);
    within("vocab_size", model.vocab_size, 1, kMostVocabulary);
    if (model.learned_positions)
        within("max_sequence_length", model.max_sequence_length, 1, 1 << 28);
    within("num_mtp_layers", model.num_mtp_layers, 0, 100);
    if (model.layers.empty()) refuse("layers", "empty", "at least one layer");
    within("layers", static_cast<long long>(model.layers.size()), 1, kMostLayers);

    const LayerSpec* last = nullptr;  // runs of equal layers are looked at once
    for (std::size_t i = 0; i < model.layers.size(); ++i) {
        const LayerSpec& layer = model.layers[i];
        if (last && *last == layer) continue;
        last = &layer;
        const std::string at = "layer " + std::to_string(i) + ": ";
        if (const auto* gqa = std::get_if<GroupedQueryAttention>(&layer.attention)) {
            within(at + "num_attention_heads", gqa->num_attention_heads, 1, kMostWidth);
            within(at + "num_kv_heads", gqa->num_kv_heads, 1, gqa->num_attention_heads);
            within(at + "head_size", gqa->head_size, 1, kMostWidth);
            if (gqa->num_attention_heads % gqa->num_kv_heads != 0)
                refuse(at + "num_kv_heads", std::to_string(gqa->num_kv_heads),
                       "a divisor of num_attention_heads (" +
                           std::to_string(gqa->num_attention_heads) + ")");
        } else {
            const auto& mla = std::get<LatentAttention>(layer.attention);
            within(at + "num_attention_heads", mla.num_attention_heads, 1, kMostWidth);
            within(at + "q_lora_rank", mla.q_lora_rank, 0, kMostWidth);
            within(at + "kv_lora_rank", mla.kv_lora_rank, 1, kMostWidth);
            within(at + "nope_size", mla.nope_size, 0, kMostWidth);
            within(at + "rope_size", mla.rope_size, 0, kMostWidth);
            within(at + "nope_size + rope_size", mla.nope_size + mla.rope_size, 1, kMostWidth);
            within(at + "value_size", mla.value_size, 1, kMostWidth);
        }
        if (layer.window) within(at + "window", *layer.window, 1, 1 << 30);
        if (const auto* dense = std::get_if<DenseFeedForward>(&layer.feed_forward)) {
            within(at + "dense_hidden_size", dense->dense_hidden_size, 1, 16 * kMostWidth);
            continue;
        }
        const auto& moe = std::get<MoeFeedForward>(layer.feed_forward);
        within(at + "num_experts", moe.num_experts, 1, kMostExperts);
        within(at + "top_k", moe.top_k, 1, moe.num_experts);
        within(at + "expert_hidden_size", moe.expert_hidden_size, 1, 16 * kMostWidth);
        within(at + "num_shared_experts", moe.num_shared_experts, 0, 1024);
        if (moe.num_shared_experts > 0)
            within(at + "shared_expert_hidden_size", moe.shared_expert_hidden_size, 1,
                   16 * kMostWidth);
        within(at + "num_moe_heads", moe.num_moe_heads, 1, model.hidden_size);
        if (model.hidden_size % moe.num_moe_heads != 0)
            refuse(at + "num_moe_heads", std::to_string(moe.num_moe_heads),
                   "a divisor of hidden_size (" + std::to_string(model.hidden_size) + ")");
        within(at + "router_size", moe.router_size, 0, kMostWidth);
        within(at + "num_groups", moe.num_groups, 0, moe.num_experts);
        within(at + "top_k_groups", moe.top_k_groups, 0, moe.num_groups);
        if (moe.num_groups > 0 && moe.num_experts % moe.num_groups != 0)
            refuse(at + "num_groups", std::to_string(moe.num_groups),
                   "a divisor of num_experts (" + std::to_string(moe.num_experts) + ")");
        // A token may only choose among the experts of its groups.
        if (moe.num_groups > 0 && moe.top_k_groups > 0 &&
            moe.top_k > moe.top_k_groups * (moe.num_experts / moe.num_groups))
            refuse(at + "top_k", std::to_string(moe.top_k),
                   "at most top_k_groups · experts a group (" +
                       std::to_string(moe.top_k_groups * (moe.num_experts / moe.num_groups)) + ")");
        if (moe.capacity_factor && !(*moe.capacity_factor > 0))
            refuse(at + "capacity_factor", exact_text(*moe.capacity_factor), "above 0");
        if (moe.pool && (moe.pool->smallest < 1 || moe.pool->smallest > moe.pool->largest))
            refuse(at + "pool",
                   std::to_string(moe.pool->smallest) + " … " + std::to_string(moe.pool->largest),
                   "1 ≤ smallest ≤ largest");
        if (moe.pool && moe.pool->smallest < moe.top_k)
            refuse(at + "pool/smallest", std::to_string(moe.pool->smallest),
                   "at least top_k (" + std::to_string(moe.top_k) + ")");
    }
    const double sum = parameter_estimate(model);
    if (!(sum <= kMostParameters))
        refuse("", "about " + exact_text(std::round(sum)) + " parameters", "at most 1e18");
}

}  // namespace moeplan
