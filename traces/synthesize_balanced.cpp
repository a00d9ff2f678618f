#include "traces/routing_law.hpp"

namespace moeplan {

/// Every expert has the same number of tokens: the reference that nothing real reaches.
/// `synthetic_step` deals the experts out in turn, so that counts differ by one at most.
ExpertShares balanced_shares(const RoutingLaw&, const LawLayer& layer, std::uint64_t) {
    return ExpertShares(static_cast<std::size_t>(layer.num_experts), 1.0 / layer.num_experts);
}

}  // namespace moeplan
