#pragma once
/// Where the tokens of a step go: every MoE layer of every micro-batch has loads of its own, recorded or drawn.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "simulator/step.hpp"
#include "traces/routing_trace.hpp"

namespace moeplan {

/// What a lane of ranks asks of a routing: the sources that exchange with one another.
struct RoutingDemand {
    int num_sources = 1;                 ///< ranks that hold tokens
    std::int64_t tokens_per_source = 0;  ///< of one micro-batch
    int sequence_length = 0;             ///< documents are drawn, and end, inside sequences
};

/// Answers for every (MoE layer, micro-batch) what each source sends to each expert. The same seed gives the same
/// answers in any order of asking.
class RoutingModel {
  public:
    /// @param routing  synthetic, or a recorded trace
    /// @throws InputError  an unknown kind, or a trace of another kind of model (MoE heads differ, experts no multiple)
    RoutingModel(const ModelSpec& model, const std::variant<SyntheticRouting, std::shared_ptr<const TraceReader>>& routing,
                 const RoutingDemand& demand, std::uint64_t seed);
    ~RoutingModel();
    RoutingModel(RoutingModel&&) noexcept;

    /// [num_sources, num_experts] rows (sub-tokens times choices) of one exchange.
    /// Without capacity every source's row sums to tokens · num_moe_heads · top_k.
    RoutingLoads loads(int moe_layer, int micro_batch) const;

    bool same_everywhere() const;        ///< every layer of equal shape and every micro-batch alike (balanced, token_drop)
    const std::vector<std::string>& assumptions() const;

  private:
    struct Source;
    std::unique_ptr<Source> source_;
};

/// As the flag spells it: "zipf:1.2", "document-pools".
std::string to_words(const SyntheticRouting&);

/// Popularity and over-dispersion of one layer, fitted to a recorded trace (docs/routing.md).
struct LayerRouting {
    std::vector<double> popularity;      ///< [num_experts], sums to one
    double dispersion = 0;               ///< ρ: over-dispersion of one document's choices; 0 = multinomial
};

/// Each count n_d of a document against n·p: ρ = Σ[(c−n·p)² − n·p(1−p)] / Σ n(n−1)·p(1−p), clamped to 0 … 0.9.
/// @param counts  one vector [num_experts] a document
LayerRouting fit_layer_routing(const std::vector<std::vector<double>>& counts, int num_experts);

}  // namespace moeplan
