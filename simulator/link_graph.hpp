#pragma once
/// A topology is a function from ClusterSpec to a graph of links with routes. Both network models
/// read this graph.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/units.hpp"
#include "simulator/cluster_spec.hpp"

namespace moeplan {

enum class Level : std::uint8_t { scale_up, scale_out };
struct Link {
    std::string name;          ///< "node3/gpu5/nvlink-up", "rail2/leaf0/spine-up"
    BytesPerSecond bandwidth;  ///< of this direction: every link is one way
    Level level = Level::scale_up;
};
/// A way from one GPU to another: the links, and the latency of an empty message.
struct Route {
    std::vector<std::uint32_t> links;
    Seconds latency;
    Level level = Level::scale_up;  ///< the highest level it crosses
};
struct LinkGraph {
    int num_gpus = 0, gpus_per_node = 0;
    std::vector<Link> links;
    std::function<Route(int source, int destination)>
        route;                ///< source ≠ destination; O(1) for described fabrics
    std::vector<int> domain;  ///< [num_gpus] NVLink domain of each GPU
    std::vector<int> rail;    ///< [num_gpus] rail of each GPU's NIC, −1 without one
    /// For drawings and cuts: every link's two ends by vertex name; GPUs are "gpu0" …
    struct End {
        std::string from, to;
    };
    std::vector<End> ends;  ///< [links]
};

LinkGraph build_link_graph(const ClusterSpec&);

}  // namespace moeplan
