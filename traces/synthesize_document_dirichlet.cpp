#include <algorithm>

#include "traces/routing_law.hpp"

namespace moeplan {

/// Each document has shares of its own around the popularity: what makes most of a micro-batch's
/// imbalance (routing-traces.md). Without an exponent all experts are alike popular; with one,
/// popularity is Zipf's.
ExpertShares document_dirichlet_shares(const RoutingLaw& law, const LawLayer& layer,
                                       std::uint64_t document) {
    DrawStream draws(
        derive(derive(layer.seed, "document_shares", static_cast<std::uint64_t>(layer.layer)),
               "document", document));
    const ExpertShares popularity = zipf_shares(law, layer, document);
    const double rho = std::clamp(law.document_dispersion / layer.num_experts, 0.0, 1.0);
    return capped(dirichlet_around(popularity, rho, draws), 1.0 / layer.top_k);
}

}  // namespace moeplan
