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
};
ParameterCounts count_parameters(const ModelSpec&);

/// Parameters of one layer, apart by who holds them under parallelism.
struct LayerParameters {
    long long attention = 0, dense = 0, router = 0, one_expert = 0, shared_experts = 0,
              mh_projections = 0, norms = 0;
};
LayerParameters layer_parameters(const ModelSpec&, const LayerSpec&);

/// Flops of one token: 2 a multiply-accumulate. Attention scores need the sequence length.
struct TokenFlops {
    Flops forward;               ///< full (not causal-halved) attention
    Flops training;              ///< 3 × forward
    Flops training_causal_half;  ///< with the attention scores halved
};
TokenFlops flops_per_token(const ModelSpec&, int sequence_length);

}  // namespace moeplan
