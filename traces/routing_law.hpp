#pragma once
/// Synthetic routing: how a document's tokens spread over the experts. One law a file,
/// traces/synthesize_<name>.cpp.

#include <cstdint>
#include <limits>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/seed.hpp"
#include "traces/fit.hpp"
#include "traces/routing_trace.hpp"

namespace moeplan {

struct RoutingLaw {
    std::string kind = "balanced";  ///< a name of `routing_laws()`
    double exponent = 0;  ///< zipf: s of rank^−s; hot: the hot expert's load over the mean
    double document_dispersion =
        0;  ///< E·ρ; document_dirichlet, and document_pools before the pool is cut
    int smallest_pool = 0, largest_pool = 0;  ///< document_pools; 0: top_k … num_experts
    double capacity_factor = 1;               ///< token_drop
    std::optional<TraceFit> fit;  ///< "fitted": popularity and dispersion of each layer as measured
};

/// One layer as a law sees it.
struct LawLayer {
    int num_experts = 1, top_k = 1, layer = 0;
    Seed seed;  ///< of the whole synthesis; the law derives the layer's and the document's own
};

/// Share of each expert in the choices of one document; sums to 1.
using ExpertShares = std::vector<double>;
using SharesOf = ExpertShares (*)(const RoutingLaw&, const LawLayer&, std::uint64_t document);
const std::map<std::string, SharesOf>& routing_laws();

ExpertShares balanced_shares(const RoutingLaw&, const LawLayer&, std::uint64_t document);
ExpertShares multinomial_shares(const RoutingLaw&, const LawLayer&, std::uint64_t document);
ExpertShares zipf_shares(const RoutingLaw&, const LawLayer&, std::uint64_t document);
ExpertShares hot_shares(const RoutingLaw&, const LawLayer&, std::uint64_t document);
ExpertShares document_dirichlet_shares(const RoutingLaw&, const LawLayer&, std::uint64_t document);
ExpertShares document_pools_shares(const RoutingLaw&, const LawLayer&, std::uint64_t document);
ExpertShares token_drop_shares(const RoutingLaw&, const LawLayer&, std::uint64_t document);
ExpertShares fitted_shares(const RoutingLaw&, const LawLayer&, std::uint64_t document);

/// Shares drawn around `popularity` with over-dispersion ρ: Dirichlet(α·popularity), α = 1/ρ − 1
/// (routing-traces.md).
ExpertShares dirichlet_around(const ExpertShares& popularity, double over_dispersion, DrawStream&);

/// No expert can be more than one of a token's k choices: shares above 1/k are cut to it, and the
/// rest is spread over the others.
ExpertShares capped(ExpertShares, double most);

/// Lengths of the documents that fill a sequence: drawn from `lengths` (tokens), or one document a
/// sequence if empty.
struct SynthesisShape {
    int num_steps = 1, num_moe_layers = 1, num_experts = 8, top_k = 2, num_moe_heads = 1;
    int num_ranks = 1, num_micro_batches = 1, sequences_per_micro_batch = 1, sequence_length = 512;
    std::vector<std::uint32_t> document_lengths;
    std::string model;
};

/// A trace with every token's choices, k distinct experts each, streamed step by step.
/// @throws InputError for a law without a name, or k > E
TraceHeader synthetic_header(const RoutingLaw&, const SynthesisShape&, Seed);
TraceStep synthetic_step(const RoutingLaw&, const SynthesisShape&, Seed, int step);

/// Only the loads of one exchange: what the simulator needs, without choosing token by token. Rank
/// r's tokens are `sequences` whole sequences; documents as in `SynthesisShape`. Exact for
/// balanced; else the choices of a document's tokens are drawn as one multinomial, which is the
/// same in mean, and wider by less than (k−1)/(E−1) in variance.
RoutingLoads synthetic_loads(const RoutingLaw&, const SynthesisShape&, Seed, int step,
                             int moe_layer, int micro_batch);

/// Loads as an exchange among expert-parallel ranks sees them. Experts lie on the places in order,
/// equally many on each; a block of sources shares one set of experts.
struct PlacedLoads {
    std::vector<std::uint32_t>
        traffic;                      ///< [num_sources, num_places] rows from a source to a place
    std::vector<std::uint32_t> rows;  ///< [blocks, num_experts] rows of each expert
    /// [num_sources, num_places] units (sub-tokens) of a source with an expert at a place: the
    /// copies that travel where a unit travels once. Empty where single choices are not known.
    std::vector<std::uint32_t> copies;
    /// The same by domain of places, [num_sources, num_domains].
    std::vector<std::uint32_t> domain_copies;
};
/// @param num_places  divides the number of experts
PlacedLoads placed(const RoutingLoads&, int num_places, int sources_per_block);
/// `synthetic_loads`, placed. Where all tokens choose alike it draws a source's rows for each place
/// first and shares out each place's rows among its experts then: the same multinomial, which does
/// not care in what order its outcomes are told apart, in places · sources draws in place of
/// experts · sources. Other numbers than `synthetic_loads` draws, of the same distribution.
PlacedLoads synthetic_placed_loads(const RoutingLaw&, const SynthesisShape&, Seed, int step,
                                   int moe_layer, int micro_batch, int num_places,
                                   int sources_per_block);

/// A step of a counts-only trace: `synthetic_loads` of every layer and micro-batch.
TraceStep synthetic_counts(const RoutingLaw&, const SynthesisShape&, Seed, int step);

/// Counts of n draws with these shares: binomials one after another, exact; but no expert more than
/// `most`, because a token chooses each expert once.
void add_multinomial(std::uint64_t n, const ExpertShares&, DrawStream&, std::uint32_t* counts,
                     std::uint64_t most = std::numeric_limits<std::uint64_t>::max());

}  // namespace moeplan
