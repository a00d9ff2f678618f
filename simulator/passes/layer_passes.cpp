#include "simulator/passes/layer_passes.hpp"

#include "simulator/passes/attention_pass.hpp"
#include "simulator/passes/dense_pass.hpp"
#include "simulator/passes/end_passes.hpp"
#include "simulator/passes/moe_pass.hpp"

namespace moeplan {
namespace {

/// Parts of a layer that are rebuilt in the backward pass, each behind its own checkpoint.
int checkpoints_of(const LayerSpec& layer, const Recompute& recompute) {
    if (recompute.full) return 1;
    const auto* moe = std::get_if<MoeFeedForward>(&layer.feed_forward);
    const auto has = [&](const char* module) { return recompute.modules.contains(module) ? 1 : 0; };
    int count = has("core_attn") + 2 * has("layernorm");
    if (std::holds_alternative<LatentAttention>(layer.attention)) count += has("mla_up_proj");
    if (!moe) return count + has("mlp");
    return count + has("moe") + has("moe_act") +
           (moe->num_shared_experts > 0 ? has("shared_experts") : 0);
}

/// The host's part in recomputation: states of random numbers are kept before a part and set again
/// before it is rebuilt.
void keep_random_states(PassBuilder& pass, const LayerSpec& layer, bool forward) {
    const int count = checkpoints_of(layer, pass.step.schedule.recompute);
    pass.phase = forward ? Phase::forward : Phase::recompute;
    pass.launches(count *
                  (forward ? pass.software.checkpoint.forward : pass.software.checkpoint.backward));
}

/// The host's part in gathering a layer's sharded parameters and freeing them again.
void gather_parameters(PassBuilder& pass, bool forward) {
    if (pass.step.schedule.sharding != Sharding::zero3) return;
    const Launches& launches = pass.software.launches[static_cast<std::size_t>(Module::parameters)];
    pass.launches(forward ? launches.forward : launches.backward);
}

/// Attention, then the feed-forward network.
void layer_forward(PassBuilder& pass, const LayerSpec& layer, Phase phase) {
    attention_forward(pass, layer, phase);
    if (const auto* moe = std::get_if<MoeFeedForward>(&layer.feed_forward))
        moe_forward(pass, *moe, phase);
    else
        dense_forward(pass, std::get<DenseFeedForward>(layer.feed_forward), phase);
}

}  // namespace

LayerPass LayerPasses::forward(const LayerSpec& layer) const {
    PassBuilder pass(context_, works_);
    gather_parameters(pass, true);
    layer_forward(pass, layer, Phase::forward);
    keep_random_states(pass, layer, true);
    return pass.finish();
}

LayerPass LayerPasses::backward(const LayerSpec& layer, BackwardPart which) const {
    PassBuilder pass(context_, works_);
    gather_parameters(pass, false);
    if (which != BackwardPart::weight) keep_random_states(pass, layer, false);
    if (context_.step.schedule.recompute.full && which != BackwardPart::weight) {
        layer_forward(pass, layer, Phase::recompute);
        pass.cut();
    }
    if (const auto* moe = std::get_if<MoeFeedForward>(&layer.feed_forward))
        moe_backward(pass, *moe, which);
    else
        dense_backward(pass, std::get<DenseFeedForward>(layer.feed_forward), which);
    attention_backward(pass, layer, which);
    return pass.finish();
}

LayerPass LayerPasses::embedding(bool forward) const {
    PassBuilder pass(context_, works_);
    embedding_pass(pass, forward);
    return pass.finish();
}

LayerPass LayerPasses::head(bool forward, BackwardPart which) const {
    PassBuilder pass(context_, works_);
    head_pass(pass, forward, which);
    return pass.finish();
}

LayerPass LayerPasses::mtp_projection(bool forward, BackwardPart which) const {
    PassBuilder pass(context_, works_);
    mtp_projection_pass(pass, forward, which);
    return pass.finish();
}

LayerPass LayerPasses::optimizer(double owned, double local) const {
    PassBuilder pass(context_, works_);
    optimizer_pass(pass, owned, local);
    return pass.finish();
}

}  // namespace moeplan
