#include <algorithm>
#include <numeric>

#include "traces/routing_law.hpp"

namespace moeplan {

/// EMO's own mechanism: a document has shares as without pools (`document_dispersion`, 1 if not
/// given), draws a pool size d for each layer, and keeps its d most popular experts.
ExpertShares document_pools_shares(const RoutingLaw& law, const LawLayer& layer,
                                   std::uint64_t document) {
    RoutingLaw free_choice = law;
    if (!(free_choice.document_dispersion > 0)) free_choice.document_dispersion = 1;
    ExpertShares shares = document_dirichlet_shares(free_choice, layer, document);
    const int smallest = std::clamp(law.smallest_pool > 0 ? law.smallest_pool : layer.top_k,
                                    layer.top_k, layer.num_experts);
    const int largest = std::clamp(law.largest_pool > 0 ? law.largest_pool : layer.num_experts,
                                   smallest, layer.num_experts);
    const auto size = static_cast<std::size_t>(smallest) +
                      draw(derive(layer.seed, "pool_size", static_cast<std::uint64_t>(layer.layer)),
                           "document", document) %
                          static_cast<std::uint64_t>(largest - smallest + 1);
    std::vector<std::size_t> order(shares.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return shares[a] > shares[b]; });
    double kept = 0;
    for (std::size_t i = 0; i < size; ++i) kept += shares[order[i]];
    for (std::size_t i = 0; i < order.size(); ++i)
        shares[order[i]] = i >= size  ? 0
                           : kept > 0 ? shares[order[i]] / kept
                                      : 1.0 / static_cast<double>(size);
    return capped(std::move(shares), 1.0 / layer.top_k);
}

}  // namespace moeplan
