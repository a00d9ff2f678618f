#pragma once
/// Forward and backward of a mixture of experts: norm, head projection (MH-MoE), router, document
/// pool (EMO), permute, dispatch, grouped products of the experts, combine, unpermute, merge
/// projection, shared experts.

#include "simulator/passes/pass_builder.hpp"

namespace moeplan {

/// @param phase  forward, or recompute in a backward pass
void moe_forward(PassBuilder&, const MoeFeedForward&, Phase phase);
void moe_backward(PassBuilder&, const MoeFeedForward&, BackwardPart);

}  // namespace moeplan
