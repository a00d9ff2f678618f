#pragma once
/// Clusters for tests by hand: round figures, no efficiency, no launch cost unless asked for.

#include <numeric>

#include "simulator/cluster_spec.hpp"
#include "simulator/link_graph.hpp"

namespace moeplan {

inline ClusterSpec plain_cluster(int nodes, int gpus_per_node = 8, Seconds latency = {}) {
    using namespace literals;
    ClusterSpec cluster;
    cluster.name = "plain";
    cluster.gpu = {"h100-sxm", {{Precision::bf16, 989_TFlops}}, 80_GB, 3350_GBps, 132, 50_MB};
    cluster.num_nodes = nodes;
    cluster.gpus_per_node = gpus_per_node;
    cluster.scale_up = {latency, 450_GBps};
    cluster.scale_out = {latency, 50_GBps};
    cluster.topology = Fabric{NvSwitch{gpus_per_node}, RailFatTree{gpus_per_node}};
    return cluster;
}

inline std::vector<int> first_gpus(int n) {
    std::vector<int> group(static_cast<std::size_t>(n));
    std::iota(group.begin(), group.end(), 0);
    return group;
}

}  // namespace moeplan
