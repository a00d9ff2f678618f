#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <map>
#include <utility>

#include "simulator/network.hpp"

namespace moeplan {

template <>
const EnumNames<NetworkModel>& enum_names<NetworkModel>() {
    static const EnumNames<NetworkModel> names = {{NetworkModel::closed_form, "closed_form"},
                                                  {NetworkModel::fluid, "fluid"},
                                                  {NetworkModel::simgrid, "simgrid"}};
    return names;
}

Seconds time_alone(const Exchange& exchange) {
    Seconds total;
    for (const auto& stage : exchange.stages) total += stage.latency + stage.transfer;
    return total;
}

namespace {

/// A message or two on a cluster of thousands of links: what they touch is sorted, the rest never
/// looked at.
std::vector<LinkLoad> loads_of_few(const LinkGraph& graph, std::span<const Flow> flows) {
    std::vector<LinkLoad> parts;
    std::vector<std::uint32_t> route;
    for (const Flow& flow : flows) {
        route.clear();
        graph.append_route(static_cast<int>(flow.source), static_cast<int>(flow.destination),
                           route);
        for (const auto link : route) parts.push_back({link, flow.bytes});
    }
    // Stable: the order of summation, and so the last digit, is that of the flows.
    std::stable_sort(parts.begin(), parts.end(),
                     [](const LinkLoad& a, const LinkLoad& b) { return a.link < b.link; });
    std::vector<LinkLoad> loads;
    for (const LinkLoad& part : parts)
        if (!loads.empty() && loads.back().link == part.link)
            loads.back().bytes += part.bytes;
        else
            loads.push_back(part);
    std::erase_if(loads, [](const LinkLoad& load) { return !(load.bytes.value > 0); });
    return loads;
}

/// Where a flow stands for so many links of the cluster, clearing a number a link costs more than
/// sorting.
constexpr std::size_t kLinksAFlow = 64;

}  // namespace

std::vector<LinkLoad> link_loads(const LinkGraph& graph, std::span<const Flow> flows) {
    if (flows.size() * kLinksAFlow < graph.links.size()) return loads_of_few(graph, flows);
    std::vector<double> bytes(graph.links.size(), 0);
    std::vector<std::uint32_t> route;
    for (const Flow& flow : flows) {
        route.clear();
        graph.append_route(static_cast<int>(flow.source), static_cast<int>(flow.destination),
                           route);
        for (const auto link : route) bytes[link] += flow.bytes.value;
    }
    std::vector<LinkLoad> loads;
    for (std::size_t link = 0; link < bytes.size(); ++link)
        if (bytes[link] > 0)
            loads.push_back({static_cast<std::uint32_t>(link), Bytes{bytes[link]}});
    return loads;
}

namespace {

/// Many flows among few GPUs: one number a pair is faster than sorting.
std::vector<Flow> folded_densely(const LinkGraph& graph, std::span<const Flow> flows) {
    const auto n = static_cast<std::size_t>(graph.num_gpus);
    std::vector<double> bytes(n * n, 0);
    for (const Flow& flow : flows) {
        const int via =
            graph.relay(static_cast<int>(flow.source), static_cast<int>(flow.destination));
        if (via < 0) {
            bytes[flow.source * n + flow.destination] += flow.bytes.value;
        } else {
            bytes[flow.source * n + static_cast<std::size_t>(via)] += flow.bytes.value;
            bytes[static_cast<std::size_t>(via) * n + flow.destination] += flow.bytes.value;
        }
    }
    std::vector<Flow> out;
    for (std::uint32_t source = 0; source < n; ++source)
        for (std::uint32_t destination = 0; destination < n; ++destination)
            if (const double sum = bytes[source * n + destination]; sum > 0)
                out.push_back({source, destination, Bytes{sum}});
    return out;
}

}  // namespace

std::vector<Flow> folded(const LinkGraph& graph, std::span<const Flow> flows) {
    const double pairs = static_cast<double>(graph.num_gpus) * graph.num_gpus;
    if (pairs <= 1 << 24 && pairs <= 8.0 * static_cast<double>(flows.size()))
        return folded_densely(graph, flows);
    std::vector<Flow> parts;
    parts.reserve(2 * flows.size());
    for (const Flow& flow : flows) {
        const int via =
            graph.relay(static_cast<int>(flow.source), static_cast<int>(flow.destination));
        if (via >= 0) {
            parts.push_back({flow.source, static_cast<std::uint32_t>(via), flow.bytes});
            parts.push_back({static_cast<std::uint32_t>(via), flow.destination, flow.bytes});
        } else {
            parts.push_back(flow);
        }
    }
    // Stable: the order of summation, and so the last digit, is that of the flows.
    std::stable_sort(parts.begin(), parts.end(), [](const Flow& a, const Flow& b) {
        return std::pair(a.source, a.destination) < std::pair(b.source, b.destination);
    });
    std::vector<Flow> out;
    for (const Flow& part : parts)
        if (!out.empty() && out.back().source == part.source &&
            out.back().destination == part.destination)
            out.back().bytes += part.bytes;
        else
            out.push_back(part);
    return out;
}

Exchange make_exchange(const LinkGraph& graph, std::string what, std::vector<StageFlows> stages,
                       double efficiency, double weight, Folding folding) {
    assert(efficiency > 0 && weight > 0);
    Exchange exchange{std::move(what), {}, efficiency, weight};
    for (auto& stage : stages) {
        std::erase_if(stage.flows, [](const Flow& flow) {
            return flow.source == flow.destination || !(flow.bytes.value > 0);
        });
        ExchangeStage out;
        out.latency = stage.latency;
        out.flows = folding == Folding::rails ? folded(graph, stage.flows) : std::move(stage.flows);
        out.loads = link_loads(graph, out.flows);
        for (const LinkLoad& load : out.loads)
            out.transfer = std::max(out.transfer,
                                    load.bytes / (graph.links[load.link].bandwidth * efficiency));
        exchange.stages.push_back(std::move(out));
    }
    return exchange;
}

Exchange calibrated(Exchange exchange, Seconds measured) {
    Seconds latency, transfer;
    for (const auto& stage : exchange.stages) {
        latency += stage.latency;
        transfer += stage.transfer;
    }
    if (!(measured.value > 0) || !(transfer.value > 0)) return exchange;
    const double keep = latency > measured / 2 ? measured / 2 / latency : 1;
    const double slower = (measured - latency * keep) / transfer;
    exchange.efficiency /= slower;
    for (auto& stage : exchange.stages) {
        stage.latency *= keep;
        stage.transfer *= slower;
    }
    return exchange;
}

Seconds play_alone(NetworkModel model, const LinkGraph& graph, const Exchange& exchange) {
    const auto engine = make_engine(model, graph);
    Seconds end;
    engine->start(exchange, [&] { end = engine->now(); });
    engine->run();
    return end;
}

}  // namespace moeplan
