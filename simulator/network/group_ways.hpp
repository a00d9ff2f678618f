#pragma once
/// The ways between the ranks of one group, laid out once: what any traffic among them puts on each
/// link, without a list of flows. Closed forms need no more than that.

#include <cstdint>
#include <span>
#include <vector>

#include "simulator/network.hpp"

namespace moeplan {

class GroupWays {
  public:
    GroupWays(const LinkGraph& graph, std::vector<int> ranks);

    int num_ranks() const { return static_cast<int>(ranks_.size()); }
    int num_domains() const { return static_cast<int>(members_.size()); }
    const std::vector<int>& domains() const { return domain_; }  ///< [n]
    int domain(int rank) const { return domain_[rank]; }  ///< counted from 0 in the group's order
    /// Where a rank's tokens for a domain enter it (`forwarding_rank`).
    int forwarder(int rank, int domain) const {
        return forwarder_[static_cast<std::size_t>(rank) * members_.size() + domain];
    }
    Seconds latency(int source, int destination) const {
        return latency_[static_cast<std::size_t>(source) * ranks_.size() + destination];
    }

    /// Every part on its way at once; relays count as `folded` has them.
    /// @param bytes  [n, n], row = source
    /// @param back   every arrow turned round, relays too: combine after dispatch
    std::vector<LinkLoad> loads(std::span<const double> bytes, bool back) const;

  private:
    struct Ways {
        std::vector<std::uint32_t> first, links;  // [n·n + 1] → indices of links_
    };
    const LinkGraph& graph_;
    std::vector<int> ranks_, domain_, place_;
    std::vector<std::vector<int>> members_;  // [domains] ranks
    std::vector<int> forwarder_;             // [n, domains]
    std::vector<Seconds> latency_;           // [n, n]
    std::vector<std::uint32_t> links_;       // that any way uses, ascending
    Ways there_, back_;
};

}  // namespace moeplan
