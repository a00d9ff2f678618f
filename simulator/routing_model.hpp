#pragma once
/// Where the tokens of a step go: every MoE layer of every micro-batch has loads of its own,
/// recorded or drawn.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "simulator/step.hpp"
#include "traces/routing_law.hpp"
#include "traces/routing_trace.hpp"

namespace moeplan {

/// What a lane of ranks asks of a routing: the sources that exchange with one another.
struct RoutingDemand {
    int num_sources = 1;                 ///< ranks that hold tokens
    std::int64_t tokens_per_source = 0;  ///< of one micro-batch
    int sequence_length = 0;             ///< documents are drawn, and end, inside sequences
};

/// Answers for every (MoE layer, micro-batch) what each source sends to each expert. The same seed
/// gives the same answers in any order of asking.
class RoutingModel {
  public:
    /// @param routing  synthetic, or a recorded trace
    /// @throws InputError  an unknown kind, or a trace of another kind of model (MoE heads differ,
    /// experts no multiple)
    RoutingModel(const ModelSpec& model,
                 const std::variant<SyntheticRouting, std::shared_ptr<const TraceReader>>& routing,
                 const RoutingDemand& demand, std::uint64_t seed);
    ~RoutingModel();
    RoutingModel(RoutingModel&&) noexcept;

    /// [num_sources, num_experts] rows (sub-tokens times choices) of one exchange.
    /// Without capacity every source's row sums to tokens · num_moe_heads · top_k.
    RoutingLoads loads(int moe_layer, int micro_batch) const;

    /// The same as expert-parallel ranks see it. Where nothing is recorded or cut to a capacity it
    /// is drawn in that form (traces/routing_law.hpp): the same law as `loads`, other draws of it.
    /// Recorded tokens also tell how many copies travel.
    /// @param domain_of_place  [num_places] counted from 0; empty: all in one
    /// @param placement  where experts lie, copies included; null: equal blocks in order
    PlacedLoads placed_loads(int moe_layer, int micro_batch, int num_places, int sources_per_block,
                             const std::vector<int>& domain_of_place = {},
                             const LayerPlacement* placement = nullptr) const;
    bool knows_tokens() const;  ///< choices of single tokens, and not only their counts

    bool same_everywhere()
        const;  ///< every layer of equal shape and every micro-batch alike (balanced)
    const std::vector<std::string>& assumptions() const;

  private:
    struct Source;
    std::unique_ptr<Source> source_;
};

/// As the flag spells it: "zipf:1.2", "document-pools".
std::string to_words(const SyntheticRouting&);

}  // namespace moeplan
