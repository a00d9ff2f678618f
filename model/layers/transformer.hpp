#pragma once
/// Decoder-only language model, pre-norm: embedding, layers of attention and (dense or expert)
/// feed-forward, final norm, head, cross-entropy. Forward and backward are explicit; nothing is
/// taped.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/layers/moe.hpp"

namespace moeplan {

class Transformer {
  public:
    /// @throws InputError for shapes that cannot be trained, naming the field
    Transformer(Runtime&, const ModelSpec&, ExpertGroup&, Seed);

    struct Result {
        double loss_sum = 0;             ///< Σ over tokens of the cross-entropy, nats
        std::vector<MoeReport> moe;      ///< [MoE layers]
        std::vector<double> token_loss;  ///< [num_tokens]; evaluation only
    };
    /// Forward and backward of one micro-batch: gradients are added to the parameters'.
    /// @param choices  filled with every MoE layer's choices if not null
    /// @param forward_seconds, backward_seconds  added to
    Result train(const MicroBatch&, std::vector<MoeChoices>* choices, double& forward_seconds,
                 double& backward_seconds);
    /// Called after every layer of experts with what it did; true: the layer has been changed, run
    /// it again.
    using AfterMoe = std::function<bool(std::size_t moe_layer, MoeLayer&, const MoeObserved&)>;
    Result evaluate(const MicroBatch&, std::vector<MoeChoices>* choices = nullptr,
                    const AfterMoe& after_moe = {});
    /// The first part whose output is not finite ("layers.2.moe"), or empty. Runs a forward pass.
    std::string first_bad_part(const MicroBatch&);

    const ModelSpec& spec() const { return model_; }
    ParameterSet& parameters() { return parameters_; }
    const ParameterSet& parameters() const { return parameters_; }
    std::vector<MoeLayer*> moe_layers();

  private:
    struct Block {
        Parameter *attention_norm = nullptr, *feed_forward_norm = nullptr;
        std::unique_ptr<SelfAttention> attention;
        std::unique_ptr<ExpertNetworks> dense;
        std::unique_ptr<MoeLayer> moe;
    };
    struct Saved {
        Tensor in, attention_in, attention_scale, middle, feed_forward_in, feed_forward_scale;
        SelfAttention::Saved attention;
        ExpertNetworks::Saved dense;
        MoeLayer::Saved moe;
    };
    Tensor embed(const MicroBatch&);
    Tensor norm(const Tensor& x, Parameter* weight, Tensor& scale, std::int64_t rows);
    void norm_backward(const Tensor& x, Parameter* weight, const Tensor& scale, const Tensor& dy,
                       Tensor& dx, std::int64_t rows);
    Tensor block_forward(Block&, Tensor x, const MicroBatch&, Saved&, Result&,
                         std::vector<MoeChoices>*, const AfterMoe& after_moe = {});
    void block_backward(Block&, Tensor& dx, const MicroBatch&, Saved&);
    /// Cross-entropy by blocks of rows, so that the logits of a whole micro-batch never lie in
    /// memory. dx: gradient of `hidden`, or null.
    void head(const Tensor& hidden, const MicroBatch&, Tensor* dhidden, Result&,
              bool keep_token_loss, double& backward_seconds);

    Runtime& rt_;
    ModelSpec model_;
    ParameterSet parameters_;
    std::vector<Block> blocks_;
    std::map<const Parameter*, Parameter*> norm_bias_;  ///< by weight; LayerNorm alone
    Parameter *embedding_ = nullptr, *final_norm_ = nullptr, *lm_head_ = nullptr;
};

}  // namespace moeplan
