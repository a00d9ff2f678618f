#include <algorithm>

#include "simulator/collectives/collectives.hpp"

namespace moeplan {
namespace {

/// Parent of each of n nodes, −1 for the root 0. A node whose lowest set bit is b hangs below the
/// node that has b cleared and 2b set (or only b cleared, if that number is beyond n): odd nodes
/// are leaves, the depth is ⌈log2 n⌉.
std::vector<int> binary_tree(int n) {
    std::vector<int> parent(static_cast<std::size_t>(n), -1);
    for (int node = 1; node < n; ++node) {
        const int bit = node & -node, up = (node ^ bit) | (bit << 1);
        parent[node] = up < n ? up : node ^ bit;
    }
    return parent;
}

/// The pair: the second is the first mirrored (n even) or moved by one (n odd), so that its leaves
/// are the other's inner nodes.
std::vector<std::vector<int>> two_trees(int n) {
    const auto first = binary_tree(n);
    const auto other = [&](int node) { return n % 2 == 0 ? n - 1 - node : (node + 1) % n; };
    std::vector<int> second(static_cast<std::size_t>(n), -1);
    for (int i = 0; i < n; ++i) second[other(i)] = first[i] < 0 ? -1 : other(first[i]);
    return {first, second};
}

std::uint32_t id(int gpu) { return static_cast<std::uint32_t>(gpu); }

struct Trees {
    std::vector<Flow> up;  ///< edges child → parent with the bytes each carries one way
    int depth = 0;         ///< of the deepest, in edges
};

/// Trees over `members[d]` for every place d: across domains by channel, a chain within each.
Trees trees_over(const std::vector<std::vector<int>>& members, Bytes bytes) {
    Trees out;
    const int domains = static_cast<int>(members.size());
    const int m = static_cast<int>(members.front().size());
    for (const auto& parent : two_trees(domains))
        for (int channel = 0; channel < m; ++channel) {
            const Bytes share = bytes / (2.0 * m);
            for (int d = 0; d < domains; ++d) {
                if (parent[d] >= 0)
                    out.up.push_back(
                        {id(members[d][channel]), id(members[parent[d]][channel]), share});
                // The chain ends at the channel's own GPU, which talks to the other domains.
                for (int i = 1; i < m; ++i)
                    out.up.push_back({id(members[d][(channel + i) % m]),
                                      id(members[d][(channel + i - 1) % m]), share});
                int depth = 0;
                for (int at = d; parent[at] >= 0; at = parent[at]) ++depth;
                out.depth = std::max(out.depth, depth);
            }
        }
    return out;
}

Seconds hop_latency(const LinkGraph& graph, const std::vector<Flow>& flows, bool between_domains) {
    std::vector<Flow> chosen;
    for (const Flow& flow : flows)
        if ((graph.domain[flow.source] != graph.domain[flow.destination]) == between_domains)
            chosen.push_back(flow);
    return longest_latency(graph, chosen);
}

/// One domain: its ranks are the tree's nodes. Several: the domains are.
std::vector<std::vector<int>> tree_nodes(const GroupShape& group) {
    if (group.num_domains() > 1 && group.even) return group.by_domain;
    std::vector<std::vector<int>> single;
    for (const int gpu : group.gpus) single.push_back({gpu});
    return single;
}

}  // namespace

std::vector<StageFlows> double_binary_tree(const LinkGraph& graph, const GroupShape& group,
                                           Bytes bytes) {
    const auto nodes = tree_nodes(group);
    const Trees trees = trees_over(nodes, bytes);
    StageFlows stage;
    for (const Flow& up : trees.up) {
        stage.flows.push_back(up);                                     // reduce
        stage.flows.push_back({up.destination, up.source, up.bytes});  // and back
    }
    const int chain = static_cast<int>(nodes.front().size()) - 1;
    const Seconds across = nodes.front().size() == 1 ? longest_latency(graph, stage.flows)
                                                     : hop_latency(graph, stage.flows, true);
    stage.latency =
        across * (2.0 * trees.depth) +
        hop_latency(graph, stage.flows, false) * (2.0 * (nodes.front().size() == 1 ? 0 : chain));
    return {stage};
}

std::vector<Round> tree_rounds(const LinkGraph& graph, const GroupShape& group, Bytes bytes) {
    // Only for one rank a node: level by level up, then down.
    const int n = group.num_ranks();
    std::vector<Round> up, down;
    for (const auto& parent : two_trees(n)) {
        std::vector<int> height(static_cast<std::size_t>(n), 0);
        for (int pass = 0; pass < n; ++pass)
            for (int i = 0; i < n; ++i)
                if (parent[i] >= 0) height[parent[i]] = std::max(height[parent[i]], height[i] + 1);
        for (int i = 0; i < n; ++i) {
            if (parent[i] < 0) continue;
            const auto level = static_cast<std::size_t>(height[i]);
            if (up.size() <= level) up.resize(level + 1);
            up[level].flows.push_back({id(group.gpus[i]), id(group.gpus[parent[i]]), bytes / 2});
        }
    }
    for (auto level = up.rbegin(); level != up.rend(); ++level) {
        down.emplace_back();
        for (const Flow& flow : level->flows)
            down.back().flows.push_back({flow.destination, flow.source, flow.bytes});
    }
    up.insert(up.end(), down.begin(), down.end());
    for (Round& round : up) round.latency = longest_latency(graph, round.flows);
    return up;
}

}  // namespace moeplan
