#pragma once
/// The two halves of a described fabric. Each adds its links to a graph and knows the way between
/// two GPUs.

#include <functional>

#include "simulator/cluster_spec.hpp"
#include "simulator/link_graph.hpp"

namespace moeplan {

/// One half of a fabric: appends the links from source to destination.
using Way = std::function<void(int source, int destination, std::vector<std::uint32_t>& links)>;

Way add_nv_switch(LinkGraph& graph, const ClusterSpec& cluster, const NvSwitch& part);
Way add_cube_mesh(LinkGraph& graph, const ClusterSpec& cluster);
Way add_rail_fat_tree(LinkGraph& graph, const ClusterSpec& cluster, const RailFatTree& part);
Way add_fat_tree(LinkGraph& graph, const ClusterSpec& cluster, const FatTree& part);

/// NVLinks between two GPUs of a DGX-1.
int cube_mesh_links(int a, int b);

/// Adds one one-way link and returns its index.
std::uint32_t add_link(LinkGraph& graph, std::string name, BytesPerSecond bandwidth, Level level,
                       Seconds latency, std::string from, std::string to);

}  // namespace moeplan
