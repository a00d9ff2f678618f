#pragma once
/// One optimizer step of a model that many ranks hold: gradients summed over a parameter's holders,
/// one norm for the whole model, and where the optimizer is sharded (ZeRO-1, Rajbhandari et al.
/// 2020) each holder updating its shard.

#include "model/layers/transformer.hpp"
#include "model/optimizer.hpp"

namespace moeplan {

/// All-reduce over the holders of each parameter; reduce-scatter if sharded, after which only the
/// elements `updated` are the sum. A tied embedding is first summed over both of its stages.
void sum_gradients(Runtime&, Transformer&, RankGroups&, double& seconds);

/// √Σ g² over all parameters of the whole model: an element counts once, wherever it is held.
/// Collective over `world`.
double gradient_norm(Runtime&, const ParameterSet&, const RankGroups&, const Communicator& world);

/// After `update` of a sharded optimizer: every holder gets the others' shards.
void gather_parameters(Runtime&, const ParameterSet&, const RankGroups&, double& seconds);

/// Elements of the whole model. Collective over `world`.
std::int64_t count_parameters_of_all(const ParameterSet&, const RankGroups&,
                                     const Communicator& world);

}  // namespace moeplan
