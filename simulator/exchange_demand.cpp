#include "simulator/exchange_demand.hpp"

#include <algorithm>
#include <utility>

#include "simulator/expert_loads.hpp"
#include "simulator/step_graph.hpp"

namespace moeplan {
namespace {

/// `power` of each, side by side.
void to_powers(std::vector<double>& values, int n) {
    std::vector<double> out(values.size(), 1);
    for (; n > 0; n >>= 1) {
        if (n & 1)
            for (std::size_t i = 0; i < values.size(); ++i) out[i] *= values[i];
        for (double& x : values) x *= x;
    }
    values = std::move(out);
}

}  // namespace

std::vector<std::vector<int>> exchange_groups(const StepGraph& graph, const ParallelLayout& layout,
                                              const ExchangeDemand& demand) {
    // Megatron's order, innermost first: tp, cp, dp, pp for attention; etp, ep, expert-dp, pp for
    // experts.
    const int tp = layout.tensor_parallel_size, cp = layout.context_parallel_size,
              pp = layout.pipeline_parallel_size;
    const int ep = layout.expert_parallel_size, etp = layout.expert_tensor_parallel_size;
    const int ranks = graph.width * graph.replicas, first = demand.stage * ranks;
    std::vector<std::vector<int>> groups;
    // members: `size` ranks, `stride` apart, in blocks of size · stride
    const auto strided = [&](int size, int stride) {
        for (int block = 0; block < ranks; block += size * stride)
            for (int offset = 0; offset < stride; ++offset) {
                auto& group = groups.emplace_back();
                for (int i = 0; i < size; ++i) group.push_back(first + block + offset + i * stride);
            }
    };
    switch (demand.group) {
        case Group::tensor:
            strided(tp, 1);
            break;
        case Group::context:
            strided(cp, tp);
            break;
        case Group::data_context:
            strided(ranks / tp, tp);
            break;
        case Group::expert_tensor:
            strided(etp, 1);
            break;
        case Group::expert:
            strided(ep, etp);
            break;
        case Group::expert_data:
            strided(ranks / (ep * etp), ep * etp);
            break;
        case Group::next_stage:
        case Group::previous_stage: {
            const int other = demand.group == Group::next_stage ? (demand.stage + 1) % pp
                                                                : (demand.stage + pp - 1) % pp;
            for (int i = 0; i < ranks; ++i) groups.push_back({first + i, other * ranks + i});
            break;
        }
        case Group::embedding:
            for (int i = 0; i < ranks; ++i) groups.push_back({i, (pp - 1) * ranks + i});
            break;
        case Group::mirror:
            for (int i = 0; i < ranks; ++i)
                groups.push_back({first + i, (pp - 1 - demand.stage) * ranks + i});
            break;
    }
    return groups;
}

std::vector<int> domains_in_order(const std::vector<int>& ranks,
                                  const std::function<int(int)>& domain_of) {
    std::vector<int> seen, out;
    for (const int rank : ranks) {
        const int domain = domain_of(rank);
        const auto at = std::find(seen.begin(), seen.end(), domain);
        out.push_back(static_cast<int>(at - seen.begin()));
        if (at == seen.end()) seen.push_back(domain);
    }
    return out;
}

std::vector<double> all_to_all_bytes(const StepGraph& graph, const ParallelLayout& layout,
                                     const ExchangeDemand& demand, Dispatcher dispatcher,
                                     int group) {
    const int ep = layout.expert_parallel_size, etp = layout.expert_tensor_parallel_size;
    const ExpertLoads& loads = graph.loads[demand.loads];
    const int groups_in_lane = graph.width / ep;  // every replica's loads are the lane's
    const int local = group % groups_in_lane, block = local / etp, offset = local % etp;
    const auto places = static_cast<std::size_t>(ep);
    const double units = static_cast<double>(loads.units);
    const bool once = dispatcher == Dispatcher::deduplicating,
               counted = once && !loads.copies.empty();
    std::vector<double> rows(places * places);  // [sources, places]
    for (std::size_t source = 0; source < places; ++source) {
        const std::size_t w = static_cast<std::size_t>(block * ep * etp + offset) + source * etp;
        // A unit with several experts at one place travels once.
        for (std::size_t place = 0; place < places; ++place)
            rows[source * places + place] =
                counted ? loads.copies[w * places + place] : loads.traffic[w * places + place];
    }
    if (once && !counted && loads.units > 0 && loads.top_k > 1) {
        // From counts alone: k independent choices, each going there with share q, so
        // 1 − (1−q)^k of the units travel.
        std::vector<double> elsewhere(rows.size());
        for (std::size_t i = 0; i < rows.size(); ++i)
            elsewhere[i] = 1 - std::min(1.0, rows[i] / (units * loads.top_k));
        to_powers(elsewhere, loads.top_k);
        for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = units * (1 - elsewhere[i]);
    } else if (dispatcher == Dispatcher::all_gather) {
        std::fill(rows.begin(), rows.end(), units);  // every unit goes everywhere
    }
    for (std::size_t place = 0; place < places; ++place) rows[place * places + place] = 0;
    for (double& bytes : rows) bytes *= demand.payload.value;
    if (demand.to_experts) return rows;
    std::vector<double> back(rows.size());
    for (std::size_t source = 0; source < places; ++source)
        for (std::size_t place = 0; place < places; ++place)
            back[place * places + source] = rows[source * places + place];
    return back;
}

double units_to_domain(const ExpertLoads& loads, std::size_t source, int domain, int num_domains,
                       bool counted, double rows) {
    if (counted && !loads.domain_copies.empty())
        return loads.domain_copies[source * static_cast<std::size_t>(num_domains) +
                                   static_cast<std::size_t>(domain)];
    const double units = static_cast<double>(loads.units),
                 q = units > 0 ? std::min(1.0, rows / (units * loads.top_k)) : 0;
    return units * (1 - power(1 - q, loads.top_k));
}

double sm_share(const StepGraph& graph, const ExchangeDemand& demand) {
    if (demand.kind == Collective::send_recv) return 0;
    return demand.kind == Collective::all_to_all ? graph.expert_sm_share
                                                 : graph.collective_sm_share;
}

}  // namespace moeplan
