#pragma once
/// Products that tensor parallelism splits by columns, then by rows, and the exchanges at either
/// end of the two: shared by attention, dense feed-forward and shared experts.

#include <cstdint>
#include <utility>
#include <vector>

#include "simulator/passes/pass_builder.hpp"

namespace moeplan {

/// Bytes of the activations [tokens, hidden_size] that a tensor-parallel group exchanges.
double sequence_bytes(const PassBuilder&);

/// Sequence parallelism: the whole sequence is gathered from the ranks' shares of it, beside what
/// follows where tensor exchanges overlap. The caller joins. Nothing without sequence parallelism.
void gather_sequence(PassBuilder&);

/// What adds up the ranks' parts of an output, or of an input's gradient.
Collective sum_over_ranks(const StepCase&);

/// A product whose rows are split and what adds up its parts, then the residual: [tokens, k] ×
/// [k, hidden_size].
void row_product(PassBuilder&, std::int64_t k, const char* name);

/// Gradients of products whose columns are split, and the exchange of the input's.
/// @param shapes  (n, k) of the products [tokens, k] × [k, n]
void column_gradients(PassBuilder&,
                      const std::vector<std::pair<std::int64_t, std::int64_t>>& shapes,
                      BackwardPart, const char* name);

/// The backward of the norm before a module, and the residual's gradient, which our own trainer
/// adds inside the norm's kernel.
void norm_backward(PassBuilder&);

}  // namespace moeplan
