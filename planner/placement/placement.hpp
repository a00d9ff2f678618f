#pragma once
/// Which rank holds which expert, chosen from recorded routing: a search step of its own.

#include <cstdint>
#include <vector>

#include "core/json.hpp"
#include "simulator/step.hpp"
#include "traces/routing_trace.hpp"

namespace moeplan {

/// Contiguous equal blocks, as frameworks place experts unasked. num_ranks divides num_experts.
LayerPlacement contiguous_placement(int num_experts, int num_ranks);

/// Longest processing time first: the most popular expert goes to the least loaded rank with room.
/// Every rank holds num_experts / num_ranks + spare_slots copies at most; spare slots go to the
/// expert whose share per copy is largest.
/// @param popularity  [num_experts] load of each
/// @source Graham 1969 (LPT); replication as in DeepSeek's EPLB
LayerPlacement balanced_placement(const std::vector<double>& popularity, int num_ranks,
                                  int spare_slots = 0);

/// Busiest rank over the mean; a copied expert's load is split evenly among its copies.
double rank_imbalance(const std::vector<double>& load, const LayerPlacement&, int num_ranks);

/// What a placement gains on steps that it was not made from.
struct PlacedLayer {
    LayerPlacement placement, replicated;
    double contiguous_max_over_mean = 1, placed_max_over_mean = 1, replicated_max_over_mean = 1;
};
struct PlacementReport {
    int num_ranks = 1, spare_slots = 0, steps_from = 0, steps_to = 0, held_out_to = 0;
    std::vector<PlacedLayer> layers;
    double contiguous = 1, placed = 1, replicated = 1;  ///< means over layers
};

/// Popularity from the third quarter of the trace (the beginning of a run is not like the rest),
/// imbalance of a micro-batch from the last quarter; from the same step if there is one alone.
/// @param spare_slots  extra expert copies a rank may hold
/// @throws InputError  if num_ranks does not divide the trace's experts
PlacementReport place_experts(const TraceReader&, int num_ranks, int spare_slots = 1);
Json to_json(const PlacementReport&);

}  // namespace moeplan
