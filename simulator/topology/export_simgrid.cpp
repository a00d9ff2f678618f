#include <fmt/format.h>

#include <iterator>

#include "core/errors.hpp"
#include "core/text.hpp"
#include "simulator/link_graph.hpp"
#include "simulator/topology/import.hpp"

namespace moeplan {
namespace {

constexpr int kMostGpus = 512;

std::string escaped(const std::string& text) {
    std::string out;
    for (const char c : text) out += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '"' ? "&quot;" : std::string(1, c);
    return out;
}

}  // namespace

std::string to_simgrid_xml(const ClusterSpec& cluster) {
    const LinkGraph graph = build_link_graph(cluster);
    if (graph.num_gpus > kMostGpus)
        throw InputError(cluster.name, "", fmt::format("{} GPUs", graph.num_gpus), fmt::format("at most {}: SimGrid's file states every route", kMostGpus));
    std::string out = "<?xml version=\"1.0\"?>\n<!DOCTYPE platform SYSTEM \"https://simgrid.org/simgrid.dtd\">\n<platform version=\"4.1\">\n";
    out += fmt::format("  <!-- {}: {} GPUs. Links are one way each and carry the usable rate; run with network/model:CM02, "
                       "network/crosstraffic:0, network/TCP-gamma:1e30 -->\n", escaped(cluster.name), graph.num_gpus);
    out += "  <zone id=\"cluster\" routing=\"Full\">\n";
    double speed = 0;
    for (const auto& [precision, rate] : cluster.gpu.peak)
        if (precision == Precision::bf16 || speed == 0) speed = rate.value;
    for (int gpu = 0; gpu < graph.num_gpus; ++gpu) fmt::format_to(std::back_inserter(out), "    <host id=\"gpu{}\" speed=\"{}f\"/>\n", gpu, exact_text(speed));
    for (const Link& link : graph.links)
        fmt::format_to(std::back_inserter(out), "    <link id=\"{}\" bandwidth=\"{}Bps\" latency=\"{}s\"/>\n", escaped(link.name), exact_text(link.bandwidth.value), exact_text(link.latency.value));
    std::vector<std::uint32_t> route;
    for (int a = 0; a < graph.num_gpus; ++a)
        for (int b = 0; b < graph.num_gpus; ++b) {
            if (a == b) continue;
            route.clear();
            graph.append_route(a, b, route);
            fmt::format_to(std::back_inserter(out), "    <route src=\"gpu{}\" dst=\"gpu{}\" symmetrical=\"NO\">", a, b);
            for (const auto link : route) fmt::format_to(std::back_inserter(out), "<link_ctn id=\"{}\"/>", escaped(graph.links[link].name));
            out += "</route>\n";
        }
    return out + "  </zone>\n</platform>\n";
}

}  // namespace moeplan
