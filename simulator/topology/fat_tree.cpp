/// Plain fat tree, an XGFT(h; m1…mh; w1…wh) of Öhring et al. 1995 with p parallel cables, as
/// SimGrid writes it
/// ("h;down;up;links"). Every GPU is a leaf port. Switches spread packets evenly over their uplinks
/// (adaptive routing), so all uplinks of the subtree below a level are one link of their summed
/// rate. SimGrid's own static d-mod-k routes can collide where these do not.

#include <fmt/format.h>

#include <algorithm>

#include "simulator/topology/parts.hpp"

namespace moeplan {

Way add_fat_tree(LinkGraph& graph, const ClusterSpec& cluster, const FatTree& part) {
    struct LevelOf {
        int hosts;
        std::uint32_t base;
    };  // hosts below one subtree; its first link
    std::vector<LevelOf> levels;
    int hosts = 1;
    double switches = 1;  // at the top of a subtree
    for (std::size_t level = 0; level < part.down.size(); ++level) {
        const int cables = part.links.empty() ? 1 : part.links[level];
        switches *= part.up[level];
        const auto rate = cluster.scale_out.usable() * switches * cables;
        levels.push_back({hosts, static_cast<std::uint32_t>(graph.links.size())});
        const int subtrees = (graph.num_gpus + hosts - 1) / hosts;
        const double above = static_cast<double>(hosts) * part.down[level];
        // The whole way's latency stands at its two ends, so that it does not depend on the level.
        const Seconds latency = level == 0 ? cluster.scale_out.latency / 2 : Seconds{};
        for (int tree = 0; tree < subtrees; ++tree) {
            const auto self =
                level == 0 ? fmt::format("gpu{}", tree) : fmt::format("tree{}/{}", level, tree);
            const auto over =
                fmt::format("tree{}/{}", level + 1,
                            static_cast<int>(static_cast<double>(tree) * hosts / above));
            const auto name = level == 0 ? fmt::format("gpu{}/port", tree) : self;
            add_link(graph, name + "-up", rate, Level::scale_out, latency, self, over);
            add_link(graph, name + "-down", rate, Level::scale_out, latency, over, self);
        }
        if (above >= graph.num_gpus) break;  // nothing beyond is ever crossed
        hosts = static_cast<int>(above);
    }
    for (int gpu = 0; gpu < graph.num_gpus; ++gpu) graph.rail[gpu] = 0;
    return [levels](int source, int destination, std::vector<std::uint32_t>& links) {
        std::size_t top = 0;
        while (top < levels.size() && source / levels[top].hosts != destination / levels[top].hosts)
            ++top;
        for (std::size_t level = 0; level < top; ++level)
            links.push_back(levels[level].base +
                            2 * static_cast<std::uint32_t>(source / levels[level].hosts));
        for (std::size_t level = top; level-- > 0;)
            links.push_back(levels[level].base +
                            2 * static_cast<std::uint32_t>(destination / levels[level].hosts) + 1);
    };
}

}  // namespace moeplan
