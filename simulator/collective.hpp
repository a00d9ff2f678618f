#pragma once
/// Collectives: a group and a payload → flows, and the times and bandwidths that come of them.

#include <cstdint>
#include <string>
#include <vector>

#include "core/enum_names.hpp"
#include "core/units.hpp"
#include "simulator/link_graph.hpp"
#include "simulator/network.hpp"
#include "simulator/traffic_matrix.hpp"

namespace moeplan {

struct Profile;

enum class Collective : std::uint8_t {
    all_reduce,
    all_gather,
    reduce_scatter,
    all_to_all,
    send_recv,
    broadcast
};
/// automatic: the fastest of those that apply, as NCCL's own tuning aims at.
enum class Algorithm : std::uint8_t {
    automatic,
    ring,
    double_binary_tree,
    nvls,
    hierarchical,
    direct,
    pairwise,
    two_level
};

/// One call, in the sizes of nccl-tests.
struct CollectiveCall {
    Collective collective = Collective::all_reduce;
    std::vector<int> group;  ///< GPUs in group order
    /// all_reduce, broadcast: the buffer of a rank; all_gather, reduce_scatter: the whole buffer, n
    /// shards; all_to_all: all that one rank sends, its own share counted; send_recv: the message
    /// from group[0] to group[1].
    Bytes bytes;
    Algorithm algorithm = Algorithm::automatic;
    const TrafficMatrix* traffic =
        nullptr;  ///< all_to_all of unequal parts, ranks in group order; replaces `bytes`
    /// two_level without duplicates: bytes that leave a rank for each *domain* once, [source,
    /// destination rank that forwards]; nullptr: all of `traffic` travels by the forwarding rank.
    /// See `forwarding_rank`.
    const TrafficMatrix* once = nullptr;
};

/// Flows of one collective, ready for an engine.
/// @param profile  its link curves give the efficiency at this size; nullptr: 1
/// @throws InputError if the algorithm does not apply to this collective or group
Exchange make_exchange(const LinkGraph& graph, const CollectiveCall& call,
                       const Profile* profile = nullptr, Folding folding = Folding::rails);

/// Where `source`'s tokens for a domain enter it in two-level exchanges: the rank of that domain at
/// the source's place.
int forwarding_rank(const LinkGraph& graph, const std::vector<int>& group, int source_rank,
                    int destination_rank);

/// busbw = factor · algbw: 2(n−1)/n for all_reduce, (n−1)/n for all_gather, reduce_scatter and
/// all_to_all, 1 else (nccl-tests, PERFORMANCE.md).
double bus_factor(Collective collective, int num_ranks);

/// Even all-to-all of `bytes` a rank, [n, n] of bytes/n.
TrafficMatrix even_traffic(int num_ranks, Bytes bytes);
/// Every rank sends `bytes`; destination d in proportion to (d+1)^−exponent, as experts of unequal
/// popularity.
TrafficMatrix zipf_traffic(int num_ranks, Bytes bytes, double exponent);

template <>
const EnumNames<Collective>& enum_names<Collective>();
template <>
const EnumNames<Algorithm>& enum_names<Algorithm>();

}  // namespace moeplan
