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
    for (const Flow& flow : flows)
        if (flow.source != flow.destination)
            longest = std::max(longest, graph.latency(static_cast<int>(flow.source),
                                                      static_cast<int>(flow.destination)));
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
    // Channel c enters domain d at place p(d) and leaves it at p(d + 1) ≠ p(d), which is where the
    // next one is entered: no hop between domains changes its rail, and every rail carries one
    // channel. The walk must close: p = c, c − 1, c, …, and for an odd number of domains once c, c
    // − 1, c − 2, c (with two GPUs a domain that is impossible: the last hop changes rails).
    const int m = static_cast<int>(group.by_domain.front().size()), domains = group.num_domains();
    std::vector<LinkGraph::Ring> rings;
    for (int channel = 0; channel < m; ++channel) {
        LinkGraph::Ring ring{{}, 1.0 / m};
        const auto entry = [&](int d) {
            const bool odd = domains % 2 == 1 && m > 2;
            const int back = odd ? (d < 3 ? d : (d - 3) % 2) : d % 2;
            return ((channel - back) % m + m) % m;
        };
        for (int d = 0; d < domains; ++d) {
            const auto& members = group.by_domain[static_cast<std::size_t>(d)];
            const int in = entry(d);
            int out = d + 1 < domains ? entry(d + 1) : channel;
            if (out == in && m > 1) out = (in + m - 1) % m;
            ring.order.push_back(members[static_cast<std::size_t>(in)]);
            for (int i = 1; i < m; ++i)
                if (const int place = (in + i) % m; place != out)
                    ring.order.push_back(members[static_cast<std::size_t>(place)]);
            if (m > 1) ring.order.push_back(members[static_cast<std::size_t>(out)]);
        }
        rings.push_back(std::move(ring));
    }
    return rings;
}

}  // namespace moeplan
