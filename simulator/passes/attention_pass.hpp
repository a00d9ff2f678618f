#pragma once
/// Forward and backward of an attention layer: norm, products before the core, rotary embedding,
/// core, output product, residual.

#include "simulator/passes/pass_builder.hpp"

namespace moeplan {

/// @param phase  forward, or recompute in a backward pass
void attention_forward(PassBuilder&, const LayerSpec&, Phase phase);
void attention_backward(PassBuilder&, const LayerSpec&, BackwardPart);

}  // namespace moeplan
