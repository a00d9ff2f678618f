/// NVSwitch: a non-blocking crossbar over a domain; every GPU has one port up and one down, of all
/// its NVLinks together. (Which switch chip a packet takes is spread evenly by the hardware; chips
/// are not links of their own here.)

#include <fmt/format.h>

#include "simulator/topology/parts.hpp"

namespace moeplan {

Way add_nv_switch(LinkGraph& graph, const ClusterSpec& cluster, const NvSwitch& part) {
    const auto base = static_cast<std::uint32_t>(graph.links.size());
    for (int gpu = 0; gpu < graph.num_gpus; ++gpu) {
        const auto at =
            fmt::format("node{}/gpu{}", gpu / graph.gpus_per_node, gpu % graph.gpus_per_node);
        const auto self = fmt::format("gpu{}", gpu),
                   hub = fmt::format("nvswitch{}", gpu / part.gpus_per_domain);
        add_link(graph, at + "/nvlink-up", cluster.scale_up.usable(), Level::scale_up,
                 cluster.scale_up.latency / 2, self, hub);
        add_link(graph, at + "/nvlink-down", cluster.scale_up.usable(), Level::scale_up,
                 cluster.scale_up.latency / 2, hub, self);
    }
    return [base](int source, int destination, std::vector<std::uint32_t>& links) {
        links.push_back(base + 2 * static_cast<std::uint32_t>(source));
        links.push_back(base + 2 * static_cast<std::uint32_t>(destination) + 1);
    };
}

}  // namespace moeplan
