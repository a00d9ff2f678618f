#include <algorithm>

#include "traces/routing_law.hpp"

namespace moeplan {

/// Popularity and over-dispersion as measured in a trace. A model with more MoE layers than the
/// trace takes them in turn.
ExpertShares fitted_shares(const RoutingLaw& law, const LawLayer& layer, std::uint64_t document) {
    const LayerFit& fit =
        law.fit->layers[static_cast<std::size_t>(layer.layer) % law.fit->layers.size()];
    DrawStream draws(
        derive(derive(layer.seed, "document_shares", static_cast<std::uint64_t>(layer.layer)),
               "document", document));
    return capped(dirichlet_around(fit.popularity, fit.over_dispersion, draws), 1.0 / layer.top_k);
}

}  // namespace moeplan
