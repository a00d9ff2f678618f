/// A picture's worth of a graph: GPUs below, what joins them above by its distance from them.

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "simulator/link_graph.hpp"

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

/// In each row vertices stand near the middle of what they are joined to below.
void order_rows(Drawing& drawing) {
    int rows = 0;
    for (const auto& vertex : drawing.vertices) rows = std::max(rows, vertex.row + 1);
    std::vector<std::vector<std::uint32_t>> joined(drawing.vertices.size());
    for (const auto& line : drawing.lines) {
        joined[line.from].push_back(line.to);
        joined[line.to].push_back(line.from);
    }
    std::vector<double> place(drawing.vertices.size());
    std::vector<std::uint32_t> order;
    for (int row = 0; row < rows; ++row) {
        std::vector<std::uint32_t> here;
        for (std::uint32_t v = 0; v < drawing.vertices.size(); ++v)
            if (drawing.vertices[v].row == row) here.push_back(v);
        if (row > 0)
            for (const auto v : here) {
                double sum = 0, count = 0;
                for (const auto other : joined[v])
                    if (drawing.vertices[other].row == row - 1) sum += place[other], ++count;
                place[v] = count > 0 ? sum / count : 0;
            }
        else
            for (const auto v : here) place[v] = v;
        std::stable_sort(here.begin(), here.end(),
                         [&](std::uint32_t a, std::uint32_t b) { return place[a] < place[b]; });
        for (std::size_t i = 0; i < here.size(); ++i)
            place[here[i]] = (static_cast<double>(i) + 0.5) / static_cast<double>(here.size());
        order.insert(order.end(), here.begin(), here.end());
    }
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
    // Whole nodes, at least two of them where there are two: the way between nodes is what a
    // picture is looked at for.
    const int node = std::max(1, graph.gpus_per_node);
    const int gpus = std::min(graph.num_gpus, std::max(most_gpus / node, 2) * node);
    Drawing out;
    out.gpus_left_out = graph.num_gpus - gpus;

    std::vector<char> used(graph.links.size(), 0);
    std::vector<std::uint32_t> route;
    const auto mark = [&](int a, int b) {
        route.clear();
        graph.append_route(a, b, route);
        for (const auto link : route) used[link] = 1;
    };
    for (int a = 0; a < gpus; ++a)
        for (int b = 0; b < gpus; ++b)
            if (a != b) mark(a, b);

    std::map<std::string, std::uint32_t> index;
    const auto vertex = [&](const std::string& name) {
        const auto [at, added] =
            index.emplace(name, static_cast<std::uint32_t>(out.vertices.size()));
        if (added) out.vertices.push_back({name, -1});
        return at->second;
    };
    for (int gpu = 0; gpu < gpus; ++gpu) out.vertices[vertex(gpu_name(graph, gpu))].row = 0;
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
    for (int gpu = 0; gpu < gpus; ++gpu)
        if (const auto nic = index.find(nic_of(graph, gpu)); nic != index.end())
            join(index.at(gpu_name(graph, gpu)), nic->second, {}, Level::scale_out);

    // Rows by the fewest lines to a GPU.
    for (int row = 0, changed = 1; changed > 0; ++row) {
        changed = 0;
        for (const auto& line : out.lines)
            for (const auto& [a, b] : {std::pair(line.from, line.to), std::pair(line.to, line.from)})
                if (out.vertices[a].row == row && out.vertices[b].row < 0)
                    out.vertices[b].row = row + 1, ++changed;
    }
    order_rows(out);
    return out;
}

}  // namespace moeplan
