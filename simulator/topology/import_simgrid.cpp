/// SimGrid platform XML (version 4): hosts become GPUs, one a node. A single fat-tree or flat cluster becomes a described
/// fabric; anything else a graph whose routes are found once (stated routes are edges; the fewest edges win).

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "core/errors.hpp"
#include "core/text.hpp"
#include "simulator/link_graph.hpp"
#include "simulator/topology/import.hpp"
#include "simulator/topology/simgrid_xml.hpp"
#include "simulator/topology/xml.hpp"

namespace moeplan {
namespace {

constexpr int kMostHosts = 1 << 17, kMostRoutedHosts = 512;

double with_unit(const std::string& text, const std::vector<std::pair<std::string, double>>& units, const char* expected) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc() && std::isfinite(value) && value >= 0) {
        const std::string unit(trim(std::string_view(end, static_cast<std::size_t>(text.data() + text.size() - end))));
        if (unit.empty()) return value;
        for (const auto& [name, factor] : units)
            if (unit == name) return value * factor;
    }
    throw std::invalid_argument(expected);
}

std::vector<std::pair<std::string, double>> scaled(const std::string& base, double one) {
    std::vector<std::pair<std::string, double>> out{{base, one}};
    const char* names[] = {"k", "M", "G", "T", "P", "E"};
    double ten = 1, two = 1;
    for (const char* name : names) {
        ten *= 1e3;
        two *= 1024;
        out.emplace_back(name + base, one * ten);
        out.emplace_back((std::strcmp(name, "k") == 0 ? std::string("Ki") : std::string(name) + "i") + base, one * two);
    }
    return out;
}

}  // namespace

double simgrid_bandwidth(const std::string& text) {
    static const auto units = [] {
        auto all = scaled("Bps", 1);
        const auto bits = scaled("bps", 1.0 / 8);
        all.insert(all.end(), bits.begin(), bits.end());
        return all;
    }();
    return with_unit(text, units, "a bandwidth such as 50GBps or 400Gbps");
}

double simgrid_latency(const std::string& text) {
    return with_unit(text, {{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}, {"ps", 1e-12}, {"m", 60}, {"h", 3600}}, "a latency such as 2us");
}

double simgrid_speed(const std::string& text) {
    static const auto units = [] {
        auto all = scaled("f", 1);
        const auto long_form = scaled("flops", 1);
        all.insert(all.end(), long_form.begin(), long_form.end());
        return all;
    }();
    return with_unit(text, units, "a speed such as 400Tf");
}

namespace {

struct Edge { int from, to; std::vector<std::uint32_t> links; };

struct Reader {
    std::string file;
    std::vector<std::string> vertex;
    std::map<std::string, int> index;
    std::vector<int> hosts;                                   // vertices
    std::vector<Link> links;
    std::vector<LinkGraph::End> ends;
    std::map<std::string, std::pair<std::uint32_t, std::uint32_t>> link;   // id → up and down (equal where shared)
    std::vector<Edge> edges;
    double speed = 0;
    std::vector<const XmlElement*> clusters;
    bool other_hosts = false;
    std::vector<std::string> assumed;

    [[noreturn]] void refuse(const XmlElement& at, const std::string& value, const std::string& expected) const {
        throw InputError(file, fmt::format("line {}", at.line), value, expected);
    }
    std::string need(const XmlElement& at, const std::string& key) const {
        if (!at.has(key)) refuse(at, "<" + at.name + ">", "an attribute " + key);
        return at.get(key);
    }
    template <class Parse>
    double quantity(const XmlElement& at, const std::string& key, Parse parse, const std::string& otherwise = "") const {
        const auto text = at.has(key) || otherwise.empty() ? need(at, key) : otherwise;
        try {
            return parse(text);
        } catch (const std::invalid_argument& error) {
            refuse(at, fmt::format("{}=\"{}\"", key, text), error.what());
        }
    }
    BytesPerSecond bandwidth(const XmlElement& at, const std::string& key) const {
        const double value = quantity(at, key, simgrid_bandwidth);
        if (!is_a_rate({value})) refuse(at, key + "=\"" + at.get(key) + "\"", kRatesOfLinks);
        return {value};
    }
    Seconds latency(const XmlElement& at, const std::string& key) const {
        const Seconds value{quantity(at, key, simgrid_latency, "0")};
        if (!is_a_latency(value)) refuse(at, key + "=\"" + at.get(key) + "\"", kLatenciesOfLinks);
        return value;
    }
    int add_vertex(const XmlElement& at, const std::string& name) {
        const auto [place, added] = index.emplace(name, static_cast<int>(vertex.size()));
        if (!added) refuse(at, "\"" + name + "\" again", "each name once");
        vertex.push_back(name);
        return place->second;
    }
    int find_vertex(const XmlElement& at, const std::string& name) const {
        const auto place = index.find(name);
        if (place == index.end()) refuse(at, "\"" + name + "\"", "a host or router of this file");
        return place->second;
    }
    int add_host(const XmlElement& at, const std::string& name, double flops) {
        if (static_cast<int>(hosts.size()) >= kMostHosts) refuse(at, fmt::format("more than {} hosts", kMostHosts), "fewer");
        const int v = add_vertex(at, name);
        hosts.push_back(v);
        if (speed == 0) speed = flops;
        if (speed != flops) refuse(at, fmt::format("a host of {:.4g} flop/s beside ones of {:.4g}", flops, speed), "hosts of one speed (one kind of GPU)");
        return v;
    }
    std::uint32_t add_link(const std::string& name, BytesPerSecond rate, Seconds lat) {
        links.push_back({name, rate, Level::scale_out, lat});
        ends.push_back({"", ""});
        return static_cast<std::uint32_t>(links.size() - 1);
    }
    /// A cable between two vertices, one link each way.
    void cable(const std::string& name, int a, int b, BytesPerSecond rate, Seconds lat) {
        edges.push_back({a, b, {add_link(name + "_UP", rate, lat)}});
        edges.push_back({b, a, {add_link(name + "_DOWN", rate, lat)}});
    }
    void read(const XmlElement& at);
    void read_cluster(const XmlElement& at);
    void read_route(const XmlElement& at, bool zones);
};

std::vector<int> radical_of(const Reader& reader, const XmlElement& at) {
    std::vector<int> out;
    for (const auto& part : split(reader.need(at, "radical"), ',')) {
        const auto dash = part.find('-');
        int low = 0, high = 0;
        const std::string first = part.substr(0, dash), last = dash == std::string::npos ? first : part.substr(dash + 1);
        const auto read = [](const std::string& text, int& value) {
            const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
            return error == std::errc() && end == text.data() + text.size() && value >= 0;
        };
        if (!read(first, low) || !read(last, high) || high < low || high - low >= kMostHosts) reader.refuse(at, "radical=\"" + at.get("radical") + "\"", "numbers and ranges such as 0-63,70");
        for (int i = low; i <= high; ++i) out.push_back(i);
        if (out.size() > static_cast<std::size_t>(kMostHosts)) reader.refuse(at, "radical=\"" + at.get("radical") + "\"", fmt::format("at most {} hosts", kMostHosts));
    }
    return out;
}

/// "2;8,8;1,8;1,1" → {{2}, {8, 8}, {1, 8}, {1, 1}}
std::vector<std::vector<int>> parameters_of(const Reader& reader, const XmlElement& at, std::size_t parts) {
    std::vector<std::vector<int>> out;
    const auto text = reader.need(at, "topo_parameters");
    for (const auto& group : split(text, ';')) {
        out.emplace_back();
        for (const auto& word : split(group, ',')) {
            int value = 0;
            const auto trimmed = trim(word);
            const auto [end, error] = std::from_chars(trimmed.data(), trimmed.data() + trimmed.size(), value);
            if (error != std::errc() || end != trimmed.data() + trimmed.size() || value < 1 || value > kMostHosts)
                reader.refuse(at, "topo_parameters=\"" + text + "\"", "whole numbers above zero, \",\" and \";\" between them");
            out.back().push_back(value);
        }
    }
    if (out.size() != parts) reader.refuse(at, "topo_parameters=\"" + text + "\"", fmt::format("{} parts separated by \";\"", parts));
    return out;
}

FatTree fat_tree_of(const Reader& reader, const XmlElement& at) {
    const auto parts = parameters_of(reader, at, 4);
    const auto levels = static_cast<std::size_t>(parts[0][0]);
    for (int i = 1; i < 4; ++i)
        if (parts[i].size() != levels || levels > 8) reader.refuse(at, "topo_parameters=\"" + at.get("topo_parameters") + "\"", "as many numbers a part as there are levels (at most 8)");
    return {parts[1], parts[2], parts[3]};
}

void Reader::read_cluster(const XmlElement& at) {
    const auto names = radical_of(*this, at);
    const double flops = quantity(at, "speed", simgrid_speed);
    const auto rate = bandwidth(at, "bw");
    const Seconds lat = latency(at, "lat");
    const auto kind = at.get("topology", "FLAT");
    const std::string id = at.get("id", "cluster");
    clusters.push_back(&at);
    std::vector<int> members;
    for (const int i : names) members.push_back(add_host(at, fmt::format("{}{}{}", at.get("prefix"), i, at.get("suffix")), flops));
    if (kind == "FAT_TREE") {
        double ports = 1;
        for (const int down : fat_tree_of(*this, at).down) ports *= down;
        if (ports != static_cast<double>(members.size())) refuse(at, fmt::format("{} hosts", members.size()), fmt::format("{}, the product of the downlinks", ports));
        return;      // a described fabric, if nothing else is in the file
    }
    if (kind == "FLAT") {
        const int collect = add_vertex(at, id + "/collect"), spread = add_vertex(at, id + "/spread");
        const int router = add_vertex(at, at.get("router_id", at.get("prefix") + id + "_router" + at.get("suffix")));
        for (const int host : members) {
            edges.push_back({host, collect, {add_link(vertex[host] + "_UP", rate, lat)}});
            edges.push_back({spread, host, {add_link(vertex[host] + "_DOWN", rate, lat)}});
        }
        std::vector<std::uint32_t> backbone;
        if (at.has("bb_bw")) backbone.push_back(add_link(id + "_backbone", bandwidth(at, "bb_bw"), latency(at, "bb_lat")));
        edges.push_back({collect, spread, backbone});
        edges.push_back({spread, router, {}});
        edges.push_back({router, collect, {}});
        return;
    }
    if (kind == "TORUS") {
        const auto dimensions = parameters_of(*this, at, 1)[0];
        double product = 1;
        for (const int size : dimensions) product *= size;
        if (product != static_cast<double>(members.size())) refuse(at, fmt::format("{} hosts", members.size()), fmt::format("{}, the product of the dimensions", product));
        int stride = 1;
        for (const int size : dimensions) {
            for (int i = 0; i < static_cast<int>(members.size()); ++i) {
                const int place = i / stride % size, next = i + (place + 1 == size ? -(size - 1) * stride : stride);
                if (size > 1 && !(size == 2 && place == 1)) cable(fmt::format("{}_link_from_{}_to_{}", id, i, next), members[i], members[next], rate, lat);
            }
            stride *= size;
        }
        return;
    }
    if (kind == "DRAGONFLY") {
        const auto parts = parameters_of(*this, at, 4);
        for (int i = 0; i < 3; ++i)
            if (parts[i].size() != 2) refuse(at, "topo_parameters=\"" + at.get("topo_parameters") + "\"", "\"groups,links;chassis,links;routers,links;nodes\"");
        const int groups = parts[0][0], chassis = parts[1][0], routers = parts[2][0], nodes = parts[3][0];
        const double all = static_cast<double>(groups) * chassis * routers;
        if (all * nodes != static_cast<double>(members.size())) refuse(at, fmt::format("{} hosts", members.size()), fmt::format("{}, the product of its parts", all * nodes));
        if (groups > 1 && groups > chassis * routers) refuse(at, fmt::format("{} groups", groups), "at most as many as a group has routers");
        std::vector<int> router;
        for (int i = 0; i < static_cast<int>(all); ++i) {
            router.push_back(add_vertex(at, fmt::format("{}/router{}", id, i)));
            for (int n = 0; n < nodes; ++n) cable(fmt::format("{}_local_{}_{}", id, i, n), members[i * nodes + n], router[i], rate, lat);
        }
        const auto at_place = [&](int g, int c, int r) { return router[(g * chassis + c) * routers + r]; };
        for (int g = 0; g < groups; ++g) {
            for (int c = 0; c < chassis; ++c)
                for (int r = 0; r < routers; ++r) {
                    for (int to = r + 1; to < routers; ++to) cable(fmt::format("{}_green_{}_{}_{}_{}", id, g, c, r, to), at_place(g, c, r), at_place(g, c, to), rate * parts[2][1], lat);
                    for (int to = c + 1; to < chassis; ++to) cable(fmt::format("{}_black_{}_{}_{}_{}", id, g, r, c, to), at_place(g, c, r), at_place(g, to, r), rate * parts[1][1], lat);
                }
            for (int to = g + 1; to < groups; ++to)
                cable(fmt::format("{}_blue_{}_{}", id, g, to), router[g * chassis * routers + to], router[to * chassis * routers + g], rate * parts[0][1], lat);
        }
        return;
    }
    refuse(at, "topology=\"" + kind + "\"", "FLAT, FAT_TREE, TORUS or DRAGONFLY");
}

void Reader::read_route(const XmlElement& at, bool zones) {
    const int from = find_vertex(at, need(at, zones ? "gw_src" : "src")), to = find_vertex(at, need(at, zones ? "gw_dst" : "dst"));
    Edge there{from, to, {}}, back{to, from, {}};
    for (const auto& part : at.children) {
        if (part.name != "link_ctn" && part.name != "link:ctn") continue;
        const auto found = link.find(need(part, "id"));
        if (found == link.end()) refuse(part, "\"" + part.get("id") + "\"", "a link of this file");
        const bool down = part.get("direction") == "DOWN";
        there.links.push_back(down ? found->second.second : found->second.first);
        back.links.push_back(down ? found->second.first : found->second.second);
    }
    std::reverse(back.links.begin(), back.links.end());
    edges.push_back(std::move(there));
    const auto symmetrical = at.get("symmetrical", "YES");
    if (symmetrical == "YES" || symmetrical == "yes") edges.push_back(std::move(back));
}

void Reader::read(const XmlElement& at) {
    const std::string& name = at.name;
    if (name == "zone" || name == "AS" || name == "platform") {
        // Routes may name what stands below them: hosts and links first.
        for (const auto& child : at.children)
            if (child.name.find("oute") == std::string::npos || child.name == "router") read(child);
        for (const auto& child : at.children)
            if (child.name.find("oute") != std::string::npos && child.name != "router") read(child);
    } else if (name == "host") {
        // "100Gf,50Gf": speeds by power state; the first is in use.
        const auto text = need(at, "speed");
        XmlElement first = at;
        first.attributes["speed"] = split(text, ',').front();
        add_host(at, need(at, "id"), quantity(first, "speed", simgrid_speed));
        other_hosts = true;
    } else if (name == "router") {
        add_vertex(at, need(at, "id"));
    } else if (name == "link") {
        const auto id = need(at, "id");
        const auto policy = at.get("sharing_policy", "SHARED");
        const auto rate = bandwidth(at, "bandwidth");
        const Seconds lat = latency(at, "latency");
        if (link.count(id)) refuse(at, "\"" + id + "\" again", "each name once");
        if (policy == "SPLITDUPLEX" || policy == "FULLDUPLEX") {
            const auto up = add_link(id + "_UP", rate, lat);
            link[id] = {up, add_link(id + "_DOWN", rate, lat)};
        } else {
            if (policy == "FATPIPE") assumed.push_back("link " + id + " is a FATPIPE (it limits each flow alone); taken as shared");
            const auto both = add_link(id, rate, lat);
            link[id] = {both, both};
        }
    } else if (name == "cluster") {
        read_cluster(at);
    } else if (name == "route") {
        read_route(at, false);
    } else if (name == "zoneRoute" || name == "ASroute") {
        read_route(at, true);
    } else if (name == "cabinet" || name == "peer" || name == "include" || name == "bypassRoute" || name == "bypassZoneRoute" || name == "bypassASroute") {
        refuse(at, "<" + name + ">", "zones, hosts, links, routes and clusters (write this part out in those)");
    }   // properties, traces, storages and mounts say nothing about links
}

/// Fewest edges from every host to every other; among equals the edge that stands first. [hosts, hosts] link lists.
std::map<std::pair<int, int>, std::vector<std::uint32_t>> routes_of(const Reader& reader) {
    std::vector<std::vector<std::uint32_t>> leaving(reader.vertex.size());
    for (std::size_t e = 0; e < reader.edges.size(); ++e) leaving[reader.edges[e].from].push_back(static_cast<std::uint32_t>(e));
    std::map<std::pair<int, int>, std::vector<std::uint32_t>> out;
    for (std::size_t a = 0; a < reader.hosts.size(); ++a) {
        std::vector<int> arrival(reader.vertex.size(), -1);
        std::vector<bool> seen(reader.vertex.size());
        std::vector<int> queue{reader.hosts[a]};
        seen[reader.hosts[a]] = true;
        for (std::size_t i = 0; i < queue.size(); ++i)
            for (const auto e : leaving[queue[i]]) {
                const int to = reader.edges[e].to;
                if (seen[to]) continue;
                seen[to] = true;
                arrival[to] = static_cast<int>(e);
                queue.push_back(to);
            }
        for (std::size_t b = 0; b < reader.hosts.size(); ++b) {
            if (a == b) continue;
            if (!seen[reader.hosts[b]]) throw InputError(reader.file, "", "no route from " + reader.vertex[reader.hosts[a]] + " to " + reader.vertex[reader.hosts[b]], "routes that join all hosts");
            std::vector<std::uint32_t> links;
            for (int at = reader.hosts[b]; at != reader.hosts[a]; at = reader.edges[arrival[at]].from) {
                const auto& part = reader.edges[arrival[at]].links;
                links.insert(links.end(), part.rbegin(), part.rend());
            }
            std::reverse(links.begin(), links.end());
            out[{static_cast<int>(a), static_cast<int>(b)}] = std::move(links);
        }
    }
    return out;
}

}  // namespace

ClusterSpec import_simgrid_platform(const XmlElement& platform, const std::string& file, const ImportWords& words) {
    Reader reader;
    reader.file = file;
    const auto version = platform.get("version", "4");
    if (version.empty() || version[0] != '4') reader.refuse(platform, "version=\"" + version + "\"", "4 or 4.1");
    reader.read(platform);
    if (reader.hosts.empty()) reader.refuse(platform, "no host", "<host> or <cluster> elements");

    const std::string gpu = words.gpu.value_or("h100-sxm");
    ClusterSpec cluster = load_cluster(gpu);
    cluster.assumed = reader.assumed;
    if (!words.gpu) cluster.assumed.push_back("GPU h100-sxm for memory and SMs, the file does not name it; --gpu says it otherwise");
    if (reader.speed > 0) {
        for (auto& [precision, peak] : cluster.gpu.peak) peak = FlopsPerSecond{reader.speed};
        cluster.assumed.push_back("the hosts' speed stands for every precision");
    }
    cluster.source = "SimGrid platform " + file;
    cluster.num_nodes = static_cast<int>(reader.hosts.size());
    cluster.gpus_per_node = 1;
    cluster.in_switch_reduction = false;
    cluster.collective_launch = {};
    cluster.collective_efficiency.clear();

    const bool alone = reader.clusters.size() == 1 && !reader.other_hosts;
    const XmlElement* only = alone ? reader.clusters.front() : nullptr;
    const auto kind = only ? only->get("topology", "FLAT") : "";
    if (only && (kind == "FAT_TREE" || (kind == "FLAT" && !only->has("bb_bw")))) {
        const FatTree tree = kind == "FAT_TREE" ? fat_tree_of(reader, *only) : FatTree{{cluster.num_nodes}, {1}, {}};
        // Every route goes up and down one cable of `lat`; higher levels add two more each.
        const Seconds latency = reader.latency(*only, "lat") * (2.0 * static_cast<double>(tree.down.size()));
        cluster.scale_out = {latency, reader.bandwidth(*only, "bw")};
        cluster.scale_up = cluster.scale_out;
        cluster.topology = Fabric{NvSwitch{1}, tree};
        if (words.num_nodes) {
            if (*words.num_nodes > cluster.num_nodes) throw InputError("--nodes", "", std::to_string(*words.num_nodes), fmt::format("at most the {} hosts of {}", cluster.num_nodes, file));
            cluster = resized(cluster, *words.num_nodes);
        }
        return cluster;
    }
    for (const auto* at : reader.clusters)
        if (at->get("topology") == "FAT_TREE") reader.refuse(*at, "a fat-tree cluster beside other hosts", "a fat tree alone in its file");
    if (cluster.num_nodes > kMostRoutedHosts) throw InputError(file, "", fmt::format("{} hosts", cluster.num_nodes), fmt::format("at most {} where routes are stated one by one", kMostRoutedHosts));
    auto graph = std::make_shared<LinkGraph>();
    graph->num_gpus = cluster.num_nodes;
    graph->gpus_per_node = 1;
    graph->links = reader.links;
    graph->stated_routes = routes_of(reader);
    for (int host = 0; host < graph->num_gpus; ++host) {
        graph->vertex.push_back(fmt::format("gpu{}", host));
        graph->domain.push_back(host);
        graph->rail.push_back(0);
    }
    // Links of a platform have no two ends of their own, only places in routes: for drawings they join its hosts to one hub.
    graph->vertex.push_back("network");
    std::vector<std::pair<int, int>> ends(graph->links.size(), {graph->num_gpus, graph->num_gpus});
    for (const auto& [pair, links] : graph->stated_routes) {
        if (!links.empty()) {
            ends[links.front()].first = pair.first;
            ends[links.back()].second = pair.second;
        }
    }
    for (const auto& [from, to] : ends) graph->ends.push_back({graph->vertex[from], graph->vertex[to]});
    BytesPerSecond widest;
    Seconds longest;
    for (const Link& link : graph->links) widest = std::max(widest, link.bandwidth);
    route_by_hops(*graph, ends, file);
    for (const auto& [pair, links] : graph->stated_routes) {
        Seconds sum;
        for (const auto at : links) sum += graph->links[at].latency;
        longest = std::max(longest, sum);
    }
    if (graph->links.empty()) throw InputError(file, "", "no link", "hosts joined by links");
    cluster.scale_out = {longest, widest};
    cluster.scale_up = cluster.scale_out;
    cluster.topology = std::shared_ptr<const LinkGraph>(graph);
    return words.num_nodes ? resized(cluster, *words.num_nodes) : cluster;
}

}  // namespace moeplan
