#include <algorithm>

#include "simulator/collectives/collectives.hpp"

namespace moeplan {
namespace {

std::uint32_t id(int gpu) { return static_cast<std::uint32_t>(gpu); }

}  // namespace

std::vector<StageFlows> ring(const LinkGraph& graph, const GroupShape& group, Bytes bytes,
                             int passes) {
    const int n = group.num_ranks();
    StageFlows stage;
    Seconds around;  // of the slowest ring
    for (const auto& ring : rings_of(graph, group)) {
        Seconds latencies;
        for (int i = 0; i < n; ++i) {
            const Flow hop{id(ring.order[i]), id(ring.order[(i + 1) % n]),
                           bytes * (ring.share * passes * (n - 1) / n)};
            stage.flows.push_back(hop);
            latencies += longest_latency(graph, {hop});
        }
        around = std::max(around, latencies);
    }
    // A chunk takes n−1 hops a pass; over all chunks the hops are the ring's mean.
    stage.latency = around * (static_cast<double>(passes) * (n - 1) / n);
    return {stage};
}

std::vector<StageFlows> broadcast_ring(const LinkGraph& graph, const GroupShape& group,
                                       Bytes bytes) {
    StageFlows stage;
    const auto rings = rings_of(graph, group);
    for (const auto& ring : rings) {
        // From the root along the ring, to the rank before it.
        const int n = group.num_ranks();
        const auto root = std::find(ring.order.begin(), ring.order.end(), group.gpus.front()) -
                          ring.order.begin();
        Seconds latencies;
        for (int i = 0; i + 1 < n; ++i) {
            const Flow hop{id(ring.order[(root + i) % n]), id(ring.order[(root + i + 1) % n]),
                           bytes * ring.share};
            stage.flows.push_back(hop);
            latencies += longest_latency(graph, {hop});
        }
        stage.latency = std::max(stage.latency, latencies);
    }
    return {stage};
}

std::vector<StageFlows> send_recv(const LinkGraph& graph, const GroupShape& group, Bytes bytes) {
    const Flow message{id(group.gpus[0]), id(group.gpus[1]), bytes};
    return {{longest_latency(graph, {message}), {message}}};
}

std::vector<Round> ring_rounds(const LinkGraph& graph, const GroupShape& group, Bytes bytes,
                               int passes) {
    const int n = group.num_ranks();
    std::vector<Round> rounds(static_cast<std::size_t>(passes) * static_cast<std::size_t>(n - 1));
    for (const auto& ring : rings_of(graph, group))
        for (Round& round : rounds)
            for (int i = 0; i < n; ++i)
                round.flows.push_back(
                    {id(ring.order[i]), id(ring.order[(i + 1) % n]), bytes * (ring.share / n)});
    for (Round& round : rounds) round.latency = longest_latency(graph, round.flows);
    return rounds;
}

}  // namespace moeplan
