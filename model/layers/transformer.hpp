#pragma once
/// Decoder-only language model, pre-norm: embedding, layers of attention and (dense or expert)
/// feed-forward, final norm, head, cross-entropy; or the part of it that a pipeline stage holds.
/// Forward and backward are explicit; nothing is taped.

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/layers/moe.hpp"
#include "model/layers/vocabulary.hpp"
#include "model/stage_layers.hpp"

namespace moeplan {

class Transformer {
  private:
    struct Block {
        std::string name, forward_name, backward_name;  ///< "layers.3", and of its stretches
        Parameter *attention_norm = nullptr, *feed_forward_norm = nullptr;
        std::unique_ptr<SelfAttention> attention;
        std::unique_ptr<ExpertNetworks> dense;
        std::unique_ptr<MoeLayer> moe;
    };
    struct Saved {
        Tensor in, attention_in, attention_scale;  ///< there before the block runs
        Tensor middle, feed_forward_in, feed_forward_scale;
        SelfAttention::Saved attention;
        ExpertNetworks::Saved dense;
        MoeLayer::Saved moe;
    };

  public:
    /// @param layers   of our stage; absent: all
    /// @param sharded  optimizer states are spread over the ranks that hold the same parameters
    /// @throws InputError for shapes that cannot be trained, naming the field
    Transformer(Runtime&, const ModelSpec&, RankGroups&, Seed,
                std::optional<LayerChunk> layers = std::nullopt, bool sharded = false);

    struct Result {
        double loss_sum = 0;             ///< Σ over tokens of the cross-entropy, nats; last stage
        std::vector<MoeReport> moe;      ///< [MoE layers of our stage]
        std::vector<double> token_loss;  ///< [num_tokens]; evaluation only, last stage
    };
    /// A micro-batch between its forward and its backward pass.
    struct Pass {
        std::vector<Saved> blocks;
        Tensor last;  ///< output of the last layer; last stage
        Result result;
        double forward_seconds = 0, backward_seconds = 0;
    };
    /// @param in       output of the stage before; empty on the first
    /// @param choices  filled with every MoE layer's choices if not null
    /// @return what the next stage takes; empty on the last
    Tensor forward(const MicroBatch&, Tensor in, Pass&, std::vector<MoeChoices>* choices = nullptr);
    /// Adds to the parameters' gradients. The last stage's begins with the head and its loss.
    /// @param dout  gradient of what `forward` returned
    /// @return gradient of what it took; empty on the first stage
    Tensor backward(const MicroBatch&, Pass&, Tensor dout);
    /// A global balance loss counts the choices of the whole step: every forward pass comes before
    /// the first backward pass, and this between them. Collective over the data parallel ranks.
    void settle_balance(const std::vector<Pass*>& passes);
    bool has_global_balance() const;  ///< anywhere in the model: all stages agree

    /// Forward and backward of one micro-batch in a model of one stage.
    /// @param forward_seconds, backward_seconds  added to
    Result train(const MicroBatch&, std::vector<MoeChoices>* choices, double& forward_seconds,
                 double& backward_seconds);
    /// Called after every layer of experts with what it did; true: the layer has been changed, run
    /// it again.
    using AfterMoe = std::function<bool(std::size_t moe_layer, MoeLayer&, const MoeObserved&)>;
    /// Forward alone. `in` and `out` as of `forward`; a model of one stage has neither.
    Result evaluate(const MicroBatch&, std::vector<MoeChoices>* choices = nullptr,
                    const AfterMoe& after_moe = {}, Tensor in = {}, Tensor* out = nullptr);
    /// The first part of our stage whose output is not finite ("layers.2.moe"), or empty. Runs a
    /// forward pass.
    std::string first_bad_part(const MicroBatch&, Tensor in = {}, Tensor* out = nullptr);

    const ModelSpec& spec() const { return model_; }
    ParameterSet& parameters() { return parameters_; }
    const ParameterSet& parameters() const { return parameters_; }
    std::vector<MoeLayer*> moe_layers();                      ///< of our stage
    int first_moe_layer() const { return first_moe_layer_; }  ///< of all MoE layers, our first
    Parameter* tied_embedding() const;  ///< what the first and the last stage both hold, or null

  private:
    Tensor norm(const Tensor& x, Parameter* weight, Tensor& scale, std::int64_t rows);
    void norm_backward(const Tensor& x, Parameter* weight, const Tensor& scale, const Tensor& dy,
                       Tensor& dx, std::int64_t rows);
    Tensor add_norm(const Tensor& x, Tensor& delta, Parameter* weight, Tensor& scale,
                    std::int64_t rows);
    void enter(Tensor x, Saved& first, std::int64_t rows);
    void block_forward(std::size_t index, const MicroBatch&, Saved&, Saved& next, Result&,
                       std::vector<MoeChoices>*, const AfterMoe& after_moe = {});
    void block_backward(Block&, Tensor& dx, const MicroBatch&, Saved&);
    Tensor head_backward(const MicroBatch&, Pass&);

    Runtime& rt_;
    ModelSpec model_;
    RankGroups& groups_;
    ParameterSet parameters_;
    LayerChunk layers_;
    int first_moe_layer_ = 0;
    Vocabulary vocabulary_;
    std::vector<Block> blocks_;
    std::map<const Parameter*, Parameter*> norm_bias_;  ///< by weight; LayerNorm alone
    Parameter *embedding_ = nullptr, *final_norm_ = nullptr, *lm_head_ = nullptr;
};

}  // namespace moeplan
