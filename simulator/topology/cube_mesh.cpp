/// DGX-1: eight GPUs with six NVLinks each, to four peers (two of them by double links). GPUs
/// without a link of their own talk through a common neighbour: the widest two-hop way, as NCCL
/// does.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "simulator/topology/parts.hpp"

namespace moeplan {
namespace {

/// NVLinks between two GPUs of a DGX-1V, as its `nvidia-smi topo -m` prints them.
constexpr int kLinks[8][8] = {{0, 1, 1, 2, 2, 0, 0, 0}, {1, 0, 2, 1, 0, 2, 0, 0},
                              {1, 2, 0, 2, 0, 0, 1, 0}, {2, 1, 2, 0, 0, 0, 0, 1},
                              {2, 0, 0, 0, 0, 1, 1, 2}, {0, 2, 0, 0, 1, 0, 2, 1},
                              {0, 0, 1, 0, 1, 2, 0, 2}, {0, 0, 0, 1, 2, 1, 2, 0}};
constexpr int kLinksPerGpu = 6;

/// The neighbour through which a goes to b, or b itself.
int next_hop(int a, int b) {
    if (kLinks[a][b] > 0) return b;
    int best = -1, width = 0;
    for (int via = 0; via < 8; ++via)
        if (const int w = std::min(kLinks[a][via], kLinks[via][b]); w > width)
            best = via, width = w;
    return best;
}

/// The Hamiltonian cycles that the links hold at once: one of double links, one of single links;
/// together all six links.
constexpr std::array<int, 8> kDoubleRing = {0, 3, 2, 1, 5, 6, 7, 4},
                             kSingleRing = {0, 1, 3, 7, 5, 4, 6, 2};

}  // namespace

int cube_mesh_links(int a, int b) { return kLinks[a][b]; }

Way add_cube_mesh(LinkGraph& graph, const ClusterSpec& cluster) {
    const auto base = static_cast<std::uint32_t>(graph.links.size());
    std::array<std::array<std::uint32_t, 8>, 8> index{};
    std::uint32_t per_node = 0;
    for (int a = 0; a < 8; ++a)
        for (int b = 0; b < 8; ++b)
            if (kLinks[a][b] > 0) index[a][b] = per_node++;
    for (int node = 0; node < graph.num_gpus / 8; ++node)
        for (int a = 0; a < 8; ++a)
            for (int b = 0; b < 8; ++b)
                if (kLinks[a][b] > 0)
                    add_link(graph, fmt::format("node{}/gpu{}-gpu{}", node, a, b),
                             cluster.scale_up.usable() / kLinksPerGpu * kLinks[a][b],
                             Level::scale_up, cluster.scale_up.latency,
                             fmt::format("gpu{}", node * 8 + a),
                             fmt::format("gpu{}", node * 8 + b));
    graph.rings = [](const std::vector<int>& group) -> std::vector<LinkGraph::Ring> {
        if (group.size() < 2 || group.front() / 8 != group.back() / 8) return {};
        const int node = group.front() / 8;
        std::vector<int> local;
        for (const int gpu : group) {
            if (gpu / 8 != node) return {};
            local.push_back(gpu % 8);
        }
        std::sort(local.begin(), local.end());
        const auto both_ways = [&](const std::vector<int>& ring, double share,
                                   std::vector<LinkGraph::Ring>& out) {
            std::vector<int> forth;
            for (const int gpu : ring) forth.push_back(node * 8 + gpu);
            std::vector<int> back(forth.rbegin(), forth.rend());
            if (ring.size() == 2) {
                out.push_back({forth, share});
                return;
            }  // there and back are one ring
            out.push_back({forth, share / 2});
            out.push_back({back, share / 2});
        };
        std::vector<LinkGraph::Ring> out;
        if (local.size() == 8) {  // payload in proportion to width: 2 of 3 on the double links
            both_ways({kDoubleRing.begin(), kDoubleRing.end()}, 2.0 / 3, out);
            both_ways({kSingleRing.begin(), kSingleRing.end()}, 1.0 / 3, out);
            return out;
        }
        // Part of the node: the order with the widest narrowest hop; among equals the first in
        // lexicographic order.
        std::vector<int> order = local, best = local;
        int width = -1;
        do {
            int narrowest = 99;
            for (std::size_t i = 0; i < order.size(); ++i)
                narrowest = std::min(narrowest, kLinks[order[i]][order[(i + 1) % order.size()]]);
            if (narrowest > width) width = narrowest, best = order;
        } while (std::next_permutation(order.begin() + 1, order.end()));
        both_ways(best, 1, out);
        return out;
    };
    return [base, per_node, index](int source, int destination, std::vector<std::uint32_t>& links) {
        const auto at = base + static_cast<std::uint32_t>(source / 8) * per_node;
        const int a = source % 8, b = destination % 8, via = next_hop(a, b);
        links.push_back(at + index[a][via]);
        if (via != b) links.push_back(at + index[via][b]);
    };
}

}  // namespace moeplan
