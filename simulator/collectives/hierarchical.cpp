#include "simulator/collectives/collectives.hpp"

namespace moeplan {
namespace {

std::uint32_t id(int gpu) { return static_cast<std::uint32_t>(gpu); }

/// A ring over `members`, each hop carrying `bytes`.
void add_ring(const std::vector<int>& members, Bytes bytes, std::vector<Flow>& flows) {
    if (members.size() < 2) return;
    for (std::size_t i = 0; i < members.size(); ++i)
        flows.push_back({id(members[i]), id(members[(i + 1) % members.size()]), bytes});
}

}  // namespace

std::vector<StageFlows> nvls(const LinkGraph& graph, const GroupShape& group, Bytes bytes) {
    // A GPU's port sends S to be reduced and S/n of the result to be multicast, and receives as
    // much. On a crossbar that is the load of a ring whose hops carry S(1 + 1/n): the switch has no
    // links of its own.
    StageFlows stage;
    add_ring(group.gpus, bytes * (1 + 1.0 / group.num_ranks()), stage.flows);
    stage.latency = longest_latency(graph, stage.flows) * 2;
    return {stage};
}

std::vector<StageFlows> hierarchical(const LinkGraph& graph, const GroupShape& group, Bytes bytes,
                                     Collective collective) {
    // Within a domain of m: every GPU gathers or reduces (m−1)/m of the payload; across N domains
    // on its rail (N−1)/N of 1/m.
    const double passes = collective == Collective::all_reduce ? 2 : 1;
    const auto m = static_cast<double>(group.by_domain.front().size()),
               domains = static_cast<double>(group.num_domains());
    std::vector<Flow> inside, across;
    for (const auto& members : group.by_domain)
        add_ring(members, bytes * (passes * (m - 1) / m), inside);
    for (std::size_t place = 0; place < group.by_domain.front().size(); ++place) {
        std::vector<int> rail;
        for (const auto& members : group.by_domain) rail.push_back(members[place]);
        add_ring(rail, bytes * (passes * (domains - 1) / domains / m), across);
    }
    // Pipelined by chunks: the stages overlap, so their flows run together and the latencies of one
    // chunk's way add up.
    StageFlows stage;
    stage.latency = longest_latency(graph, inside) * (passes * (m - 1)) +
                    longest_latency(graph, across) * (passes * (domains - 1));
    stage.flows = std::move(inside);
    stage.flows.insert(stage.flows.end(), across.begin(), across.end());
    return {stage};
}

}  // namespace moeplan
