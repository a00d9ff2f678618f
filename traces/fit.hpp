#pragma once
/// What must be known of a trace to predict the load of more tokens, other micro-batches, more
/// ranks or more experts: popularity and over-dispersion of each layer, and how long documents are
/// (docs/routing-traces.md).

#include <cstdint>
#include <string>
#include <vector>

#include "core/json.hpp"
#include "traces/routing_trace.hpp"

namespace moeplan {

struct LayerFit {
    std::vector<double> popularity;  ///< [num_experts]; share of all choices, sums to 1
    /// ρ = Σ[(c − n·p)² − n·p(1−p)] / Σ n(n−1)·p(1−p) over documents and experts; c choices of an
    /// expert among a document's n, p popularity. 0: as if every choice were drawn alone; 1: every
    /// document has one expert.
    double over_dispersion = 0;
    bool operator==(const LayerFit&) const = default;
};

struct TraceFit {
    std::vector<LayerFit> layers;                 ///< [moe_layers]
    std::vector<std::uint32_t> document_lengths;  ///< tokens of the documents seen, sorted; at most
                                                  ///< 4096 of them, evenly taken
    int num_experts = 0, top_k = 0, num_moe_heads = 1, sequence_length = 0;
    /// "documents", or for traces without documents "exchanges": what a rank sends in a micro-batch
    /// stands for a document
    std::string basis;
    bool operator==(const TraceFit&) const = default;
};

/// @param first_step  steps before it are left out: the first tenth of a run is collapsed and
/// predicts nothing
TraceFit fit_trace(const TraceReader&, int first_step = 0);

/// The same routing with another number of experts: each expert's share is split over (or merged
/// into) the experts that take its place, and E·ρ, the number that carries over between models of
/// one kind, is kept.
TraceFit with_experts(const TraceFit&, int num_experts);

/// Mean load imbalance (busiest rank over the mean) of one micro-batch without drawing it, experts
/// in contiguous equal blocks: rank shares are taken as normal with variance s(1−s)·[1/N +
/// ρ_rank·Σ(n_i/N)²] around the popularity's share s. Error below 4 % for 8 or more sequences, up
/// to 9 % for one sequence on 16 ranks.
/// @param sequences  in the exchange, of all its source ranks
double expected_imbalance(const TraceFit&, int layer, int num_ranks, int sequences);

Json to_json(const TraceFit&);

}  // namespace moeplan
