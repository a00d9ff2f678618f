#include <algorithm>
#include <map>

#include "simulator/collectives/collectives.hpp"

namespace moeplan {

GroupShape shape_of(const LinkGraph& graph, const std::vector<int>& group) {
    GroupShape shape;
    shape.gpus = group;
    std::map<int, std::size_t> place;  // domain → index, domains in order of their first rank
    for (const int gpu : group) {
        const auto [at, added] = place.emplace(graph.domain[gpu], shape.by_domain.size());
        if (added) shape.by_domain.emplace_back();
        shape.by_domain[at->second].push_back(gpu);
    }
    for (const auto& members : shape.by_domain)
        shape.even &= members.size() == shape.by_domain.front().size();
    return shape;
}

Seconds longest_latency(const LinkGraph& graph, const std::vector<Flow>& flows) {
    Seconds longest;
    std::vector<std::uint32_t> links;
    for (const Flow& flow : flows) {
        if (flow.source == flow.destination) continue;
        links.clear();
        longest = std::max(longest, graph.append_route(static_cast<int>(flow.source),
                                                       static_cast<int>(flow.destination), links));
    }
    return longest;
}

std::vector<LinkGraph::Ring> rings_of(const LinkGraph& graph, const GroupShape& group) {
    if (graph.rings)
        if (auto known = graph.rings(group.gpus); !known.empty()) return known;
    if (group.num_domains() == 1) return {{group.by_domain.front(), 1}};
    if (!group.even) {
        std::vector<int> order;
        for (const auto& members : group.by_domain)
            order.insert(order.end(), members.begin(), members.end());
        return {{order, 1}};
    }
    // Channel c enters the first domain at place c and walks all its places, so it leaves at c − 1,
    // which is where the next domain is entered: hops between domains keep their rail, and every
    // rail is used by one channel in each direction.
    const int m = static_cast<int>(group.by_domain.front().size());
    std::vector<LinkGraph::Ring> rings;
    for (int channel = 0; channel < m; ++channel) {
        LinkGraph::Ring ring{{}, 1.0 / m};
        int place = channel;
        for (const auto& members : group.by_domain)
            for (int i = 0; i < m; ++i) {
                ring.order.push_back(members[static_cast<std::size_t>(place)]);
                if (i + 1 < m) place = (place + 1) % m;
            }
        rings.push_back(std::move(ring));
    }
    return rings;
}

}  // namespace moeplan
