/// Rail-optimised fat tree: NIC i of every node is a port of leaf switch i ("rail i"); leaves meet
/// in spines. Spines spread packets evenly (adaptive routing), so a leaf's uplinks are one link of
/// their summed rate, divided by the oversubscription.

#include <fmt/format.h>

#include "simulator/topology/parts.hpp"

namespace moeplan {

Way add_rail_fat_tree(LinkGraph& graph, const ClusterSpec& cluster, const RailFatTree& part) {
    const int gpus = graph.gpus_per_node, nodes = graph.num_gpus / gpus;
    // Unless the cluster says which NIC is beside which GPU: with more NICs than GPUs those of one
    // GPU work as one port of their summed rate; with fewer, neighbours share one.
    const bool stated = !part.nic_of_gpu.empty();
    const int ports = stated ? part.num_nics : std::min(part.num_nics, gpus),
              bundle = part.num_nics / ports;
    std::vector<int> port = part.nic_of_gpu;
    if (!stated)
        for (int gpu = 0; gpu < gpus; ++gpu) port.push_back(gpu / (gpus / ports));
    const BytesPerSecond port_rate = cluster.scale_out.usable() * bundle;
    const int per_leaf = part.nodes_per_leaf > 0 ? std::min(part.nodes_per_leaf, nodes) : nodes;
    const int leaves = (nodes + per_leaf - 1) / per_leaf;
    const Seconds half = cluster.scale_out.latency / 2;  // of a way, at each of its ends
    const auto nic_base = static_cast<std::uint32_t>(graph.links.size());
    for (int node = 0; node < nodes; ++node)
        for (int rail = 0; rail < ports; ++rail) {
            const auto name = fmt::format("node{}/nic{}", node, rail);
            const auto leaf = fmt::format("rail{}/leaf{}", rail, node / per_leaf);
            add_link(graph, name + "/up", port_rate, Level::scale_out, half, name, leaf);
            add_link(graph, name + "/down", port_rate, Level::scale_out, half, leaf, name);
        }
    // Under one leaf a rail the spine is crossed only by packets that change rails (no PXN, or no
    // GPU to relay).
    const bool spine = leaves > 1 || ports > 1;
    const auto spine_base = static_cast<std::uint32_t>(graph.links.size());
    if (spine)
        for (int leaf = 0; leaf < leaves; ++leaf)
            for (int rail = 0; rail < ports; ++rail) {
                const int members = std::min(per_leaf, nodes - leaf * per_leaf);
                const auto name = fmt::format("rail{}/leaf{}", rail, leaf);
                const auto rate = port_rate * members / part.oversubscription;
                add_link(graph, name + "/spine-up", rate, Level::scale_out, {}, name, "spine");
                add_link(graph, name + "/spine-down", rate, Level::scale_out, {}, "spine", name);
            }
    for (int gpu = 0; gpu < graph.num_gpus; ++gpu) graph.rail[gpu] = port[gpu % gpus];
    return [=](int source, int destination, std::vector<std::uint32_t>& links) {
        const int from = source / gpus, to = destination / gpus;
        const int out = port[source % gpus], in = port[destination % gpus];
        links.push_back(nic_base + 2 * static_cast<std::uint32_t>(from * ports + out));
        if (from / per_leaf != to / per_leaf || out != in) {
            links.push_back(spine_base +
                            2 * static_cast<std::uint32_t>(from / per_leaf * ports + out));
            links.push_back(spine_base +
                            2 * static_cast<std::uint32_t>(to / per_leaf * ports + in) + 1);
        }
        links.push_back(nic_base + 2 * static_cast<std::uint32_t>(to * ports + in) + 1);
    };
}

}  // namespace moeplan
