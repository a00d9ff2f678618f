#pragma once
/// Work and bytes of a model's parts: arithmetic on shapes. Conventions are named, because sources
/// differ (layers.md §6.1).

#include <map>
#include <string>

#include "core/units.hpp"
#include "model/model_spec.hpp"

namespace moeplan {

struct ParameterCounts {
    long long total = 0;  ///< without multi-token-prediction layers
    long long active_with_embeddings = 0, active_without_input_embedding = 0,
              active_without_embeddings = 0;
    std::map<std::string, long long> parts;  ///< embedding, lm_head, attention, router, experts,
                                             ///< shared_experts, dense, norms, mh_projections
    long long mtp = 0;  ///< of the multi-token-prediction layers, beside `total`
};
ParameterCounts count_parameters(const ModelSpec&);

/// Parameters of one layer, apart by who holds them under parallelism.
struct LayerParameters {
    long long attention = 0, dense = 0, router = 0, one_expert = 0, shared_experts = 0,
              mh_projections = 0, norms = 0;
};
LayerParameters layer_parameters(const ModelSpec&, const LayerSpec&);
/// One multi-token-prediction layer: a layer like the last, a 2d × d projection and three norms
/// (DeepSeek-V3 report, §2.2). Embedding and head are shared with the main model.
LayerParameters mtp_layer_parameters(const ModelSpec&);
/// The sum in floating point, for models too large to count in 64 bits (they are refused).
double parameter_estimate(const ModelSpec&);

/// Flops of one token: 2 a multiply-accumulate. Attention scores need the sequence length.
struct TokenFlops {
    Flops forward;               ///< full (not causal-halved) attention
    Flops training;              ///< 3 × forward
    Flops training_causal_half;  ///< with the attention scores halved (a windowed layer: the keys a
                                 ///< causal window holds on average)
};
TokenFlops flops_per_token(const ModelSpec&, int sequence_length);

/// Multiply-accumulates of one token in one layer's matrices, forward, by part. Scores are apart:
/// they grow with the sequence.
struct LayerMacs {
    double attention = 0;  ///< projections
    double scores =
        0;  ///< q·k and p·v over `sequence_length` keys (a window caps it), not causal-halved
    double router = 0, dense = 0, experts = 0, shared_experts = 0, mh_projections = 0;
    double total() const {
        return attention + scores + router + dense + experts + shared_experts + mh_projections;
    }
};
LayerMacs layer_macs(const ModelSpec&, const LayerSpec&, int sequence_length);

}  // namespace moeplan
