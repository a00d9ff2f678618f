#pragma once
/// Experts that every token visits: one gated network of all their inner widths side by side, split
/// like a dense layer, beside the routed ones.

#include "simulator/passes/pass_builder.hpp"

namespace moeplan {

/// Shared experts whose columns tensor parallelism splits: their input is gathered before and their
/// outputs, or input gradients, are added up after, so that no other exchange hides behind them.
bool shards_shared_experts(const StepCase&, const MoeFeedForward&);

void shared_experts_forward(PassBuilder&, const MoeFeedForward&);
void shared_experts_backward(PassBuilder&, const MoeFeedForward&, BackwardPart);

}  // namespace moeplan
