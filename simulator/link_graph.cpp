#include "simulator/link_graph.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "simulator/topology/parts.hpp"

namespace moeplan {

std::uint32_t add_link(LinkGraph& graph, std::string name, BytesPerSecond bandwidth, Level level,
                       Seconds latency, std::string from, std::string to) {
    graph.links.push_back({std::move(name), bandwidth, level, latency});
    graph.ends.push_back({std::move(from), std::move(to)});
    return static_cast<std::uint32_t>(graph.links.size() - 1);
}

namespace {

/// `route`, with an allocation a call, from `append_route`; which links are scale-out is copied so
/// that graphs stay movable.
void add_route(LinkGraph& graph) {
    auto outer = std::make_shared<std::vector<bool>>();
    for (const Link& link : graph.links) outer->push_back(link.level == Level::scale_out);
    graph.route = [append = graph.append_route, outer](int source, int destination) {
        Route route;
        route.latency = append(source, destination, route.links);
        for (const auto link : route.links)
            if ((*outer)[link]) route.level = Level::scale_out;
        return route;
    };
}

LinkGraph fabric_graph(const ClusterSpec& cluster, const Fabric& fabric) {
    LinkGraph graph;
    graph.num_gpus = num_gpus(cluster);
    graph.gpus_per_node = cluster.gpus_per_node;
    const int domain = std::min(gpus_per_domain(cluster), graph.num_gpus);
    graph.domain.resize(static_cast<std::size_t>(graph.num_gpus));
    for (int gpu = 0; gpu < graph.num_gpus; ++gpu) graph.domain[gpu] = gpu / domain;
    graph.rail.assign(static_cast<std::size_t>(graph.num_gpus), -1);

    const Way inside = std::holds_alternative<NvSwitch>(fabric.scale_up)
                           ? add_nv_switch(graph, cluster, std::get<NvSwitch>(fabric.scale_up))
                           : add_cube_mesh(graph, cluster);
    const auto* rails = std::get_if<RailFatTree>(&fabric.scale_out);
    Way outside;
    if (graph.num_gpus > domain)
        outside = rails ? add_rail_fat_tree(graph, cluster, *rails)
                        : add_fat_tree(graph, cluster, std::get<FatTree>(fabric.scale_out));

    const int gpus = graph.num_gpus;
    if (rails && rails->pxn && outside)
        graph.relay = [domain, gpus, rail = graph.rail](int source, int destination) {
            if (source / domain == destination / domain || rail[source] == rail[destination])
                return -1;
            const int via = source / domain * domain + destination % domain;
            return via < gpus
                       ? via
                       : -1;  // a last domain that is not full: no GPU of that place to go through
        };
    else
        graph.relay = [](int, int) { return -1; };

    auto latencies = std::make_shared<std::vector<Seconds>>();
    for (const Link& link : graph.links) latencies->push_back(link.latency);
    graph.append_route = [=, relay = graph.relay](int source, int destination,
                                                  std::vector<std::uint32_t>& links) {
        const std::size_t first = links.size();
        if (source / domain == destination / domain) {
            inside(source, destination, links);
        } else if (const int via = relay(source, destination); via >= 0) {
            inside(source, via, links);
            outside(via, destination, links);
        } else {
            outside(source, destination, links);
        }
        Seconds latency;
        for (std::size_t i = first; i < links.size(); ++i) latency += (*latencies)[links[i]];
        return latency;
    };
    // One figure inside and one outside, but for the cube mesh, whose ways have one hop or two.
    if (std::holds_alternative<NvSwitch>(fabric.scale_up)) {
        const Seconds near = cluster.scale_up.latency, far = cluster.scale_out.latency;
        graph.latency = [=, relay = graph.relay](int source, int destination) {
            if (source / domain == destination / domain) return near;
            return relay(source, destination) >= 0 ? near + far : far;
        };
    } else {
        graph.latency = [append = graph.append_route](int source, int destination) {
            std::vector<std::uint32_t> links;
            return append(source, destination, links);
        };
    }
    return graph;
}

}  // namespace

LinkGraph build_link_graph(const ClusterSpec& cluster) {
    LinkGraph graph;
    if (const auto* fabric = std::get_if<Fabric>(&cluster.topology)) {
        graph = fabric_graph(cluster, *fabric);
        add_route(graph);
    } else {
        graph = *std::get<std::shared_ptr<const LinkGraph>>(cluster.topology);
        for (Link& link : graph.links)
            link.bandwidth *=
                (link.level == Level::scale_up ? cluster.scale_up : cluster.scale_out).efficiency;
    }
    graph.collective_launch = cluster.collective_launch;
    graph.in_switch_reduction = cluster.in_switch_reduction;
    graph.collective_efficiency = cluster.collective_efficiency;
    return graph;
}

}  // namespace moeplan
