#include <cmath>
#include <numeric>

#include "traces/routing_law.hpp"

namespace moeplan {

/// The r-th most popular expert has a share ∝ r^−s; which expert that is, is drawn for each layer.
ExpertShares zipf_shares(const RoutingLaw& law, const LawLayer& layer, std::uint64_t) {
    const auto n = static_cast<std::size_t>(layer.num_experts);
    std::vector<std::size_t> order(n);
    std::iota(order.begin(), order.end(), std::size_t{0});
    DrawStream draws(derive(layer.seed, "zipf_order", static_cast<std::uint64_t>(layer.layer)));
    for (std::size_t i = n; i > 1; --i) std::swap(order[i - 1], order[draws.below(i)]);
    ExpertShares shares(n);
    double total = 0;
    for (std::size_t r = 0; r < n; ++r)
        total += shares[order[r]] = std::pow(static_cast<double>(r + 1), -law.exponent);
    for (double& s : shares) s /= total;
    return capped(std::move(shares), 1.0 / layer.top_k);
}

}  // namespace moeplan
