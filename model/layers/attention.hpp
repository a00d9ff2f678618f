#pragma once
/// Causal self-attention within documents, with rotary positions and grouped key-value heads.

#include <string>

#include "model/layers/parameters.hpp"
#include "model/model_spec.hpp"

namespace moeplan {

/// What a micro-batch is, on the device: the same for all layers.
struct MicroBatch {
    std::int64_t num_sequences = 0, sequence_length = 0;
    std::int64_t num_tokens() const { return num_sequences * sequence_length; }
    Tensor tokens, targets;  ///< i32 [num_tokens]
    Tensor positions;        ///< i32 [num_tokens], within the sequence
    Tensor documents;        ///< i32 [num_tokens], rising; attention's documents
    std::vector<std::int32_t>
        document_begin;  ///< [num_documents + 1], tokens; the router's documents (host)
    std::vector<std::uint32_t>
        document_ids;  ///< [num_documents]; corpus indices of the router's documents
    std::vector<std::uint16_t> domains;  ///< [num_tokens]
    std::int64_t index =
        0;  ///< of the micro-batch in the whole run, the same in every layout: names what is drawn
    double loss_weight = 1;  ///< share of this micro-batch in the step's loss: tokens / tokens of
                             ///< the step in all ranks
};

/// Heads are split over the tensor parallel ranks, whose outputs and input gradients are summed.
class SelfAttention {
  public:
    /// @throws InputError for attention that training does not have (latent, sinks) or heads that
    /// the tensor parallel ranks do not divide
    SelfAttention(Runtime&, ParameterSet&, const std::string& name, const ModelSpec&,
                  const LayerSpec&, RankGroups&);

    struct Saved {
        Tensor x, q, k, v, q_raw, k_raw, q_scale, k_scale, out, log_sum_exp;
    };
    /// y = attention(x); [num_tokens, hidden_size]. Keeps what backward needs.
    Tensor forward(const Tensor& x, const MicroBatch&, Saved&);
    /// dx = the gradient of x from that of y.
    Tensor backward(const Tensor& x, const Tensor& dy, const MicroBatch&, Saved&);

  private:
    AttentionForward call(const MicroBatch&, Saved&) const;
    Runtime& rt_;
    RankGroups& groups_;
    std::int64_t hidden_ = 0, heads_ = 0, kv_heads_ = 0, size_ = 0, window_ = 0;  ///< heads: ours
    double theta_ = 10000;
    bool qk_norm_full_ = false;
    Parameter *q_ = nullptr, *k_ = nullptr, *v_ = nullptr, *out_ = nullptr;
    Parameter *q_bias_ = nullptr, *k_bias_ = nullptr, *v_bias_ = nullptr, *out_bias_ = nullptr,
              *q_norm_ = nullptr, *k_norm_ = nullptr;
};

}  // namespace moeplan
