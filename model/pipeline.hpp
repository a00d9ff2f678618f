#pragma once
/// The micro-batches of a step through the stages of a pipeline.

#include <functional>

#include "model/layers/transformer.hpp"

namespace moeplan {

/// A micro-batch on its way: held from its forward to its backward pass.
struct Flight {
    MicroBatch batch;
    Transformer::Pass pass;
    std::vector<MoeChoices> choices;
};

enum class PassOrder : std::uint8_t {
    one_forward_one_backward,  ///< a stage holds at most as many passes as stages follow it, and
                               ///< one (Narayanan et al. 2019)
    forwards_first             ///< all of them (GPipe); a global balance loss needs it
};

/// Runs forward and backward of `num_micro_batches` through our stage, exchanging with its
/// neighbours.
/// @param hidden_count  elements of a micro-batch's hidden states
/// @param begin   makes micro-batch m ready
/// @param finish  called in order of m once its gradients are added
/// @param keep_choices  fill `Flight::choices`
void run_micro_batches(Runtime&, Transformer&, RankGroups&, int num_micro_batches,
                       std::int64_t hidden_count, PassOrder, bool keep_choices,
                       const std::function<MicroBatch(int m)>& begin,
                       const std::function<void(int m, Flight&)>& finish);

/// Hidden states of one micro-batch from the stage before (empty on the first stage), and to the
/// next (nothing on the last).
Tensor receive_hidden(Runtime&, RankGroups&, std::int64_t count);
void send_hidden(Runtime&, RankGroups&, Tensor hidden);

}  // namespace moeplan
