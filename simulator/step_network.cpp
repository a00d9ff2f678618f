/// The exchanges of a step on the cluster's links: as flows for the flow engines, as loads alone
/// for the closed form, which needs no more.

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "core/errors.hpp"
#include "core/text.hpp"
#include "simulator/collectives/stated_efficiency.hpp"
#include "simulator/overlap.hpp"
#include "simulator/software_state.hpp"
#include "simulator/step_walk.hpp"

namespace moeplan {
namespace {

/// Of a GPU's memory bandwidth: something is always left to kernels.
constexpr double kMostTaken = 0.9;

constexpr int kGpusAtSwitch = 2;  ///< DGX-1 and -2, HGX and DGX boards since

}  // namespace

StepNetwork::StepNetwork(const StepCase& step, const StepGraph& graph)
    : step_(step),
      graph_(graph),
      links_(build_link_graph(step.cluster)),
      pxn_(software_costs(step).pxn) {
    for (const auto& [name, factor] : step.disturbances.link_faults) {
        const auto found =
            std::find_if(links_.links.begin(), links_.links.end(),
                         [&, &wanted = name](const Link& link) { return link.name == wanted; });
        if (found == links_.links.end()) {
            std::vector<std::string> names;
            for (const auto& link : links_.links) names.push_back(link.name);
            const std::string near = nearest_word(name, names);
            throw InputError("--link-fault", "", name,
                             "a link of the cluster" +
                                 (near.empty() ? ", as " + (names.empty() ? "none" : names.front())
                                               : "; did you mean " + near + "?"));
        }
        found->bandwidth *= factor;
    }
    in_training();
    made_.resize(graph.exchanges.size());
    loads_.resize(graph.exchanges.size());
    alone_.assign(graph.exchanges.size(), -1);
    memory_share_.assign(graph.exchanges.size(), -1);
}

bool StepNetwork::crosses_domains(const std::vector<int>& ranks) const {
    return std::any_of(ranks.begin(), ranks.end(), [&](int rank) {
        return links_.domain[rank] != links_.domain[ranks.front()];
    });
}

/// As of gradients where tensor or expert parallelism fills the domains: each rank has an adapter
/// beside it, and no ring passes through a domain.
bool StepNetwork::one_a_domain(const std::vector<int>& ranks) const {
    std::set<int> domains;
    for (const int rank : ranks) domains.insert(links_.domain[rank]);
    return domains.size() == ranks.size();
}

/// A ring enters a node and leaves it by one adapter. Boards put two GPUs beside each other at a PCIe
/// switch with their adapters: a group that has such a pair in a node ends there; of one that has
/// not, as of gradients under TP 2 and 4, the last GPU is far from the adapter.
bool StepNetwork::leaves_by_far_adapter(const std::vector<int>& ranks) const {
    std::set<int> switches;
    for (const int rank : ranks) {
        const int node = rank / links_.gpus_per_node, place = rank % links_.gpus_per_node;
        if (!switches.insert(node * links_.gpus_per_node + place / kGpusAtSwitch).second)
            return false;
    }
    return true;
}

/// Of the benchmarked rate, what a collective other than an all-to-all reaches beside training.
double StepNetwork::share_between_domains(const std::vector<int>& ranks) const {
    if (!crosses_domains(ranks) || one_a_domain(ranks)) return 1;
    const Calibration& calibration = step_.profile->calibration;
    const double share = calibration[Constant::collective_training];
    return !pxn_ && leaves_by_far_adapter(ranks) ? share * calibration[Constant::far_adapter]
                                                 : share;
}

/// Experts in several domains exchange over the scale-out network, of which an all-to-all beside
/// training reaches a share.
void StepNetwork::in_training() {
    const double share = step_.profile->calibration[Constant::expert_exchange];
    std::vector<int> places;
    for (int place = 0; place < step_.layout.expert_parallel_size; ++place)
        places.push_back(place * step_.layout.expert_tensor_parallel_size);
    if (share == 1 || !crosses_domains(places)) return;
    auto& efficiency =
        links_.collective_efficiency.try_emplace(std::string(name_of(Collective::all_to_all)), 1)
            .first->second;
    efficiency *= share;
}

/// On a CPU the profile has timed an all-to-all among as many ranks, in the state that a step
/// leaves memory in. An uneven one takes as long as an even one of its busiest rank's bytes.
/// @param bytes  [n, n] between the ranks of a group
std::optional<Seconds> StepNetwork::measured_all_to_all(const std::vector<double>& bytes) const {
    const auto n = static_cast<std::size_t>(std::lround(std::sqrt(double(bytes.size()))));
    if (!runs_on_cpu(step_) || n < 2) return std::nullopt;
    double most = 0;
    for (std::size_t rank = 0; rank < n; ++rank) {
        double sent = 0, received = 0;
        for (std::size_t other = 0; other < n; ++other) {
            if (other == rank) continue;
            sent += bytes[rank * n + other];
            received += bytes[other * n + rank];
        }
        most = std::max({most, sent, received});
    }
    // the curve counts a rank's own share too
    const auto priced = link_time(*step_.profile, name_of(Collective::all_to_all),
                                  Bytes{most * static_cast<double>(n) / static_cast<double>(n - 1)},
                                  static_cast<int>(n));
    return priced ? std::optional(priced->time) : std::nullopt;
}

Exchange StepNetwork::group_exchange(const ExchangeDemand& demand, const std::vector<int>& ranks,
                                     int group) const {
    CollectiveCall call;
    call.collective = demand.kind;
    call.group = ranks;
    call.bytes = demand.payload;
    if (demand.kind != Collective::all_to_all) {
        Exchange exchange = make_exchange(links_, call, step_.profile.get());
        if (const double share = share_between_domains(ranks); share != 1) {
            exchange.efficiency *= share;
            for (auto& stage : exchange.stages) stage.transfer = stage.transfer / share;
        }
        return exchange;
    }

    const int n = static_cast<int>(ranks.size());
    ExchangeDemand there = demand;
    there.to_experts = true;
    const std::vector<double> bytes =
        all_to_all_bytes(graph_, step_.layout, there, step_.schedule.dispatcher, group);
    TrafficMatrix traffic(n), once(n);
    for (std::size_t i = 0; i < bytes.size(); ++i) traffic.sent[i] = Bytes{bytes[i]};
    std::set<int> domains;
    for (const int rank : ranks) domains.insert(links_.domain[rank]);
    const bool two_level =
        step_.schedule.dispatcher == Dispatcher::deduplicating && domains.size() > 1;
    double most = 0;
    for (int s = 0; s < n; ++s) {
        double sent = 0;
        for (int d = 0; d < n; ++d) sent += traffic.at(s, d).value;
        most = std::max(most, sent);
    }
    call.bytes = Bytes{most};
    if (two_level) {
        // A unit crosses to each domain once, however many of its experts live there; then it is
        // forwarded inside.
        const ExpertLoads& loads = graph_.loads[demand.loads];
        const int ep = step_.layout.expert_parallel_size,
                  etp = step_.layout.expert_tensor_parallel_size, in_lane = graph_.width / ep;
        const int block = group % in_lane / etp, offset = group % in_lane % etp;
        const std::vector<int> domain =
            domains_in_order(ranks, [&](int rank) { return links_.domain[rank]; });
        const bool counted = domain == graph_.place_domain;
        const int num_domains = static_cast<int>(domains.size());
        for (int s = 0; s < n; ++s) {
            const int w = block * ep * etp + s * etp + offset;
            std::vector<double> rows(domains.size());
            std::vector<int> any(domains.size(), -1);
            for (int d = 0; d < n; ++d) {
                rows[domain[d]] += loads.traffic[static_cast<std::size_t>(w) * ep + d];
                any[domain[d]] = d;
            }
            for (int other = 0; other < num_domains; ++other)
                if (other != domain[s])
                    once.at(s, forwarding_rank(links_, ranks, s, any[other])) +=
                        Bytes{units_to_domain(loads, static_cast<std::size_t>(w), other,
                                              num_domains, counted, rows[other]) *
                              demand.payload.value};
        }
        call.algorithm = Algorithm::two_level;
        call.once = &once;
    }
    call.traffic = &traffic;
    Exchange exchange = make_exchange(links_, call, step_.profile.get());
    if (const auto known = measured_all_to_all(bytes))
        exchange = calibrated(std::move(exchange), *known);
    if (demand.to_experts) return exchange;
    // combine is dispatch with every arrow turned round
    std::vector<StageFlows> stages;
    for (auto& stage : exchange.stages) {
        for (auto& flow : stage.flows) std::swap(flow.source, flow.destination);
        stages.push_back({stage.latency, std::move(stage.flows)});
    }
    return make_exchange(links_, exchange.what, std::move(stages), exchange.efficiency,
                         exchange.weight, Folding::none);
}

/// Groups of a demand that differ from one another: replicas of a lane do what the lane does.
std::size_t StepNetwork::own_groups(const ExchangeDemand& demand) const {
    return demand.kind == Collective::all_to_all
               ? static_cast<std::size_t>(graph_.width / step_.layout.expert_parallel_size)
               : 1;
}

/// One of several equal groups stands for all of them if no other touches its links and none is
/// slower. Found out once for each kind of group of a stage.
/// @param make  the exchange of one group
std::vector<Exchange> StepNetwork::parts_of(
    const ExchangeDemand& demand,
    const std::function<Exchange(const std::vector<int>& ranks, int group)>& make) {
    const auto known = std::find_if(folds_.begin(), folds_.end(), [&](const Fold& f) {
        return f.kind == demand.kind && f.group == demand.group && f.stage == demand.stage;
    });
    const std::size_t kept = own_groups(demand);
    std::vector<Exchange> parts;
    if (known != folds_.end() && known->one) {
        for (std::size_t g = 0; g < kept; ++g)
            parts.push_back(make(known->groups[g], static_cast<int>(g)));
        return parts;
    }
    auto groups = exchange_groups(graph_, step_.layout, demand);
    for (std::size_t g = 0; g < groups.size(); ++g)
        parts.push_back(make(groups[g], static_cast<int>(g)));
    if (groups.size() <= kept || known != folds_.end()) return parts;
    std::set<std::uint32_t> own;
    for (std::size_t g = 0; g < kept; ++g)
        for (const auto& stage : parts[g].stages)
            for (const auto& load : stage.loads) own.insert(load.link);
    bool one = true;
    for (std::size_t g = kept; one && g < groups.size(); ++g) {
        const double mine = time_alone(parts[g % kept]).value;
        one = std::abs(time_alone(parts[g]).value - mine) <= 1e-9 * mine;
        for (const auto& stage : parts[g].stages)
            for (const auto& load : stage.loads) one = one && !own.contains(load.link);
    }
    groups.resize(kept);
    folds_.push_back({demand.kind, demand.group, demand.stage, one, std::move(groups)});
    if (one) {
        parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(kept), parts.end());
        if (!said_)
            folded_.push_back("groups that do the same on links of their own were simulated once");
        said_ = true;
    }
    return parts;
}

const Exchange& StepNetwork::exchange(std::uint32_t id) {
    if (made_[id]) return *made_[id];
    const ExchangeDemand& demand = graph_.exchanges[id];
    std::vector<Exchange> parts = parts_of(demand, [&](const std::vector<int>& ranks, int group) {
        return group_exchange(demand, ranks, group);
    });
    Exchange all = std::move(parts.front());
    if (parts.size() > 1) {
        std::vector<StageFlows> stages;
        double efficiency = all.efficiency;
        for (std::size_t p = 0; p < parts.size(); ++p) {
            const Exchange& part = p == 0 ? all : parts[p];
            efficiency = std::min(efficiency, part.efficiency);
            if (stages.size() < part.stages.size()) stages.resize(part.stages.size());
            for (std::size_t s = 0; s < part.stages.size(); ++s) {
                stages[s].latency = std::max(stages[s].latency, part.stages[s].latency);
                stages[s].flows.insert(stages[s].flows.end(), part.stages[s].flows.begin(),
                                       part.stages[s].flows.end());
            }
        }
        all = make_exchange(links_, all.what, std::move(stages), efficiency, all.weight,
                            Folding::none);
    }
    made_[id] = std::make_unique<Exchange>(std::move(all));
    return *made_[id];
}

const StepNetwork::Traffic& StepNetwork::traffic(const ExchangeDemand& demand,
                                                 const std::vector<int>& ranks, int group) {
    // dispatch and combine of the same rows follow one another
    Traffic& known = traffic_[group];
    if (known.loads == demand.loads && known.payload == demand.payload && known.ways &&
        known.stage == demand.stage)
        return known;
    auto& ways = ways_[{demand.stage, group}];
    if (!ways) ways = std::make_unique<GroupWays>(links_, ranks);
    known = {demand.loads, demand.stage, demand.payload, ways.get(), {}, {}, false};
    const int n = ways->num_ranks();
    ExchangeDemand there = demand;
    there.to_experts = true;
    const std::vector<double> bytes =
        all_to_all_bytes(graph_, step_.layout, there, step_.schedule.dispatcher, group);
    known.two_level =
        step_.schedule.dispatcher == Dispatcher::deduplicating && ways->num_domains() > 1;
    if (!known.two_level) {
        for (int s = 0; s < n; ++s)
            for (int d = 0; d < n; ++d)
                if (s != d && bytes[static_cast<std::size_t>(s) * n + d] > 0)
                    known.latency = std::max(known.latency, ways->latency(s, d));
        known.bytes = bytes;
        return known;
    }
    // as in group_exchange: once to each domain, forwarded inside
    const ExpertLoads& loads = graph_.loads[demand.loads];
    const int ep = step_.layout.expert_parallel_size,
              etp = step_.layout.expert_tensor_parallel_size, in_lane = graph_.width / ep;
    const int block = group % in_lane / etp, offset = group % in_lane % etp;
    const bool counted = ways->domains() == graph_.place_domain;
    Seconds out, in;
    known.bytes.assign(bytes.size(), 0);
    std::vector<double> rows(static_cast<std::size_t>(ways->num_domains()));
    for (int s = 0; s < n; ++s) {
        const auto source = static_cast<std::size_t>(block * ep * etp + s * etp + offset);
        std::fill(rows.begin(), rows.end(), 0.0);
        double* mine = known.bytes.data() + static_cast<std::size_t>(s) * n;
        for (int d = 0; d < n; ++d) {
            rows[ways->domain(d)] += loads.traffic[source * ep + d];
            const double part = bytes[static_cast<std::size_t>(s) * n + d];
            if (s == d || !(part > 0)) continue;
            const int via =
                ways->domain(s) == ways->domain(d) ? s : ways->forwarder(s, ways->domain(d));
            if (via == d) continue;  // it is there with what crossed once
            known.bytes[static_cast<std::size_t>(via) * n + d] += part;
            in = std::max(in, ways->latency(via, d));
        }
        for (int domain = 0; domain < ways->num_domains(); ++domain) {
            if (domain == ways->domain(s)) continue;
            const double once = units_to_domain(loads, source, domain, ways->num_domains(), counted,
                                                rows[domain]) *
                                demand.payload.value;
            if (!(once > 0)) continue;
            const int via = ways->forwarder(s, domain);
            mine[via] += once;
            out = std::max(out, ways->latency(s, via));
        }
    }
    known.latency = out + in;
    return known;
}

const Exchange& StepNetwork::loads(std::uint32_t id) {
    const ExchangeDemand& demand = graph_.exchanges[id];
    if (demand.kind != Collective::all_to_all || made_[id]) return exchange(id);
    if (loads_[id]) return *loads_[id];
    const std::vector<Exchange> parts =
        parts_of(demand, [&](const std::vector<int>& ranks, int group) {
            if (ranks.size() < 2) return Exchange{};
            const Traffic& here = traffic(demand, ranks, group);
            Exchange part;
            part.efficiency = stated_efficiency(
                links_, demand.kind, here.two_level ? Algorithm::two_level : Algorithm::direct);
            ExchangeStage& stage = part.stages.emplace_back();
            stage.latency = here.latency + links_.collective_launch;
            stage.loads = here.ways->loads(here.bytes, !demand.to_experts);
            for (const LinkLoad& load : stage.loads)
                stage.transfer =
                    std::max(stage.transfer,
                             load.bytes / (links_.links[load.link].bandwidth * part.efficiency));
            if (const auto known = measured_all_to_all(here.bytes))
                part = calibrated(std::move(part), *known);
            return part;
        });
    auto all = std::make_unique<Exchange>(parts.front());
    if (parts.size() > 1 && !all->stages.empty()) {
        ExchangeStage& stage = all->stages.front();
        std::map<std::uint32_t, Bytes> sum;
        for (const Exchange& part : parts) {
            stage.latency = std::max(stage.latency, part.stages.front().latency);
            for (const LinkLoad& load : part.stages.front().loads) sum[load.link] += load.bytes;
        }
        stage.loads.clear();
        for (const auto& [link, bytes] : sum) stage.loads.push_back({link, bytes});
        stage.transfer = Seconds{};
        for (const LinkLoad& load : stage.loads)
            stage.transfer = std::max(
                stage.transfer, load.bytes / (links_.links[load.link].bandwidth * all->efficiency));
    }
    loads_[id] = std::move(all);
    return *loads_[id];
}

double StepNetwork::alone(std::uint32_t id) {
    if (alone_[id] < 0) alone_[id] = time_alone(loads(id)).value;
    return alone_[id];
}

namespace {

/// Bytes that a rank of a collective over n sends, and likewise receives, by rings.
double bytes_each_way(Collective kind, double payload, std::size_t n) {
    const double share = n > 1 ? static_cast<double>(n - 1) / static_cast<double>(n) : 0;
    switch (kind) {
        case Collective::all_reduce:
            return 2 * share * payload;
        case Collective::all_gather:
        case Collective::reduce_scatter:
            return share * payload;
        default:
            return payload;
    }
}

}  // namespace

double StepNetwork::memory_share(std::uint32_t id) {
    if (memory_share_[id] >= 0) return memory_share_[id];
    const ExchangeDemand& demand = graph_.exchanges[id];
    double most = 0;  // sent and received by one rank
    if (demand.kind == Collective::all_to_all) {
        const int n = step_.layout.expert_parallel_size;
        for (std::size_t group = 0; group < own_groups(demand); ++group) {
            const std::vector<double> bytes =
                all_to_all_bytes(graph_, step_.layout, demand, step_.schedule.dispatcher,
                                 static_cast<int>(group));
            for (int rank = 0; rank < n; ++rank) {
                double both = 0;
                for (int other = 0; other < n; ++other)
                    both += bytes[static_cast<std::size_t>(rank) * n + other] +
                            bytes[static_cast<std::size_t>(other) * n + rank];
                most = std::max(most, both);
            }
        }
    } else {
        const auto groups = exchange_groups(graph_, step_.layout, demand);
        most = 2 * bytes_each_way(demand.kind, demand.payload.value, groups.front().size());
    }
    const double bandwidth = step_.cluster.gpu.memory_bandwidth.value, lasts = alone(id);
    return memory_share_[id] =
               bandwidth > 0 && lasts > 0 ? std::min(kMostTaken, most / bandwidth / lasts) : 0;
}

}  // namespace moeplan
