#include <algorithm>
#include <cassert>
#include <cmath>
#include <utility>

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
    std::vector<StageFlows> stages;
    stages.push_back(std::move(stage));
    return stages;
}

namespace {

/// GPUs of the domains in which a group lies: all ends of its flows, relays among them.
struct FlowEnds {
    static constexpr int kNone = -1;
    std::vector<int> gpus;                    // ascending
    std::vector<int> column;                  // [num_gpus] index of gpus, or kNone
    std::vector<std::vector<int>> by_domain;  // GPUs, ascending; as GroupShape's
    std::vector<int> row;                     // [num_gpus] place in its domain, or kNone

    FlowEnds(const LinkGraph& graph, const GroupShape& group)
        : column(static_cast<std::size_t>(graph.num_gpus), kNone),
          by_domain(group.by_domain.size()),
          row(static_cast<std::size_t>(graph.num_gpus), kNone) {
        std::vector<int> index(static_cast<std::size_t>(
                                   *std::max_element(graph.domain.begin(), graph.domain.end()) + 1),
                               kNone);
        for (std::size_t d = 0; d < group.by_domain.size(); ++d)
            index[graph.domain[group.by_domain[d].front()]] = static_cast<int>(d);
        for (int gpu = 0; gpu < graph.num_gpus; ++gpu) {
            const int domain = index[graph.domain[gpu]];
            if (domain == kNone) continue;
            column[gpu] = static_cast<int>(gpus.size());
            gpus.push_back(gpu);
            row[gpu] = static_cast<int>(by_domain[domain].size());
            by_domain[domain].push_back(gpu);
        }
    }
};

}  // namespace

std::vector<StageFlows> all_to_all_folded(const LinkGraph& graph, const GroupShape& group,
                                          const TrafficMatrix& traffic) {
    const FlowEnds ends(graph, group);
    const std::size_t columns = ends.gpus.size();
    std::vector<int> rank_of(static_cast<std::size_t>(graph.num_gpus));
    for (int rank = 0; rank < group.num_ranks(); ++rank) rank_of[group.gpus[rank]] = rank;
    StageFlows stage;
    // A relay lies in the domain of its source: sums of one domain's GPUs are complete when its
    // sources are through, and every sum is formed in the order of the ranks, as `folded` does.
    std::vector<double> bytes;  // [GPUs of the domain, columns]
    for (std::size_t d = 0; d < group.by_domain.size(); ++d) {
        bytes.assign(ends.by_domain[d].size() * columns, 0);
        const auto from = [&](int gpu) {
            return bytes.data() + static_cast<std::size_t>(ends.row[gpu]) * columns;
        };
        for (const int source : group.by_domain[d])
            for (int rank = 0; rank < group.num_ranks(); ++rank) {
                const int destination = group.gpus[rank];
                const double part = traffic.at(rank_of[source], rank).value;
                if (source == destination || !(part > 0)) continue;
                stage.latency = std::max(stage.latency, graph.latency(source, destination));
                const int via = graph.relay(source, destination);
                if (via < 0) {
                    from(source)[ends.column[destination]] += part;
                } else {
                    assert(graph.domain[via] == graph.domain[source]);
                    from(source)[ends.column[via]] += part;
                    from(via)[ends.column[destination]] += part;
                }
            }
        for (const int source : ends.by_domain[d])
            for (std::size_t c = 0; c < columns; ++c)
                if (const double sum = from(source)[c]; sum > 0)
                    stage.flows.push_back({id(source), id(ends.gpus[c]), Bytes{sum}});
    }
    const auto before = [](const Flow& a, const Flow& b) {
        return std::pair(a.source, a.destination) < std::pair(b.source, b.destination);
    };
    if (!std::is_sorted(stage.flows.begin(), stage.flows.end(), before))
        std::sort(stage.flows.begin(), stage.flows.end(), before);
    std::vector<StageFlows> stages;
    stages.push_back(std::move(stage));
    return stages;
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
    std::vector<StageFlows> stages;
    stages.push_back(std::move(stage));
    return stages;
}

}  // namespace moeplan
