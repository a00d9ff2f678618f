/// What a topology is worth: its bisection, its links by kind, its hops.

#include <algorithm>
#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/push_relabel_max_flow.hpp>
#include <cctype>
#include <fmt/format.h>
#include <map>

#include "simulator/link_graph.hpp"

namespace moeplan {
namespace {

using Traits = boost::adjacency_list_traits<boost::vecS, boost::vecS, boost::directedS>;
// Bytes per second as whole numbers: push-relabel compares excesses exactly.
using Network = boost::adjacency_list<
    boost::vecS, boost::vecS, boost::directedS, boost::no_property,
    boost::property<boost::edge_capacity_t, long long,
                    boost::property<boost::edge_residual_capacity_t, long long, boost::property<boost::edge_reverse_t, Traits::edge_descriptor>>>>;
constexpr long long kUnlimited = 1LL << 58;

void join(Network& net, Traits::vertex_descriptor from, Traits::vertex_descriptor to, long long capacity) {
    const auto there = add_edge(from, to, net).first, back = add_edge(to, from, net).first;
    auto capacities = get(boost::edge_capacity, net);
    auto reverse = get(boost::edge_reverse, net);
    capacities[there] = capacity;
    capacities[back] = 0;
    reverse[there] = back;
    reverse[back] = there;
}

BytesPerSecond stated_bisection(const LinkGraph& graph) {
    const int half = graph.num_gpus / 2;
    std::vector<double> load(graph.links.size());
    std::vector<std::uint32_t> route;
    for (int a = 0; a < half; ++a)
        for (int b = half; b < graph.num_gpus; ++b) {
            route.clear();
            graph.append_route(a, b, route);
            for (const auto link : route) load[link] += 1;
        }
    double slowest = 0;
    for (std::size_t link = 0; link < load.size(); ++link) slowest = std::max(slowest, load[link] / graph.links[link].bandwidth.value);
    return {slowest > 0 ? static_cast<double>(half) * (graph.num_gpus - half) / slowest : 0};
}

}  // namespace

BytesPerSecond bisection_bandwidth(const LinkGraph& graph) {
    if (graph.num_gpus < 2) return {};
    if (!graph.stated_routes.empty()) return stated_bisection(graph);
    std::map<std::string, Traits::vertex_descriptor> index;
    Network net(2);
    const Traits::vertex_descriptor source = 0, sink = 1;
    const auto vertex = [&](const std::string& name) {
        const auto [at, added] = index.emplace(name, 0);
        if (added) at->second = add_vertex(net);
        return at->second;
    };
    for (std::size_t link = 0; link < graph.links.size(); ++link)
        join(net, vertex(graph.ends[link].from), vertex(graph.ends[link].to), static_cast<long long>(graph.links[link].bandwidth.value));
    for (int gpu = 0; gpu < graph.num_gpus; ++gpu) {
        const auto at = vertex(fmt::format("gpu{}", gpu));
        const auto nic = index.find(fmt::format("node{}/nic{}", gpu / graph.gpus_per_node, graph.rail[gpu]));
        if (graph.vertex.empty() && nic != index.end()) {
            join(net, at, nic->second, kUnlimited);
            join(net, nic->second, at, kUnlimited);
        }
        if (gpu < graph.num_gpus / 2)
            join(net, source, at, kUnlimited);
        else
            join(net, at, sink, kUnlimited);
    }
    return {static_cast<double>(boost::push_relabel_max_flow(net, source, sink))};
}

std::vector<LinkKind> link_kinds(const LinkGraph& graph) {
    std::vector<LinkKind> kinds;
    std::map<std::pair<std::string, double>, std::size_t> index;
    for (const Link& link : graph.links) {
        std::string name;
        for (const char c : link.name)
            if (!std::isdigit(static_cast<unsigned char>(c)))
                name.push_back(c);
            else if (name.empty() || name.back() != '#')
                name.push_back('#');
        const auto [at, added] = index.emplace(std::pair(name, link.bandwidth.value), kinds.size());
        if (added) kinds.push_back({name, 0, link.bandwidth, link.level});
        ++kinds[at->second].count;
    }
    return kinds;
}

Hops hops(const LinkGraph& graph) {
    Hops out;
    if (graph.num_gpus < 2) return out;
    std::vector<int> sources;
    for (int gpu = 0; gpu < graph.num_gpus; ++gpu)
        if (graph.num_gpus <= 512 || gpu == 0 || (graph.domain[gpu] == 1 && graph.domain[gpu - 1] == 0)) sources.push_back(gpu);
    std::vector<std::uint32_t> route;
    std::int64_t sum = 0, pairs = 0;
    out.fewest = 1 << 30;
    for (const int a : sources)
        for (int b = 0; b < graph.num_gpus; ++b) {
            if (a == b) continue;
            route.clear();
            out.longest_latency = std::max(out.longest_latency, graph.append_route(a, b, route));
            out.fewest = std::min(out.fewest, static_cast<int>(route.size()));
            out.most = std::max(out.most, static_cast<int>(route.size()));
            sum += static_cast<std::int64_t>(route.size());
            ++pairs;
        }
    out.mean = static_cast<double>(sum) / static_cast<double>(pairs);
    return out;
}

}  // namespace moeplan
