/// Imported graphs: ways where the file states none.

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "core/errors.hpp"
#include "simulator/link_graph.hpp"

namespace moeplan {
namespace {

constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
constexpr std::size_t kMostTableEntries = std::size_t{1} << 26;  // 256 MiB of next hops

struct Ways {
    std::size_t vertices = 0;
    std::vector<std::uint32_t>
        arrival;  ///< [num_gpus, vertices] link by which the way from a GPU enters a vertex
    std::vector<std::uint32_t> from;  ///< [links] vertex
    std::vector<Seconds> latency;     ///< [links]
    std::vector<bool> outer;          ///< [links]
    std::map<std::pair<int, int>, std::vector<std::uint32_t>> stated;
};

/// Breadth first from one GPU: fewest hops, then the widest way, then the lowest link.
void find_ways(const LinkGraph& graph, const std::vector<std::pair<int, int>>& ends,
               const std::vector<std::vector<std::uint32_t>>& leaving, int source,
               std::uint32_t* arrival) {
    const std::size_t n = graph.vertex.size();
    std::vector<double> width(n, 0);
    std::vector<int> hops(n, -1);
    std::vector<int> frontier{source}, next;
    hops[source] = 0;
    width[source] = std::numeric_limits<double>::infinity();
    for (int level = 1; !frontier.empty(); ++level, frontier.swap(next)) {
        next.clear();
        for (const int u : frontier)
            for (const auto link : leaving[u]) {
                const int v = ends[link].second;
                const double w = std::min(width[u], graph.links[link].bandwidth.value);
                if (hops[v] < 0) {
                    hops[v] = level;
                    next.push_back(v);
                } else if (hops[v] != level || w < width[v] ||
                           (w == width[v] && link >= arrival[v])) {
                    continue;
                }
                width[v] = w;
                arrival[v] = link;
            }
    }
}

}  // namespace

void route_by_hops(LinkGraph& graph, const std::vector<std::pair<int, int>>& ends,
                   const std::string& file) {
    auto ways = std::make_shared<Ways>();
    ways->vertices = graph.vertex.size();
    const auto gpus = static_cast<std::size_t>(graph.num_gpus);
    ways->stated = graph.stated_routes;
    for (const auto& [from, to] : ends) ways->from.push_back(static_cast<std::uint32_t>(from));
    for (const Link& link : graph.links) {
        ways->latency.push_back(link.latency);
        ways->outer.push_back(link.level == Level::scale_out);
    }
    const bool all_stated = ways->stated.size() == gpus * (gpus - 1);
    if (!all_stated) {
        if (gpus > kMostTableEntries / std::max<std::size_t>(ways->vertices, 1))
            throw InputError(
                file, "", fmt::format("{} GPUs in a graph of {} vertices", gpus, ways->vertices),
                "a smaller graph, or a described fabric (specs/clusters shows the form)");
        std::vector<std::vector<std::uint32_t>> leaving(ways->vertices);
        for (std::size_t link = 0; link < ends.size(); ++link)
            leaving[ends[link].first].push_back(static_cast<std::uint32_t>(link));
        ways->arrival.assign(gpus * ways->vertices, kNone);
        for (std::size_t gpu = 0; gpu < gpus; ++gpu)
            find_ways(graph, ends, leaving, static_cast<int>(gpu),
                      &ways->arrival[gpu * ways->vertices]);
        for (std::size_t a = 0; a < gpus; ++a)
            for (std::size_t b = 0; b < gpus; ++b)
                if (a != b && ways->arrival[a * ways->vertices + b] == kNone &&
                    !ways->stated.count({static_cast<int>(a), static_cast<int>(b)}))
                    throw InputError(
                        file, "",
                        fmt::format("no way from {} to {}", graph.vertex[a], graph.vertex[b]),
                        "links that join all GPUs");
    }
    graph.relay = [](int, int) { return -1; };
    graph.append_route = [ways](int source, int destination, std::vector<std::uint32_t>& links) {
        const std::size_t first = links.size();
        if (const auto stated = ways->stated.find({source, destination});
            stated != ways->stated.end()) {
            links.insert(links.end(), stated->second.begin(), stated->second.end());
        } else {
            for (auto at = static_cast<std::uint32_t>(destination);
                 at != static_cast<std::uint32_t>(source);) {
                const auto link =
                    ways->arrival[static_cast<std::size_t>(source) * ways->vertices + at];
                links.push_back(link);
                at = ways->from[link];
            }
            std::reverse(links.begin() + static_cast<std::ptrdiff_t>(first), links.end());
        }
        Seconds latency;
        for (std::size_t i = first; i < links.size(); ++i) latency += ways->latency[links[i]];
        return latency;
    };
    graph.latency = [append = graph.append_route](int source, int destination) {
        std::vector<std::uint32_t> links;
        return append(source, destination, links);
    };
    graph.route = [ways, append = graph.append_route](int source, int destination) {
        Route route;
        route.latency = append(source, destination, route.links);
        for (const auto link : route.links)
            if (ways->outer[link]) route.level = Level::scale_out;
        return route;
    };
}

}  // namespace moeplan
