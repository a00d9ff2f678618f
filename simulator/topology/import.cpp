#include "simulator/topology/import.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <sstream>
#include <tuple>

#include "core/errors.hpp"
#include "core/text.hpp"
#include "simulator/link_graph.hpp"
#include "simulator/topology/parts.hpp"
#include "simulator/topology/xml.hpp"

namespace moeplan {
namespace fs = std::filesystem;
namespace {

constexpr std::uintmax_t kLargestFile = std::uintmax_t{64} << 20;

std::string read_text(const fs::path& file) {
    std::error_code error;
    if (!fs::is_regular_file(file, error)) throw InputError(file.string(), "", "", "a file that can be read");
    if (fs::file_size(file, error) > kLargestFile) throw InputError(file.string(), "", "", "a file of at most 64 MiB");
    std::ifstream in(file, std::ios::binary);
    std::ostringstream text;
    text << in.rdbuf();
    if (!in) throw InputError(file.string(), "", "", "a file that can be read");
    return text.str();
}

/// NVLinks of a DGX-1's cube mesh: two GPUs of four double-linked, two single-linked … as add_cube_mesh has them.
bool is_cube_mesh(const std::vector<std::vector<int>>& links) {
    if (links.size() != 8) return false;
    for (int a = 0; a < 8; ++a)
        for (int b = 0; b < 8; ++b)
            if (links[a][b] != cube_mesh_links(a, b)) return false;
    return true;
}

/// A graph of nodes whose GPUs are joined directly: GPUs, their links, NICs and one switch a rail.
std::shared_ptr<const LinkGraph> direct_graph(const NodeShape& node, const ClusterSpec& cluster, int nics, BytesPerSecond link, const std::vector<int>& nic_of_gpu) {
    auto graph = std::make_shared<LinkGraph>();
    const int per_node = node.num_gpus, gpus = per_node * cluster.num_nodes;
    graph->num_gpus = gpus;
    graph->gpus_per_node = per_node;
    std::vector<std::pair<int, int>> ends;
    const auto vertex = [&](std::string name) {
        graph->vertex.push_back(std::move(name));
        return static_cast<int>(graph->vertex.size()) - 1;
    };
    const auto join = [&](const std::string& name, int a, int b, BytesPerSecond rate, Seconds latency, Level level) {
        for (const auto& [from, to] : {std::pair(a, b), std::pair(b, a)}) {
            graph->links.push_back({name + (from == a ? "-up" : "-down"), rate, level, latency});
            graph->ends.push_back({graph->vertex[from], graph->vertex[to]});
            ends.emplace_back(from, to);
        }
    };
    for (int gpu = 0; gpu < gpus; ++gpu) {
        vertex(fmt::format("gpu{}", gpu));
        graph->domain.push_back(gpu / per_node);
        graph->rail.push_back(nic_of_gpu.empty() ? gpu % per_node * nics / per_node : nic_of_gpu[static_cast<std::size_t>(gpu % per_node)]);
    }
    std::vector<int> rails;
    if (cluster.num_nodes > 1)
        for (int rail = 0; rail < nics; ++rail) rails.push_back(vertex(fmt::format("rail{}", rail)));
    if (rails.size() > 1) {        // leaves meet in a spine, as wide as the leaf
        const int spine = vertex("spine");
        for (int rail = 0; rail < nics; ++rail)
            join(fmt::format("rail{}/spine", rail), rails[rail], spine, cluster.scale_out.bandwidth * cluster.num_nodes, {}, Level::scale_out);
    }
    for (int n = 0; n < cluster.num_nodes; ++n) {
        for (int a = 0; a < per_node; ++a)
            for (int b = a + 1; b < per_node; ++b)
                if (node.nvlinks[a][b] > 0)
                    join(fmt::format("node{}/gpu{}-gpu{}", n, a, b), n * per_node + a, n * per_node + b, link * node.nvlinks[a][b], cluster.scale_up.latency, Level::scale_up);
        if (cluster.num_nodes == 1) continue;
        for (int rail = 0; rail < nics; ++rail) {
            const int nic = vertex(fmt::format("node{}/nic{}", n, rail));
            for (int a = 0; a < per_node; ++a)
                if (graph->rail[a] == rail)      // PCIe between a GPU and its NIC: never the narrower of the two
                    join(fmt::format("node{}/gpu{}-nic{}", n, a, rail), n * per_node + a, nic, cluster.scale_out.bandwidth, {}, Level::scale_out);
            join(fmt::format("node{}/nic{}", n, rail), nic, rails[rail], cluster.scale_out.bandwidth, cluster.scale_out.latency / 2, Level::scale_out);
        }
    }
    route_by_hops(*graph, ends, cluster.name);
    return graph;
}

}  // namespace

std::vector<int> nearest_nics(const std::vector<std::vector<int>>& distance) {
    if (distance.empty() || distance.front().empty()) return {};
    const int gpus = static_cast<int>(distance.size()), nics = static_cast<int>(distance.front().size()), fair = (gpus + nics - 1) / nics;
    std::vector<int> out, carried(static_cast<std::size_t>(nics), 0);
    bool in_order = gpus % nics == 0;
    for (int gpu = 0; gpu < gpus; ++gpu) {
        const int usual = gpu * nics / gpus;
        const auto rank = [&](int nic) {
            return std::tuple(distance[static_cast<std::size_t>(gpu)][static_cast<std::size_t>(nic)], carried[static_cast<std::size_t>(nic)] >= fair, std::abs(nic - usual), nic);
        };
        int best = 0;
        for (int nic = 1; nic < nics; ++nic)
            if (rank(nic) < rank(best)) best = nic;
        ++carried[static_cast<std::size_t>(best)];
        out.push_back(best);
        in_order = in_order && best == usual;
    }
    // More NICs than GPUs, evenly: those of a GPU are one port (RailFatTree).
    if (nics > gpus && nics % gpus == 0) return {};
    return in_order ? std::vector<int>{} : out;
}

ClusterSpec cluster_of_nodes(const NodeShape& node, const std::string& gpu, int num_nodes, std::vector<std::string> assumed) {
    int nics = node.num_nics;
    ClusterSpec cluster = make_cluster(gpu, num_nodes, node.num_gpus, std::nullopt, std::nullopt);
    auto fabric = std::get<Fabric>(cluster.topology);
    auto rails = std::get<RailFatTree>(fabric.scale_out);
    if (nics == 0) {
        nics = rails.num_nics;
        assumed.push_back(fmt::format("no NIC is listed: {} a node of {} Gb/s, as {} has them", nics, cluster.scale_out.bandwidth.value * 8 / 1e9, gpu));
    } else {
        rails.nic_of_gpu = nearest_nics(node.nic_distance);
        if (rails.nic_of_gpu.empty() && nics % node.num_gpus != 0)
            while (node.num_gpus % nics != 0) --nics;
        if (nics != node.num_nics)
            assumed.push_back(fmt::format("{} of {} NICs carry GPU traffic (a divisor or a multiple of {} GPUs); the others serve storage and management", nics, node.num_nics, node.num_gpus));
        if (node.nic_rate)
            cluster.scale_out.bandwidth = *node.nic_rate;
        else
            assumed.push_back(fmt::format("NIC rate not listed: {} Gb/s, as {} has it", cluster.scale_out.bandwidth.value * 8 / 1e9, gpu));
    }
    rails.num_nics = nics;
    fabric.scale_out = rails;
    const bool direct = node.links_to_switch == 0 && !node.nvlinks.empty() &&
                        std::any_of(node.nvlinks.begin(), node.nvlinks.end(), [](const auto& row) { return std::accumulate(row.begin(), row.end(), 0) > 0; });
    if (direct && is_cube_mesh(node.nvlinks)) {
        fabric.scale_up = CubeMesh{};
        cluster.topology = fabric;
        if (node.nvlink_rate) cluster.scale_up.bandwidth = *node.nvlink_rate * 6;
    } else if (direct) {
        // Per GPU as the shipped system has it, unless the file says a link's rate.
        int most = 0;
        for (const auto& row : node.nvlinks) most = std::max(most, std::accumulate(row.begin(), row.end(), 0));
        const BytesPerSecond link = node.nvlink_rate ? *node.nvlink_rate : cluster.scale_up.bandwidth / most;
        cluster.scale_up.bandwidth = link * most;
        cluster.topology = direct_graph(node, cluster, rails.nic_of_gpu.empty() ? std::min(nics, node.num_gpus) : nics, link, rails.nic_of_gpu);
    } else {
        fabric.scale_up = NvSwitch{node.gpus_per_domain > 0 ? node.gpus_per_domain : node.num_gpus};
        if (node.nvlink_rate) cluster.scale_up.bandwidth = *node.nvlink_rate;
        cluster.topology = fabric;
    }
    cluster.assumed.insert(cluster.assumed.end(), assumed.begin(), assumed.end());
    return cluster;
}

ClusterSpec import_cluster(const fs::path& file, const ImportWords& words) {
    const std::string text = read_text(file);
    const auto first = text.find_first_not_of(" \t\r\n\xef\xbb\xbf");
    const std::string name = file.string();
    if (first == std::string::npos) throw InputError(name, "", "an empty file", "a cluster: own JSON, SimGrid or NCCL XML, nvidia-smi topo -m");
    ClusterSpec cluster;
    if (text[first] == '{') {
        cluster = cluster_from_json(JsonReader::from_text(text, name));
        if (words.num_nodes) cluster = resized(cluster, *words.num_nodes);
        if (words.gpu) cluster.gpu = load_cluster(*words.gpu).gpu;
        return cluster;
    }
    if (text[first] == '<') {
        const XmlElement root = parse_xml(std::string_view(text).substr(first), name);
        if (root.name == "system") {
            cluster = import_nccl_topology(root, name, words);
        } else if (root.name == "platform") {
            cluster = import_simgrid_platform(root, name, words);
        } else if (root.name == "topology") {
            throw InputError(name, fmt::format("line {}", root.line), "<topology>",
                             "a network of GPUs; this is an hwloc file (lstopo), which does not say how GPUs are linked: use NCCL_TOPO_DUMP_FILE or nvidia-smi topo -m");
        } else {
            throw InputError(name, fmt::format("line {}", root.line), "<" + root.name + ">", "<system> (NCCL topology) or <platform> (SimGrid)");
        }
    } else if (text.find("GPU0") != std::string::npos) {
        cluster = import_topo_matrix(text, name, words);
    } else {
        throw InputError(name, "", "", "a cluster: own JSON, SimGrid or NCCL XML, or what nvidia-smi topo -m prints");
    }
    cluster.name = file.stem().string();
    return cluster;
}

}  // namespace moeplan
