#pragma once
/// Forward and backward of a dense feed-forward layer: norm, products into and out of the inner
/// width, activation, residual.

#include "simulator/passes/pass_builder.hpp"

namespace moeplan {

/// @param phase  forward, or recompute in a backward pass
void dense_forward(PassBuilder&, const DenseFeedForward&, Phase phase);
void dense_backward(PassBuilder&, const DenseFeedForward&, BackwardPart);

}  // namespace moeplan
