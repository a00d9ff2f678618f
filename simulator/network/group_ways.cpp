#include "simulator/network/group_ways.hpp"

#include <algorithm>
#include <utility>

namespace moeplan {

GroupWays::GroupWays(const LinkGraph& graph, std::vector<int> ranks)
    : graph_(graph), ranks_(std::move(ranks)) {
    const std::size_t n = ranks_.size();
    std::vector<int> seen;  // domains in order of their first rank
    for (std::size_t r = 0; r < n; ++r) {
        const int domain = graph.domain[ranks_[r]];
        const auto at = std::find(seen.begin(), seen.end(), domain);
        const auto index = static_cast<std::size_t>(at - seen.begin());
        if (at == seen.end()) {
            seen.push_back(domain);
            members_.emplace_back();
        }
        domain_.push_back(static_cast<int>(index));
        place_.push_back(static_cast<int>(members_[index].size()));
        members_[index].push_back(static_cast<int>(r));
    }
    for (std::size_t r = 0; r < n; ++r)
        for (const auto& there : members_)
            forwarder_.push_back(there[static_cast<std::size_t>(place_[r]) % there.size()]);
    latency_.resize(n * n);
    there_.first.assign(1, 0);
    back_.first.assign(1, 0);
    for (std::size_t s = 0; s < n; ++s)
        for (std::size_t d = 0; d < n; ++d) {
            if (s != d) {
                const int from = ranks_[s], to = ranks_[d], via = graph.relay(from, to);
                latency_[s * n + d] = graph.latency(from, to);
                if (via < 0) {
                    graph.append_route(from, to, there_.links);
                    graph.append_route(to, from, back_.links);
                } else {
                    graph.append_route(from, via, there_.links);
                    graph.append_route(via, to, there_.links);
                    graph.append_route(to, via, back_.links);
                    graph.append_route(via, from, back_.links);
                }
            }
            there_.first.push_back(static_cast<std::uint32_t>(there_.links.size()));
            back_.first.push_back(static_cast<std::uint32_t>(back_.links.size()));
        }
    std::vector<std::uint32_t> index(graph.links.size(), 0);
    for (const Ways* ways : {&there_, &back_})
        for (const auto link : ways->links) index[link] = 1;
    for (std::uint32_t link = 0; link < index.size(); ++link)
        if (index[link] != 0) {
            index[link] = static_cast<std::uint32_t>(links_.size());
            links_.push_back(link);
        }
    for (Ways* ways : {&there_, &back_})
        for (auto& link : ways->links) link = index[link];
}

std::vector<LinkLoad> GroupWays::loads(std::span<const double> bytes, bool back) const {
    const Ways& ways = back ? back_ : there_;
    std::vector<double> carried(links_.size(), 0);
    for (std::size_t pair = 0; pair < bytes.size(); ++pair) {
        if (!(bytes[pair] > 0)) continue;
        for (std::uint32_t j = ways.first[pair]; j < ways.first[pair + 1]; ++j)
            carried[ways.links[j]] += bytes[pair];
    }
    std::vector<LinkLoad> loads;
    loads.reserve(links_.size());
    for (std::size_t i = 0; i < links_.size(); ++i)
        if (carried[i] > 0) loads.push_back({links_[i], Bytes{carried[i]}});
    return loads;
}

}  // namespace moeplan
