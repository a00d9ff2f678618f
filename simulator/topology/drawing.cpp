#include "simulator/topology/drawing.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

namespace moeplan {
namespace {

/// The vertex of a described fabric's NIC beside this GPU; empty if there is none.
std::string nic_of(const LinkGraph& graph, int gpu) {
    if (!graph.vertex.empty() || graph.rail[gpu] < 0) return {};
    return fmt::format("node{}/nic{}", gpu / graph.gpus_per_node, graph.rail[gpu]);
}
std::string gpu_name(const LinkGraph& graph, int gpu) {
    return graph.vertex.empty() ? fmt::format("gpu{}", gpu)
                                : graph.vertex[static_cast<std::size_t>(gpu)];
}

VertexKind kind_of(const std::string& name) {
    if (name.starts_with("gpu")) return VertexKind::gpu;
    if (name.starts_with("nvswitch")) return VertexKind::nv_switch;
    if (name.find("/nic") != std::string::npos) return VertexKind::nic;
    if (name.starts_with("rail")) return VertexKind::leaf;
    if (name.starts_with("spine")) return VertexKind::spine;
    return VertexKind::other_switch;
}

/// The GPUs to show: whole nodes from both ends.
std::vector<int> shown_gpus(const LinkGraph& graph, int most_gpus) {
    const int node = std::max(1, graph.gpus_per_node), nodes = graph.num_gpus / node,
              shown = std::min(nodes, std::max(most_gpus / node, 2)), first = (shown + 1) / 2;
    std::vector<int> out;
    for (int i = 0; i < shown; ++i)
        for (int gpu = 0; gpu < node; ++gpu)
            out.push_back((i < first ? i : nodes - shown + i) * node + gpu);
    return out;
}

/// Rows by the fewest lines to a GPU; what only scale-up lines lead to goes below the GPUs, so that
/// ways within a domain and ways out of it do not cross.
void set_rows(Drawing& drawing) {
    constexpr int kUnset = -1;
    for (auto& vertex : drawing.vertices) vertex.row = vertex.kind == VertexKind::gpu ? 0 : kUnset;
    for (int row = 0, changed = 1; changed > 0; ++row) {
        changed = 0;
        for (const auto& line : drawing.lines)
            for (const auto& [a, b] :
                 {std::pair(line.from, line.to), std::pair(line.to, line.from)})
                if (drawing.vertices[a].row == row && drawing.vertices[b].row == kUnset)
                    drawing.vertices[b].row = row + 1, ++changed;
    }
    std::vector<char> leaves_domain(drawing.vertices.size(), 0);
    for (const auto& line : drawing.lines)
        if (line.level == Level::scale_out) leaves_domain[line.from] = leaves_domain[line.to] = 1;
    for (std::size_t v = 0; v < drawing.vertices.size(); ++v)
        if (!leaves_domain[v]) drawing.vertices[v].row *= -1;
}

/// What stands next to GPUs of one node alone is a part of that node.
void set_nodes(Drawing& drawing, const std::map<std::uint32_t, int>& node_of_gpu) {
    std::map<std::uint32_t, std::set<int>> beside;
    for (const auto& line : drawing.lines)
        for (const auto& [a, b] : {std::pair(line.from, line.to), std::pair(line.to, line.from)})
            if (const auto gpu = node_of_gpu.find(a); gpu != node_of_gpu.end())
                beside[b].insert(gpu->second);
    for (const auto& [vertex, nodes] : beside)
        if (nodes.size() == 1) drawing.vertices[vertex].node = *nodes.begin();
    for (const auto& [gpu, node] : node_of_gpu) drawing.vertices[gpu].node = node;
}

/// In each row vertices stand near the middle of what they are joined to in the row towards the
/// GPUs.
void order_rows(Drawing& drawing) {
    int lowest = 0, highest = 0;
    for (const auto& vertex : drawing.vertices) {
        lowest = std::min(lowest, vertex.row);
        highest = std::max(highest, vertex.row);
    }
    std::vector<std::vector<std::uint32_t>> joined(drawing.vertices.size());
    for (const auto& line : drawing.lines) {
        joined[line.from].push_back(line.to);
        joined[line.to].push_back(line.from);
    }
    std::vector<double> place(drawing.vertices.size());
    std::vector<std::uint32_t> order;
    const auto put = [&](int row, int towards) {
        std::vector<std::uint32_t> here;
        for (std::uint32_t v = 0; v < drawing.vertices.size(); ++v)
            if (drawing.vertices[v].row == row) here.push_back(v);
        for (const auto v : here) {
            double sum = 0, count = 0;
            for (const auto other : joined[v])
                if (drawing.vertices[other].row == towards) sum += place[other], ++count;
            place[v] = row == 0 ? v : count > 0 ? sum / count : 0;
        }
        std::stable_sort(here.begin(), here.end(),
                         [&](std::uint32_t a, std::uint32_t b) { return place[a] < place[b]; });
        for (std::size_t i = 0; i < here.size(); ++i)
            place[here[i]] = (static_cast<double>(i) + 0.5) / static_cast<double>(here.size());
        order.insert(order.end(), here.begin(), here.end());
    };
    for (int row = 0; row <= highest; ++row) put(row, row - 1);
    for (int row = -1; row >= lowest; --row) put(row, row + 1);
    std::vector<std::uint32_t> to(order.size());
    std::vector<Drawing::Vertex> vertices;
    for (std::uint32_t i = 0; i < order.size(); ++i) {
        to[order[i]] = i;
        vertices.push_back(std::move(drawing.vertices[order[i]]));
    }
    drawing.vertices = std::move(vertices);
    for (auto& line : drawing.lines) line.from = to[line.from], line.to = to[line.to];
}

}  // namespace

Drawing drawing_of(const LinkGraph& graph, int most_gpus) {
    const std::vector<int> gpus = shown_gpus(graph, most_gpus);
    Drawing out;
    out.gpus_left_out = graph.num_gpus - static_cast<int>(gpus.size());

    // Ways over GPUs that are not shown (relays of other nodes in a rack) are left out with them.
    std::set<std::string> hidden;
    for (int gpu = 0; gpu < graph.num_gpus; ++gpu)
        if (!std::binary_search(gpus.begin(), gpus.end(), gpu)) hidden.insert(gpu_name(graph, gpu));
    std::vector<char> used(graph.links.size(), 0);
    std::vector<std::uint32_t> route;
    const auto mark = [&](int a, int b) {
        route.clear();
        graph.append_route(a, b, route);
        if (std::none_of(route.begin(), route.end(), [&](std::uint32_t link) {
                return hidden.contains(graph.ends[link].from) ||
                       hidden.contains(graph.ends[link].to);
            }))
            for (const auto link : route) used[link] = 1;
    };
    for (const int a : gpus)
        for (const int b : gpus)
            if (a != b) mark(a, b);

    std::map<std::string, std::uint32_t> index;
    const auto vertex = [&](const std::string& name, bool gpu = false) {
        const auto [at, added] =
            index.emplace(name, static_cast<std::uint32_t>(out.vertices.size()));
        if (added) out.vertices.push_back({name, gpu ? VertexKind::gpu : kind_of(name), 0, -1});
        return at->second;
    };
    std::map<std::uint32_t, int> node_of_gpu;
    for (const int gpu : gpus) {
        const auto at = vertex(gpu_name(graph, gpu), true);
        if (graph.gpus_per_node > 1) node_of_gpu[at] = gpu / graph.gpus_per_node;
    }
    // Both directions of a cable are one line, parallel cables too.
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::size_t> lines;
    const auto join = [&](std::uint32_t a, std::uint32_t b, BytesPerSecond rate, Level level) {
        const auto [at, added] = lines.emplace(std::minmax(a, b), out.lines.size());
        if (added) out.lines.push_back({at->first.first, at->first.second, {}, level});
        out.lines[at->second].bandwidth = std::max(out.lines[at->second].bandwidth, rate);
    };
    for (std::size_t link = 0; link < graph.links.size(); ++link)
        if (used[link])
            join(vertex(graph.ends[link].from), vertex(graph.ends[link].to),
                 graph.links[link].bandwidth, graph.links[link].level);
    for (const int gpu : gpus)
        if (const auto nic = index.find(nic_of(graph, gpu)); nic != index.end())
            join(index.at(gpu_name(graph, gpu)), nic->second, {}, Level::scale_out);

    set_rows(out);
    set_nodes(out, node_of_gpu);
    order_rows(out);
    return out;
}

template <>
const EnumNames<VertexKind>& enum_names<VertexKind>() {
    static const EnumNames<VertexKind> names{
        {VertexKind::gpu, "gpu"},     {VertexKind::nv_switch, "nv_switch"},
        {VertexKind::nic, "nic"},     {VertexKind::leaf, "leaf"},
        {VertexKind::spine, "spine"}, {VertexKind::other_switch, "switch"}};
    return names;
}

}  // namespace moeplan
