#pragma once
/// One function an algorithm: a group and a payload → stages of flows. docs/collectives.md has the
/// equations.

#include <vector>

#include "simulator/collective.hpp"

namespace moeplan {

/// A group as the links see it: its ranks by NVLink domain, and the rails that all domains share.
struct GroupShape {
    std::vector<int> gpus;                    ///< [n] in group order
    std::vector<std::vector<int>> by_domain;  ///< GPUs of each domain, in group order
    bool even = true;                         ///< every domain holds as many
    int num_ranks() const { return static_cast<int>(gpus.size()); }
    int num_domains() const { return static_cast<int>(by_domain.size()); }
};
GroupShape shape_of(const LinkGraph& graph, const std::vector<int>& group);

/// Longest latency of the routes that these flows take.
Seconds longest_latency(const LinkGraph& graph, const std::vector<Flow>& flows);

/// Rings that carry the payload side by side, with their shares: one in a domain, one a GPU of a
/// domain across domains, each leaving and entering domains by another rail.
std::vector<LinkGraph::Ring> rings_of(const LinkGraph& graph, const GroupShape& group);

/// `passes` trips of the payload around the rings: 2 for all_reduce, 1 for all_gather and
/// reduce_scatter. Each of the passes·(n−1) steps costs one latency; each hop carries
/// passes·(n−1)/n·S.
std::vector<StageFlows> ring(const LinkGraph& graph, const GroupShape& group, Bytes bytes,
                             int passes);
/// Two binary trees in which every rank but one is a leaf of one (Sanders, Speck, Träff 2009): S up
/// and S down in all, half by each tree; 2·⌈log2 domains⌉ latencies between domains, 2·(m−1)
/// within.
std::vector<StageFlows> double_binary_tree(const LinkGraph& graph, const GroupShape& group,
                                           Bytes bytes);
/// The switch reduces and multicasts: S·(1 + 1/n) up and down a GPU, one step each way. One domain.
std::vector<StageFlows> nvls(const LinkGraph& graph, const GroupShape& group, Bytes bytes);
/// Reduce-scatter in each domain, rings across domains on 1/m of the payload a GPU, all-gather in
/// each domain; pipelined.
std::vector<StageFlows> hierarchical(const LinkGraph& graph, const GroupShape& group, Bytes bytes,
                                     Collective collective);
std::vector<StageFlows> broadcast_ring(const LinkGraph& graph, const GroupShape& group,
                                       Bytes bytes);
std::vector<StageFlows> send_recv(const LinkGraph& graph, const GroupShape& group, Bytes bytes);

/// All parts at once.
std::vector<StageFlows> all_to_all_direct(const LinkGraph& graph, const GroupShape& group,
                                          const TrafficMatrix& traffic);
/// The same, its flows as `folded` has them: the parts of 4,096 GPUs would be a list of 268 MB.
std::vector<StageFlows> all_to_all_folded(const LinkGraph& graph, const GroupShape& group,
                                          const TrafficMatrix& traffic);
/// n−1 rounds: in round r rank i sends to i + r and receives from i − r; each ends with its
/// slowest.
std::vector<StageFlows> all_to_all_pairwise(const LinkGraph& graph, const GroupShape& group,
                                            const TrafficMatrix& traffic);
/// Over the network once a domain (`once`, or all of `traffic`), to the rank at the sender's place;
/// from there over NVLink.
std::vector<StageFlows> all_to_all_two_level(const LinkGraph& graph, const GroupShape& group,
                                             const TrafficMatrix& traffic,
                                             const TrafficMatrix* once);

/// The same collectives step by step, as the ranks run them: round r's flows start at a rank when
/// what round r−1 sends there has arrived. The oracle of the folded forms: the textbook formula is
/// its time.
struct Round {
    Seconds latency;
    std::vector<Flow> flows;
};
std::vector<Round> ring_rounds(const LinkGraph& graph, const GroupShape& group, Bytes bytes,
                               int passes);
std::vector<Round> tree_rounds(const LinkGraph& graph, const GroupShape& group, Bytes bytes);
Seconds play_rounds(NetworkModel model, const LinkGraph& graph, const std::vector<Round>& rounds);

}  // namespace moeplan
