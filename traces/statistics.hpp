#pragma once
/// What a trace says about balance, drift, documents and co-activation (docs/routing-traces.md
/// gives each formula).

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/json.hpp"
#include "traces/routing_trace.hpp"

namespace moeplan {

/// Busiest over mean; 1 if there is nothing.
double max_over_mean(std::span<const std::uint64_t> counts);
/// 0: all alike; (n−1)/n: one has it all.
double gini(std::span<const std::uint64_t> counts);
/// Shannon entropy over its largest value, log n: 1 if all alike, 0 if one has it all.
double relative_entropy_of_uniform(std::span<const std::uint64_t> counts);
/// Sums over `num_ranks` contiguous blocks of experts (expert e on rank ⌊e·N/E⌋).
std::vector<std::uint64_t> by_rank(std::span<const std::uint64_t> tokens_per_expert, int num_ranks);

struct Spread {
    double mean = 0, p95 = 0, largest = 0;
};

struct LayerStatistics {
    int layer = 0;
    std::vector<std::uint64_t> tokens_per_expert;  ///< [num_experts]; choices over all steps
    std::uint64_t not_routed = 0;
    double max_over_mean = 1, gini = 0,
           entropy = 1;  ///< of tokens_per_expert; entropy relative to log E
    std::vector<std::pair<double, double>>
        activation_ratio;  ///< threshold, share of experts with at least threshold × the mean load
    std::map<int, double> by_ranks;  ///< ranks → max over mean of all choices
    Spread exchange;  ///< max over mean by expert of single micro-batches: what a step waits for
    std::map<int, Spread> exchange_by_ranks;  ///< likewise by rank
    std::optional<double> chosen_gates;       ///< mean sum of a (sub-)token's chosen gate weights
    // Below: only for traces of single tokens.
    std::optional<double> experts_per_document;  ///< mean number of distinct experts of a document
                                                 ///< of 200 tokens or more
    std::optional<double> experts_for_90_of_document,
        experts_for_90_of_text;           ///< that hold 90 % of the choices
    std::optional<double> domain_cosine;  ///< mean cosine between the domains' shares
    std::optional<double> repeats;  ///< share of tokens whose first choice is the token before's
    std::optional<double> top_pairs,
        top_pairs_if_independent;  ///< share of pairs held by the most frequent tenth of pairs
    std::vector<std::pair<std::pair<int, int>, double>>
        most_frequent_pairs;  ///< share of all pairs; at most 10
    std::map<int, double> ranks_per_token,
        ranks_per_token_if_independent;  ///< distinct ranks that a token travels to
};

struct WindowDrift {
    int from_step = 0, to_step = 0;     ///< steps of the later window
    double popularity_correlation = 0;  ///< with the window before, mean over layers
    double max_over_mean = 0;           ///< of the window's sums, mean over layers
    double exchange_max_over_mean = 0;  ///< mean of single micro-batches and layers
    double loss = 0;                    ///< mean
};

struct TraceStatistics {
    TraceHeader header;
    std::uint64_t tokens = 0;  ///< over all steps
    std::vector<LayerStatistics> layers;
    std::vector<WindowDrift> drift;  ///< up to 16 windows of equal length
};

/// One pass, a layer of a step in memory at a time.
TraceStatistics trace_statistics(const TraceReader&);

/// The answer of `trace stats`.
Json to_json(const TraceStatistics&);

}  // namespace moeplan
