#include "traces/routing_loads.hpp"

#include <algorithm>

namespace moeplan {

double load_imbalance(const RoutingLoads& loads, int num_ranks) {
    std::vector<double> rank(static_cast<std::size_t>(num_ranks), 0.0);
    double total = 0;
    for (int source = 0; source < loads.num_sources; ++source)
        for (int expert = 0; expert < loads.num_experts; ++expert) {
            const double n =
                loads.sub_tokens[static_cast<std::size_t>(source) * loads.num_experts + expert];
            rank[static_cast<std::size_t>(static_cast<long long>(expert) * num_ranks /
                                          loads.num_experts)] += n;
            total += n;
        }
    return total > 0 ? *std::max_element(rank.begin(), rank.end()) * num_ranks / total : 1.0;
}

}  // namespace moeplan
