#include "traces/routing_law.hpp"

namespace moeplan {

/// Every choice drawn alone, all experts alike: imbalance by sampling noise only.
ExpertShares multinomial_shares(const RoutingLaw&, const LawLayer& layer, std::uint64_t) {
    return ExpertShares(static_cast<std::size_t>(layer.num_experts), 1.0 / layer.num_experts);
}

}  // namespace moeplan
