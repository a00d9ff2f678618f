#pragma once
/// Statistics of one exchange's loads.

#include "traces/routing_trace.hpp"

namespace moeplan {

/// Busiest rank over the mean, experts placed in contiguous equal blocks. 1.0 is perfect; 1.0 when
/// nothing was routed.
double load_imbalance(const RoutingLoads& loads, int num_ranks);

}  // namespace moeplan
