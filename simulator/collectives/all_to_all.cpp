#include <cassert>
#include <cmath>

#include "simulator/collectives/collectives.hpp"

namespace moeplan {
namespace {

std::uint32_t id(int gpu) { return static_cast<std::uint32_t>(gpu); }

}  // namespace

TrafficMatrix even_traffic(int num_ranks, Bytes bytes) {
    TrafficMatrix out(num_ranks);
    for (Bytes& part : out.sent) part = bytes / num_ranks;
    return out;
}

TrafficMatrix zipf_traffic(int num_ranks, Bytes bytes, double exponent) {
    TrafficMatrix out(num_ranks);
    double total = 0;
    for (int d = 0; d < num_ranks; ++d) total += std::pow(d + 1, -exponent);
    for (int s = 0; s < num_ranks; ++s)
        for (int d = 0; d < num_ranks; ++d)
            out.at(s, d) = bytes * (std::pow(d + 1, -exponent) / total);
    return out;
}

std::vector<StageFlows> all_to_all_direct(const LinkGraph& graph, const GroupShape& group,
                                          const TrafficMatrix& traffic) {
    StageFlows stage;
    const int n = group.num_ranks();
    stage.flows.reserve(static_cast<std::size_t>(n) * static_cast<std::size_t>(n));
    for (int s = 0; s < n; ++s)
        for (int d = 0; d < n; ++d)
            if (s != d && traffic.at(s, d).value > 0)
                stage.flows.push_back({id(group.gpus[s]), id(group.gpus[d]), traffic.at(s, d)});
    stage.latency = longest_latency(graph, stage.flows);
    return {stage};
}

std::vector<StageFlows> all_to_all_pairwise(const LinkGraph& graph, const GroupShape& group,
                                            const TrafficMatrix& traffic) {
    std::vector<StageFlows> stages;
    const int n = group.num_ranks();
    for (int round = 1; round < n; ++round) {
        StageFlows stage;
        for (int s = 0; s < n; ++s) {
            const int d = (s + round) % n;
            if (traffic.at(s, d).value > 0)
                stage.flows.push_back({id(group.gpus[s]), id(group.gpus[d]), traffic.at(s, d)});
        }
        stage.latency = longest_latency(graph, stage.flows);
        stages.push_back(std::move(stage));
    }
    return stages;
}

int forwarding_rank(const LinkGraph& graph, const std::vector<int>& group, int source_rank,
                    int destination_rank) {
    const auto domain_of = [&](int rank) {
        return graph.domain[group[static_cast<std::size_t>(rank)]];
    };
    if (domain_of(source_rank) == domain_of(destination_rank)) return destination_rank;
    int place = 0, size = 0;
    for (int rank = 0; rank < source_rank; ++rank)
        place += domain_of(rank) == domain_of(source_rank);
    for (int rank = 0; rank < static_cast<int>(group.size()); ++rank)
        size += domain_of(rank) == domain_of(destination_rank);
    place %= size;
    for (int rank = 0; rank < static_cast<int>(group.size()); ++rank)
        if (domain_of(rank) == domain_of(destination_rank) && place-- == 0) return rank;
    return destination_rank;
}

std::vector<StageFlows> all_to_all_two_level(const LinkGraph& graph, const GroupShape& group,
                                             const TrafficMatrix& traffic,
                                             const TrafficMatrix* once) {
    const int n = group.num_ranks();
    // Domain and place of each rank, so that forwarding is O(1) a pair.
    std::vector<int> domain(static_cast<std::size_t>(n)), place(static_cast<std::size_t>(n));
    std::vector<std::vector<int>> members(static_cast<std::size_t>(group.num_domains()));
    for (int rank = 0; rank < n; ++rank) {
        int d = 0;
        while (graph.domain[group.by_domain[d].front()] != graph.domain[group.gpus[rank]]) ++d;
        domain[rank] = d;
        place[rank] = static_cast<int>(members[d].size());
        members[d].push_back(rank);
    }
    const auto forwarder = [&](int s, int d) {
        return members[domain[d]][static_cast<std::size_t>(place[s]) % members[domain[d]].size()];
    };
    std::vector<Flow> out, in;
    for (int s = 0; s < n; ++s)
        for (int d = 0; d < n; ++d) {
            const Bytes part = traffic.at(s, d);
            if (s == d || !(part.value > 0)) continue;
            if (domain[s] == domain[d]) {
                in.push_back({id(group.gpus[s]), id(group.gpus[d]), part});
                continue;
            }
            const int via = forwarder(s, d);
            if (!once) out.push_back({id(group.gpus[s]), id(group.gpus[via]), part});
            if (via != d) in.push_back({id(group.gpus[via]), id(group.gpus[d]), part});
        }
    if (once)
        for (int s = 0; s < n; ++s)
            for (int via = 0; via < n; ++via)
                if (domain[s] != domain[via] && once->at(s, via).value > 0)
                    out.push_back({id(group.gpus[s]), id(group.gpus[via]), once->at(s, via)});
    // Chunks are forwarded as they arrive: both levels run together, one latency of each is waited
    // for.
    StageFlows stage;
    stage.latency = longest_latency(graph, out) + longest_latency(graph, in);
    stage.flows = std::move(out);
    stage.flows.insert(stage.flows.end(), in.begin(), in.end());
    return {stage};
}

}  // namespace moeplan
