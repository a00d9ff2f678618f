#pragma once

#include "simulator/collective.hpp"

namespace moeplan {

/// What the cluster file states for this collective and this algorithm: a share of the links' rate.
double stated_efficiency(const LinkGraph& graph, Collective collective, Algorithm algorithm);

}  // namespace moeplan
