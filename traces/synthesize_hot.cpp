#include <algorithm>

#include "traces/routing_law.hpp"

namespace moeplan {

/// One expert of each layer has `exponent` times the mean load; the others share the rest.
ExpertShares hot_shares(const RoutingLaw& law, const LawLayer& layer, std::uint64_t) {
    const auto n = static_cast<std::size_t>(layer.num_experts);
    if (n == 1) return {1.0};
    const double hot = std::clamp(law.exponent / static_cast<double>(n), 0.0, 1.0 / layer.top_k);
    ExpertShares shares(n, (1 - hot) / static_cast<double>(n - 1));
    shares[draw(layer.seed, "hot_expert", static_cast<std::uint64_t>(layer.layer)) % n] = hot;
    return shares;
}

}  // namespace moeplan
