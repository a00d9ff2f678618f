#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/errors.hpp"
#include "core/quantity_text.hpp"
#include "simulator/cluster_spec.hpp"
#include "simulator/collective.hpp"
#include "simulator/link_graph.hpp"

namespace moeplan {
namespace {

constexpr int kMostNodes = 1 << 17, kMostGpusPerNode = 1024, kMostGpus = 1 << 20;

GpuSpec gpu_from_json(const JsonReader& in) {
    in.refuse_unknown({"name", "peak", "memory", "memory_bandwidth", "num_sms", "l2"});
    GpuSpec gpu;
    gpu.name = in.at("name").text();
    for (const auto& [key, value] : in.at("peak").members()) {
        const auto precision = from_name<Precision>(key);
        if (!precision)
            in.at("peak").fail("keys " + choices<Precision>() + ", not \"" + key + "\"");
        gpu.peak[*precision] = value.flops_per_second();
        if (!(gpu.peak[*precision].value > 0)) value.fail("a rate above zero");
    }
    if (gpu.peak.empty()) in.at("peak").fail("at least one precision");
    gpu.memory = in.at("memory").bytes();
    gpu.memory_bandwidth = in.at("memory_bandwidth").bytes_per_second();
    if (!(gpu.memory.value > 0)) in.at("memory").fail("more than zero");
    if (!is_a_rate(gpu.memory_bandwidth)) in.at("memory_bandwidth").fail(kRatesOfLinks);
    gpu.num_sms = in.count_or("num_sms", 0, 0, 1 << 20);
    if (const auto l2 = in.find("l2")) gpu.l2 = l2->bytes();
    return gpu;
}

Json gpu_to_json(const GpuSpec& gpu) {
    Json out;
    out["name"] = gpu.name;
    out["memory"] = to_exact_text(gpu.memory);
    out["memory_bandwidth"] = to_exact_text(gpu.memory_bandwidth);
    out["num_sms"] = gpu.num_sms;
    out["l2"] = to_exact_text(gpu.l2);
    for (const auto& [precision, rate] : gpu.peak)
        out["peak"][std::string(name_of(precision))] = to_exact_text(rate);
    return out;
}

LinkSpec link_from_json(const JsonReader& in) {
    in.refuse_unknown({"latency", "bandwidth", "efficiency"});
    LinkSpec link{in.at("latency").seconds(), in.at("bandwidth").bytes_per_second()};
    if (!is_a_rate(link.bandwidth)) in.at("bandwidth").fail(kRatesOfLinks);
    if (!is_a_latency(link.latency)) in.at("latency").fail(kLatenciesOfLinks);
    if (const auto share = in.find("efficiency")) {
        link.efficiency = share->number(0, 1);
        if (!(link.efficiency > 0)) share->fail("a share above 0, at most 1");
    }
    return link;
}

Json link_to_json(const LinkSpec& link) {
    Json out;
    out["latency"] = to_exact_text(link.latency);
    out["bandwidth"] = to_exact_text(link.bandwidth);
    if (link.efficiency != 1) out["efficiency"] = link.efficiency;
    return out;
}

std::vector<int> counts(const JsonReader& in) {
    std::vector<int> out;
    for (const auto& item : in.items()) out.push_back(item.count(1, kMostGpus));
    if (out.empty() || out.size() > 8) in.fail("1 … 8 levels");
    return out;
}

/// The single key of {"nv_switch": {…}}.
std::pair<std::string, JsonReader> single_kind(const JsonReader& in, const std::string& kinds) {
    const auto members = in.members();
    if (members.size() != 1) in.fail("one of " + kinds);
    return members.front();
}

Fabric fabric_from_json(const JsonReader& in, int gpus_per_node) {
    Fabric fabric;
    const auto [up, up_in] = single_kind(in.at("scale_up"), "nv_switch, cube_mesh");
    if (up == "nv_switch") {
        up_in.refuse_unknown({"gpus_per_domain"});
        fabric.scale_up = NvSwitch{up_in.count_or("gpus_per_domain", gpus_per_node, 1, kMostGpus)};
    } else if (up == "cube_mesh") {
        up_in.refuse_unknown({});
        fabric.scale_up = CubeMesh{};
    } else {
        in.at("scale_up").fail("nv_switch or cube_mesh, not \"" + up + "\"");
    }
    const auto [out, out_in] = single_kind(in.at("scale_out"), "rail_fat_tree, fat_tree");
    if (out == "rail_fat_tree") {
        out_in.refuse_unknown(
            {"num_nics", "oversubscription", "pxn", "nodes_per_leaf", "nic_of_gpu"});
        RailFatTree rails;
        rails.num_nics = out_in.count_or("num_nics", gpus_per_node, 1, kMostGpusPerNode);
        rails.oversubscription = out_in.number_or("oversubscription", 1);
        if (!(rails.oversubscription >= 1 && rails.oversubscription <= 1e6))
            out_in.at("oversubscription").fail("1 (non-blocking) or more");
        rails.pxn = out_in.boolean_or("pxn", true);
        rails.nodes_per_leaf = out_in.count_or("nodes_per_leaf", 0, 0, kMostNodes);
        if (const auto nics = out_in.find("nic_of_gpu")) {
            for (const auto& nic : nics->items())
                rails.nic_of_gpu.push_back(nic.count(0, rails.num_nics - 1));
            if (static_cast<int>(rails.nic_of_gpu.size()) != gpus_per_node)
                nics->fail(fmt::format("{} NICs, one a GPU of a node", gpus_per_node));
        }
        fabric.scale_out = rails;
    } else if (out == "fat_tree") {
        out_in.refuse_unknown({"down", "up", "links"});
        FatTree tree{counts(out_in.at("down")), counts(out_in.at("up")), {}};
        if (const auto links = out_in.find("links")) tree.links = counts(*links);
        if (tree.up.size() != tree.down.size()) out_in.at("up").fail("as many levels as \"down\"");
        if (!tree.links.empty() && tree.links.size() != tree.down.size())
            out_in.at("links").fail("as many levels as \"down\"");
        fabric.scale_out = tree;
    } else {
        in.at("scale_out").fail("rail_fat_tree or fat_tree, not \"" + out + "\"");
    }
    return fabric;
}

std::shared_ptr<const LinkGraph> graph_from_json(const JsonReader& in, int gpus,
                                                 int gpus_per_node) {
    in.refuse_unknown({"vertices", "domain", "rail", "columns", "links", "routes"});
    auto graph = std::make_shared<LinkGraph>();
    graph->num_gpus = gpus;
    graph->gpus_per_node = gpus_per_node;
    std::map<std::string, int> index;
    for (const auto& vertex : in.at("vertices").items()) {
        if (!index.emplace(vertex.text(), static_cast<int>(index.size())).second)
            vertex.fail("a name that no other vertex has");
        graph->vertex.push_back(vertex.text());
    }
    if (static_cast<int>(graph->vertex.size()) < gpus)
        in.at("vertices").fail("at least num_nodes · gpus_per_node names, the GPUs first");
    const auto vertex_of = [&](const JsonReader& name) {
        const auto at = index.find(name.text());
        if (at == index.end()) name.fail("one of the vertices");
        return at->second;
    };
    const auto per_gpu = [&](const char* key, int otherwise) {
        std::vector<int> out(static_cast<std::size_t>(gpus), otherwise);
        if (const auto list = in.find(key)) {
            if (list->size() != out.size() || !list->is_array()) list->fail("one number a GPU");
            for (std::size_t i = 0; i < out.size(); ++i) out[i] = list->at(i).count(-1, kMostGpus);
        } else if (otherwise == 0) {
            for (std::size_t i = 0; i < out.size(); ++i)
                out[i] = static_cast<int>(i) / gpus_per_node;
        }
        return out;
    };
    graph->domain = per_gpu("domain", 0);
    graph->rail = per_gpu("rail", -1);
    std::vector<std::pair<int, int>> ends;
    for (const auto& row : in.at("links").items()) {
        if (!row.is_array() || row.size() != 6)
            row.fail("[name, from, to, bandwidth, latency, level]");
        Link link{row.at(0).text(), row.at(3).bytes_per_second(), Level::scale_up,
                  row.at(4).seconds()};
        if (!is_a_rate(link.bandwidth)) row.at(3).fail(kRatesOfLinks);
        if (!is_a_latency(link.latency)) row.at(4).fail(kLatenciesOfLinks);
        const auto level = row.at(5).text();
        if (level != "scale_up" && level != "scale_out") row.at(5).fail("scale_up or scale_out");
        link.level = level == "scale_up" ? Level::scale_up : Level::scale_out;
        ends.emplace_back(vertex_of(row.at(1)), vertex_of(row.at(2)));
        graph->ends.push_back({row.at(1).text(), row.at(2).text()});
        graph->links.push_back(link);
    }
    if (const auto routes = in.find("routes"))
        for (const auto& row : routes->items()) {
            if (!row.is_array() || row.size() < 3) row.fail("[source, destination, link index, …]");
            std::vector<std::uint32_t> links;
            for (std::size_t i = 2; i < row.size(); ++i)
                links.push_back(static_cast<std::uint32_t>(
                    row.at(i).count(0, static_cast<int>(graph->links.size()) - 1)));
            graph->stated_routes[{row.at(0).count(0, gpus - 1), row.at(1).count(0, gpus - 1)}] =
                links;
        }
    route_by_hops(*graph, ends, in.file());
    return graph;
}

Json graph_to_json(const LinkGraph& graph) {
    Json out;
    out["vertices"] = graph.vertex;
    out["domain"] = graph.domain;
    out["rail"] = graph.rail;
    out["columns"] = {"name", "from", "to", "bandwidth", "latency", "level"};
    out["links"] = Json::array();
    for (std::size_t i = 0; i < graph.links.size(); ++i) {
        const Link& link = graph.links[i];
        out["links"].push_back({link.name, graph.ends[i].from, graph.ends[i].to,
                                to_exact_text(link.bandwidth), to_exact_text(link.latency),
                                link.level == Level::scale_up ? "scale_up" : "scale_out"});
    }
    for (const auto& [pair, links] : graph.stated_routes) {
        Json row{pair.first, pair.second};
        for (const auto link : links) row.push_back(link);
        out["routes"].push_back(row);
    }
    return out;
}

Json fabric_to_json(const Fabric& fabric) {
    Json out;
    if (const auto* nv = std::get_if<NvSwitch>(&fabric.scale_up))
        out["scale_up"]["nv_switch"]["gpus_per_domain"] = nv->gpus_per_domain;
    else
        out["scale_up"]["cube_mesh"] = Json::object();
    if (const auto* rails = std::get_if<RailFatTree>(&fabric.scale_out)) {
        Json& to = out["scale_out"]["rail_fat_tree"];
        to["num_nics"] = rails->num_nics;
        to["oversubscription"] = rails->oversubscription;
        to["pxn"] = rails->pxn;
        to["nodes_per_leaf"] = rails->nodes_per_leaf;
        if (!rails->nic_of_gpu.empty()) to["nic_of_gpu"] = rails->nic_of_gpu;
    } else {
        const auto& tree = std::get<FatTree>(fabric.scale_out);
        Json& to = out["scale_out"]["fat_tree"];
        to["down"] = tree.down;
        to["up"] = tree.up;
        if (!tree.links.empty()) to["links"] = tree.links;
    }
    return out;
}

void check_shape(const ClusterSpec& cluster, const JsonReader& in) {
    const auto* fabric = std::get_if<Fabric>(&cluster.topology);
    if (!fabric) return;
    if (const auto* nv = std::get_if<NvSwitch>(&fabric->scale_up)) {
        if (nv->gpus_per_domain % cluster.gpus_per_node != 0)
            in.at("topology")
                .at("scale_up")
                .fail("gpus_per_domain a multiple of gpus_per_node (" +
                      std::to_string(cluster.gpus_per_node) + ")");
    } else if (cluster.gpus_per_node != 8) {
        in.at("gpus_per_node").fail("8: the cube mesh is the one of DGX-1");
    }
    if (const auto* rails = std::get_if<RailFatTree>(&fabric->scale_out)) {
        const int nics = rails->num_nics, gpus = cluster.gpus_per_node;
        if (rails->nic_of_gpu.empty() && nics % gpus != 0 && gpus % nics != 0)
            in.at("topology")
                .at("scale_out")
                .fail("num_nics a divisor or a multiple of gpus_per_node, or nic_of_gpu");
    } else {
        double ports = 1;
        for (const int down : std::get<FatTree>(fabric->scale_out).down) ports *= down;
        if (ports < num_gpus(cluster))
            in.at("topology")
                .at("scale_out")
                .fail(fmt::format("product(down) at least the {} GPUs, it is {}", num_gpus(cluster),
                                  ports));
    }
}

}  // namespace

ClusterSpec cluster_from_json(const JsonReader& in) {
    in.refuse_unknown({"name", "num_nodes", "gpus_per_node", "topology", "scale_up", "scale_out",
                       "gpu", "source", "collective_launch", "in_switch_reduction",
                       "collective_efficiency", "assumed"});
    ClusterSpec cluster;
    cluster.name = in.at("name").text();
    cluster.num_nodes = in.count_or("num_nodes", 1, 1, kMostNodes);
    cluster.gpus_per_node = in.count_or("gpus_per_node", 8, 1, kMostGpusPerNode);
    if (cluster.num_nodes > kMostGpus / cluster.gpus_per_node)
        in.at("num_nodes").fail("at most " + std::to_string(kMostGpus) + " GPUs in all");
    cluster.gpu = gpu_from_json(in.at("gpu"));
    cluster.scale_up = link_from_json(in.at("scale_up"));
    cluster.scale_out = link_from_json(in.at("scale_out"));
    cluster.source = in.text_or("source", "");
    if (const auto launch = in.find("collective_launch"))
        cluster.collective_launch = launch->seconds();
    cluster.in_switch_reduction = in.boolean_or("in_switch_reduction", false);
    if (const auto shares = in.find("collective_efficiency"))
        for (const auto& [key, value] : shares->members()) {
            cluster.collective_efficiency[key] = value.number(0, 1);
            if (!(cluster.collective_efficiency[key] > 0)) value.fail("a share above 0, at most 1");
            if (!from_name<Collective>(key) && !from_name<Algorithm>(key))
                shares->fail("keys that are collectives (" + choices<Collective>() +
                             ") or algorithms (" + choices<Algorithm>() + "), not \"" + key + "\"");
        }
    if (const auto assumed = in.find("assumed"))
        for (const auto& line : assumed->items()) cluster.assumed.push_back(line.text());
    const auto topology = in.at("topology");
    if (topology.has("graph")) {
        topology.refuse_unknown({"graph"});
        cluster.topology =
            graph_from_json(topology.at("graph"), num_gpus(cluster), cluster.gpus_per_node);
    } else {
        topology.refuse_unknown({"scale_up", "scale_out", "graph"});
        cluster.topology = fabric_from_json(topology, cluster.gpus_per_node);
    }
    check_shape(cluster, in);
    return cluster;
}

Json to_json(const ClusterSpec& cluster) {
    Json out = json_header("cluster");
    out["name"] = cluster.name;
    if (!cluster.source.empty()) out["source"] = cluster.source;
    out["num_nodes"] = cluster.num_nodes;
    out["gpus_per_node"] = cluster.gpus_per_node;
    if (const auto* fabric = std::get_if<Fabric>(&cluster.topology))
        out["topology"] = fabric_to_json(*fabric);
    else
        out["topology"]["graph"] =
            graph_to_json(*std::get<std::shared_ptr<const LinkGraph>>(cluster.topology));
    out["scale_up"] = link_to_json(cluster.scale_up);
    out["scale_out"] = link_to_json(cluster.scale_out);
    out["collective_launch"] = to_exact_text(cluster.collective_launch);
    out["in_switch_reduction"] = cluster.in_switch_reduction;
    if (!cluster.collective_efficiency.empty())
        out["collective_efficiency"] = cluster.collective_efficiency;
    out["gpu"] = gpu_to_json(cluster.gpu);
    if (!cluster.assumed.empty()) out["assumed"] = cluster.assumed;
    return out;
}

}  // namespace moeplan
