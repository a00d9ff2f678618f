#include "simulator/report/pictures.hpp"

#include <algorithm>
#include <map>
#include <string>

namespace moeplan {
namespace {

constexpr std::size_t kLinksDrawn = 12;

/// Ranks to draw of a stage: where all do the same the first, else also those with most and least
/// to do. A rank of several replicas stands for all of them.
std::vector<int> drawn_ranks(const StepGraph& graph, const std::vector<Seconds>& busy, int lane) {
    const auto first = busy.begin() + lane * graph.width * graph.replicas,
               last = first + graph.width;
    const auto [least, most] = std::minmax_element(first, last);
    std::vector<int> out = {0};
    if (*most > *least) {
        out.push_back(static_cast<int>(most - first));
        out.push_back(static_cast<int>(least - first));
    }
    std::sort(out.begin(), out.end());
    out.erase(std::unique(out.begin(), out.end()), out.end());
    return out;
}

}  // namespace

std::vector<TimelineBar> timeline_bars(const StepGraph& graph, const JobPrices& prices,
                                       const Timeline& line, const std::vector<Seconds>& busy) {
    static constexpr const char* kStreams[] = {"compute", "tensor",       "context",
                                               "experts", "send forward", "send backward",
                                               "data",    "parameters"};
    std::vector<std::vector<int>> ranks;  // [lanes] in the lane
    for (int lane = 0; lane < graph.num_lanes; ++lane)
        ranks.push_back(drawn_ranks(graph, busy, lane));
    std::vector<TimelineBar> out;
    out.reserve(graph.ops.size());
    for (std::size_t i = 0; i < graph.ops.size(); ++i) {
        const Op& op = graph.ops[i];
        const std::string where = op.phase == Phase::optimizer
                                      ? ""
                                      : " · layer " + std::to_string(op.layer) + " · micro-batch " +
                                            std::to_string(op.micro_batch);
        std::string what;
        if (op.exchange) {
            const auto& demand = graph.exchanges[op.demand];
            what = op.part == Part::dispatch  ? "dispatch"
                   : op.part == Part::combine ? "combine"
                                              : std::string(name_of(demand.kind));
        } else {
            what = graph.works[graph.jobs[op.demand].work].what;
        }
        if (op.phase == Phase::recompute) what += " (recompute)";
        for (const int rank : ranks[op.lane]) {
            // a rank with less to do is done sooner, and waits for the slowest at the next exchange
            double share = 1;
            if (!op.exchange) {
                const JobPrice& price = prices.jobs[op.demand];
                const auto seconds = [&](std::size_t r) {
                    return (price.by_rank >= 0 ? prices.ranks[price.by_rank][r] : price.device) *
                           (prices.slowdown.empty() ? 1 : prices.slowdown[op.lane][r]);
                };
                double most = price.device;
                if (!prices.slowdown.empty())
                    for (std::size_t r = 0; r < prices.slowdown[op.lane].size(); ++r)
                        most = std::max(most, seconds(r));
                if (most > 0) share = seconds(static_cast<std::size_t>(rank)) / most;
            }
            const double end =
                share >= 1 ? line.end[i] : line.begin[i] + share * (line.end[i] - line.begin[i]);
            out.push_back({op.lane * graph.width * graph.replicas + rank,
                           kStreams[static_cast<int>(op.stream)], what + where,
                           Seconds{line.begin[i]}, Seconds{end}});
        }
    }
    return out;
}

std::vector<LinkHistory> link_history(const StepGraph& graph, const Timeline& line,
                                      StepNetwork& network) {
    const auto& links = network.links().links;
    std::vector<std::uint32_t> busiest;
    for (std::uint32_t l = 0; l < line.carried.size(); ++l)
        if (line.carried[l].value > 0) busiest.push_back(l);
    std::stable_sort(busiest.begin(), busiest.end(), [&](std::uint32_t a, std::uint32_t b) {
        return line.carried[a] / links[a].bandwidth > line.carried[b] / links[b].bandwidth;
    });
    if (busiest.size() > kLinksDrawn) busiest.resize(kLinksDrawn);
    std::map<std::uint32_t, std::map<double, double>> changes;  // link → time → more or less busy
    for (const auto link : busiest) changes[link];
    for (std::size_t i = 0; i < graph.ops.size(); ++i) {
        if (!graph.ops[i].exchange || !(line.end[i] > line.begin[i])) continue;
        for (const ExchangeStage& stage : network.loads(graph.ops[i].demand).stages)
            for (const LinkLoad& load : stage.loads) {
                const auto at = changes.find(load.link);
                if (at == changes.end()) continue;
                const double busy =
                    (load.bytes / links[load.link].bandwidth).value / (line.end[i] - line.begin[i]);
                at->second[line.begin[i]] += busy;
                at->second[line.end[i]] -= busy;
            }
    }
    std::vector<LinkHistory> out;
    for (const auto link : busiest) {
        LinkHistory curve{links[link].name, {}};
        double busy = 0;
        for (const auto& [time, change] : changes[link]) {
            busy = std::max(0.0, busy + change);
            if (busy < 1e-12) busy = 0;  // what sums of ends leave
            curve.points.push_back({Seconds{time}, busy});
        }
        out.push_back(std::move(curve));
    }
    return out;
}

}  // namespace moeplan
