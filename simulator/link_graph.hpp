#pragma once
/// A topology is a function from ClusterSpec to a graph of links with routes. Both network models
/// read this graph.

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/units.hpp"
#include "simulator/cluster_spec.hpp"

namespace moeplan {

enum class Level : std::uint8_t { scale_up, scale_out };
struct Link {
    std::string name;          ///< "node3/gpu5/nvlink-up", "rail2/leaf0/spine-up"
    BytesPerSecond bandwidth;  ///< of this direction: every link is one way
    Level level = Level::scale_up;
    Seconds latency;  ///< imported graphs: routes sum it; described fabrics state latency by level
    bool operator==(const Link&) const = default;
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
        route;  ///< source ≠ destination; O(1) for described fabrics
    /// The same without an allocation a call: appends the links of the route to `links` and returns
    /// its latency.
    std::function<Seconds(int source, int destination, std::vector<std::uint32_t>& links)>
        append_route;
    /// Latency of that route alone.
    std::function<Seconds(int source, int destination)> latency;
    /// The GPU of the source's domain through which the route leaves it (PXN), or −1: both halves
    /// are routes of their own.
    std::function<int(int source, int destination)> relay;
    /// Orders of a group for ring collectives with the share of the payload each carries (shares
    /// sum to 1): the fabric knows which rings its links can hold at once. Empty function: the
    /// collectives make rings from domains and rails.
    struct Ring {
        std::vector<int> order;
        double share = 1;
    };
    std::function<std::vector<Ring>(const std::vector<int>& group)> rings;
    std::vector<int> domain;  ///< [num_gpus] NVLink domain of each GPU
    std::vector<int> rail;    ///< [num_gpus] rail of each GPU's NIC, −1 without one
    /// For drawings and cuts: every link's two ends by vertex name; GPUs are "gpu0" …
    struct End {
        std::string from, to;
    };
    std::vector<End> ends;            ///< [links]
    std::vector<std::string> vertex;  ///< imported graphs: names; the first num_gpus are the GPUs
    std::map<std::pair<int, int>, std::vector<std::uint32_t>>
        stated_routes;                 ///< imported graphs that list their routes
    Seconds collective_launch;         ///< of the cluster
    bool in_switch_reduction = false;  ///< of the cluster
    std::map<std::string, double> collective_efficiency;  ///< of the cluster
};

/// Bandwidths are the usable ones: datasheet × efficiency.
LinkGraph build_link_graph(const ClusterSpec&);

/// Rate at which the first half of the GPUs can send to the second, one way: a maximum flow over the drawn links, with every
/// GPU joined to its NIC. Where routes are stated one by one: what they carry of an even exchange between the halves.
BytesPerSecond bisection_bandwidth(const LinkGraph& graph);

/// Links of one kind: the name without its numbers, how many, and their rate.
struct LinkKind {
    std::string name;
    std::int64_t count = 0;
    BytesPerSecond bandwidth;
    Level level = Level::scale_up;
};
std::vector<LinkKind> link_kinds(const LinkGraph& graph);

/// Links on the way between two GPUs, over all pairs (above 512 GPUs: from the first of each domain of the first two, to all).
struct Hops {
    int fewest = 0, most = 0;
    double mean = 0;
    Seconds longest_latency;
};
Hops hops(const LinkGraph& graph);

/// Fills route functions of an imported graph: stated routes first, else the fewest hops, then the
/// widest, then the lowest link.
/// @param end_vertex  [links] from and to, as indices of `vertex`
/// @throws InputError naming a pair of GPUs without a way
void route_by_hops(LinkGraph& graph, const std::vector<std::pair<int, int>>& end_vertex,
                   const std::string& file);

}  // namespace moeplan
