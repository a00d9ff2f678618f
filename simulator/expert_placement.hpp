#pragma once
/// Which expert-parallel rank holds which expert, copies included: from a logical expert, the
/// model's, to the physical ones that its tokens travel to.

#include <string>
#include <vector>

#include "core/json.hpp"
#include "traces/routing_law.hpp"
#include "traces/routing_trace.hpp"

namespace moeplan {

/// Experts of one MoE layer on ranks; an expert may have several copies.
struct LayerPlacement {
    int moe_layer = 0;
    std::vector<std::vector<int>> ranks_of_expert;  ///< [num_experts] ascending ranks, at least one
    bool operator==(const LayerPlacement&) const = default;
};

struct ExpertPlacement {
    std::string source;  ///< the file, for messages and assumptions
    int num_ranks = 1;   ///< the expert-parallel size it was made for
    std::vector<LayerPlacement> layers;
    /// Of a MoE layer of the model; placed layers repeat in order where the model has more.
    const LayerPlacement& of(int moe_layer) const {
        return layers[static_cast<std::size_t>(moe_layer) % layers.size()];
    }
};

/// Most experts that a rank holds.
int slots_per_rank(const LayerPlacement&, int num_ranks);
/// Most experts that a rank holds and that have copies on other ranks too.
int copied_per_rank(const LayerPlacement&, int num_ranks);

/// A source's rows for an expert, split evenly among its copies; what is left over goes to copies in
/// turn, so that none is lost and none counted twice.
/// @return rows by [blocks, num_places · slots_per_rank]: a place's experts in rising order, then
/// empty slots
/// @param sources_per_block  sources that share one set of experts
PlacedLoads placed(const RoutingLoads&, const LayerPlacement&, int num_places,
                   int sources_per_block);

/// A file of its own (schemas/placement.schema.json), or a plan's `placement`, whose copies are
/// taken along.
/// @throws InputError for an expert without a rank, a rank out of bounds or named twice, layers of
/// unequal experts
ExpertPlacement placement_from_json(const JsonReader&);
Json to_json(const ExpertPlacement&);

}  // namespace moeplan
