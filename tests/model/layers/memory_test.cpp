/// The memory model of our own trainer against what its allocator counts.

#include <gtest/gtest.h>

#include "tests/model/layers/small_models.hpp"

namespace moeplan {
namespace {

using namespace testing;

/// The most bytes of tensors in use in two steps, against `memory_by_stage`: 5 % is what is left
/// for shards that do not divide, and for rows whose number changes from step to step.
void expect_modelled(const ModelSpec& model, int sequence_length, int micro_batch,
                     int micro_batches, const std::string& name) {
    TrainOptions options = small_run(model, 2, sequence_length, micro_batch, micro_batches);
    Communicator alone;
    const TrainResult result = train(options, alone);
    const double peak = result.peak_memory.front().value,
                 modelled = result.modelled_memory.front().value;
    EXPECT_NEAR(modelled, peak, 0.05 * peak) << name;
    // What activations take is the model's part that can be wrong: weights, gradients and moments
    // are counted.
    const double states = 16.0 * double(result.parameters);
    EXPECT_GT(peak, 1.15 * states) << name << " tells nothing about activations";
    EXPECT_NEAR(modelled - states, peak - states, 0.05 * (peak - states)) << name;
}

TEST(TrainerMemory, OfADenseModelIsModelled) {
    expect_modelled(small_model(4, 64, 256), 64, 8, 2, "wide activations");
    expect_modelled(small_model(2, 32, 4096), 128, 4, 1, "a large vocabulary");
    ModelSpec gelu = small_model(3, 64, 128);
    for (LayerSpec& layer : gelu.layers)
        layer.feed_forward =
            DenseFeedForward{.dense_hidden_size = 512, .activation = Activation::gelu};
    expect_modelled(gelu, 128, 4, 1, "a wide network");
}

TEST(TrainerMemory, OfEveryRoutingIsModelled) {
    for (const std::string kind :
         {"top_k", "mh_moe", "emo", "switch", "gshard", "x_moe", "sigmoid_top_k", "domain"}) {
        ModelSpec model = named_model(kind, 3);
        for (LayerSpec& layer : model.layers)
            std::get<MoeFeedForward>(layer.feed_forward).expert_hidden_size = 24;
        expect_modelled(model, 128, 4, 2, kind);
    }
}

TEST(TrainerMemory, OfLayersOfTwoKindsIsModelled) {
    expect_modelled(layout_model("bias"), 128, 4, 1, "bias");
    expect_modelled(layout_model("tied"), 128, 4, 1, "tied");
    MoeFeedForward moe = small_moe();
    moe.sub_norm = true;
    moe.expert_hidden_size = 24;
    ModelSpec norms = with_moe(small_model(3, 16, 64), moe);
    norms.norm = Norm::layer;
    expect_modelled(norms, 128, 4, 1, "LayerNorm and SubLN");
}

}  // namespace
}  // namespace moeplan
