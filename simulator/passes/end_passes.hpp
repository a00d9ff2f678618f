#pragma once
/// Passes at the ends of the model and of the step: embedding, head with loss, the projection of a
/// multi-token-prediction module, optimizer.

#include "simulator/passes/pass_builder.hpp"

namespace moeplan {

void embedding_pass(PassBuilder&, bool forward);
/// Final norm, logits, cross-entropy.
void head_pass(PassBuilder&, bool forward, BackwardPart);
/// Two norms and a product of [2·hidden_size] → [hidden_size].
void mtp_projection_pass(PassBuilder&, bool forward, BackwardPart);
/// Gradient norm, clipping and update.
/// @param owned  parameters whose state this rank updates
/// @param local  parameters whose gradients it holds
void optimizer_pass(PassBuilder&, double owned, double local);

}  // namespace moeplan
