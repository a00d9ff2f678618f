#pragma once
/// Where the tokens of a step go: the loads of every MoE layer and micro-batch of a graph.

#include <cstdint>
#include <vector>

#include "simulator/routing_model.hpp"
#include "simulator/step_graph.hpp"

namespace moeplan {

/// Draws or reads the routing of a step, and finds the loads of a layer and a micro-batch.
class StepLoads {
  public:
    /// Fills `place_domain`, `loads`, `load_imbalance` and the routing's assumptions of a graph
    /// whose width is known.
    /// @throws InputError for a trace that does not fit the model
    StepLoads(const StepCase&, StepGraph&);

    /// Of a layer of the model; −1: it has no experts.
    int moe_layer(int layer) const { return moe_layer_[static_cast<std::size_t>(layer)]; }
    /// Index of `StepGraph::loads`.
    std::int32_t of(int moe_layer, int micro_batch) const;
    const RoutingModel& routing() const { return routing_; }
    /// Micro-batches with a routing of their own; the others take theirs in turn. 0: no experts.
    int distinct_micro_batches() const;

  private:
    int micro_batches_drawn() const;

    const StepCase& step_;
    RoutingModel routing_;
    std::vector<int> moe_layer_;                    // [layers]
    std::vector<std::vector<std::int32_t>> index_;  // [moe layers][micro-batches or 1]
};

}  // namespace moeplan
