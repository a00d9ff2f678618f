#include "simulator/step_walk.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>

#include "core/errors.hpp"
#include "core/text.hpp"

namespace moeplan {

StepNetwork::StepNetwork(const StepCase& step, const StepGraph& graph)
    : step_(step), graph_(graph), links_(build_link_graph(step.cluster)) {
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
    made_.resize(graph.exchanges.size());
    alone_.assign(graph.exchanges.size(), -1);
}

Exchange StepNetwork::group_exchange(const ExchangeDemand& demand, const std::vector<int>& ranks,
                                     int group) const {
    CollectiveCall call;
    call.collective = demand.kind;
    call.group = ranks;
    call.bytes = demand.payload;
    if (demand.kind != Collective::all_to_all)
        return make_exchange(links_, call, step_.profile.get());

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
        for (int s = 0; s < n; ++s) {
            const int w = block * ep * etp + s * etp + offset;
            for (const int domain : domains) {
                if (domain == links_.domain[ranks[s]]) continue;
                double rows = 0;
                int any = -1;
                for (int d = 0; d < n; ++d)
                    if (links_.domain[ranks[d]] == domain)
                        rows += loads.traffic[static_cast<std::size_t>(w) * ep + d], any = d;
                const double units = static_cast<double>(loads.units),
                             q = units > 0 ? std::min(1.0, rows / (units * loads.top_k)) : 0;
                once.at(s, forwarding_rank(links_, ranks, s, any)) +=
                    Bytes{units * (1 - std::pow(1 - q, loads.top_k)) * demand.payload.value};
            }
        }
        call.algorithm = Algorithm::two_level;
        call.once = &once;
    }
    call.traffic = &traffic;
    Exchange exchange = make_exchange(links_, call, step_.profile.get());
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

const Exchange& StepNetwork::exchange(std::uint32_t id) {
    if (made_[id]) return *made_[id];
    const ExchangeDemand& demand = graph_.exchanges[id];
    const auto groups = exchange_groups(graph_, step_.layout, demand);
    const std::size_t kept =
        demand.kind == Collective::all_to_all
            ? static_cast<std::size_t>(graph_.width / step_.layout.expert_parallel_size)
            : 1;
    std::vector<Exchange> parts;
    for (std::size_t g = 0; g < std::min(kept, groups.size()); ++g)
        parts.push_back(group_exchange(demand, groups[g], static_cast<int>(g)));
    if (groups.size() > kept) {
        // One of several equal groups stands for all of them if no other touches its links and none
        // is slower.
        const auto known = std::find_if(folds_.begin(), folds_.end(), [&](const Fold& f) {
            return f.kind == demand.kind && f.group == demand.group && f.stage == demand.stage;
        });
        bool one = known != folds_.end() && known->one;
        if (known == folds_.end() || !one)
            for (std::size_t g = kept; g < groups.size(); ++g)
                parts.push_back(group_exchange(demand, groups[g], static_cast<int>(g)));
        if (known == folds_.end()) {
            std::set<std::uint32_t> own;
            for (std::size_t g = 0; g < kept; ++g)
                for (const auto& stage : parts[g].stages)
                    for (const auto& load : stage.loads) own.insert(load.link);
            one = true;
            for (std::size_t g = kept; one && g < groups.size(); ++g) {
                const double mine = time_alone(parts[g % kept]).value;
                one = std::abs(time_alone(parts[g]).value - mine) <= 1e-9 * mine;
                for (const auto& stage : parts[g].stages)
                    for (const auto& load : stage.loads) one = one && !own.contains(load.link);
            }
            folds_.push_back({demand.kind, demand.group, demand.stage, one});
        }
        if (one) {
            parts.resize(kept);
            if (!said_)
                folded_.push_back(
                    "groups that do the same on links of their own were simulated once");
            said_ = true;
        }
    }
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

double StepNetwork::alone(std::uint32_t id) {
    if (alone_[id] < 0) alone_[id] = time_alone(exchange(id)).value;
    return alone_[id];
}

namespace {

struct Links {
    std::vector<std::uint32_t> first, to;
};
Links successors(const StepGraph& graph) {
    Links out;
    out.first.assign(graph.ops.size() + 1, 0);
    for (const Edge& edge : graph.edges) ++out.first[edge.before + 1];
    for (std::size_t i = 1; i < out.first.size(); ++i) out.first[i] += out.first[i - 1];
    out.to.resize(graph.edges.size());
    auto at = out.first;
    for (const Edge& edge : graph.edges) out.to[at[edge.before]++] = edge.after;
    return out;
}

class Walker {
  public:
    Walker(const StepGraph& graph, const JobPrices& prices, StepNetwork& network,
           NetworkEngine& engine)
        : graph_(graph),
          prices_(prices),
          network_(network),
          engine_(engine),
          after_(successors(graph)) {
        pending_.assign(graph.ops.size(), 0);
        for (const Edge& edge : graph.edges) ++pending_[edge.after];
        line_.begin.assign(graph.ops.size(), 0);
        line_.end.assign(graph.ops.size(), 0);
        line_.device.assign(graph.ops.size(), 0);
        host_.assign(graph.num_lanes, 0);
    }

    Timeline run() {
        for (std::uint32_t i = 0; i < graph_.ops.size(); ++i)
            if (pending_[i] == 0) queue_.push_back(i);
        drain();
        engine_.run();
        if (resolved_ != graph_.ops.size())
            throw std::logic_error("the step's graph has a cycle: " + std::to_string(resolved_) +
                                   " of " + std::to_string(graph_.ops.size()) + " ops ran");
        for (const double end : line_.end) line_.step_time = std::max(line_.step_time, end);
        line_.carried = engine_.carried();
        const auto counts = engine_.counts();
        line_.events = counts.exchanges_finished + counts.timers_fired + counts.flows_finished;
        return std::move(line_);
    }

  private:
    void drain() {
        while (!queue_.empty()) {
            const std::uint32_t i = queue_.back();
            queue_.pop_back();
            graph_.ops[i].exchange ? exchange(i) : work(i);
        }
    }
    void resolve(std::uint32_t i) {
        ++resolved_;
        for (std::uint32_t j = after_.first[i]; j < after_.first[i + 1]; ++j) {
            const std::uint32_t next = after_.to[j];
            line_.begin[next] = std::max(line_.begin[next], line_.end[i]);
            if (--pending_[next] == 0) queue_.push_back(next);
        }
    }
    /// Kernels: when they end is known as soon as what they wait for is, even if that lies ahead of
    /// the engine's clock.
    void work(std::uint32_t i) {
        const Op& op = graph_.ops[i];
        const JobPrice& price = prices_.jobs[op.demand];
        double device = price.device;
        if (!prices_.slowdown.empty()) {
            const auto& slow = prices_.slowdown[op.lane];
            double most = 0;
            for (std::size_t r = 0; r < slow.size(); ++r)
                most =
                    std::max(most, slow[r] * (price.by_rank >= 0 ? prices_.ranks[price.by_rank][r]
                                                                 : price.device));
            device = most;
        }
        if (op.under >= 0 && graph_.communication_share > 0) {
            // the exchange holds its SMs while it lasts: at most its time alone, at the remaining
            // rate
            const double rate = 1 - graph_.communication_share,
                         lasts = network_.alone(static_cast<std::uint32_t>(op.under));
            device = device / rate <= lasts ? device / rate
                                            : device + lasts * graph_.communication_share;
        }
        double& host = host_[op.lane];
        const double begin = line_.begin[i];
        const double mixed = price.mixed > 0 ? price.mixed + (device - price.device) : 0;
        line_.end[i] = std::max(begin + device, price.mixed > 0 ? host + mixed : 0.0);
        line_.device[i] = device;
        host += price.host;
        if (price.sync > 0) host = std::max(host, line_.end[i]) + price.sync;
        resolve(i);
    }
    void exchange(std::uint32_t i) {
        const Exchange& demand = network_.exchange(graph_.ops[i].demand);
        if (demand.stages.empty()) {
            line_.end[i] = line_.begin[i];
            resolve(i);
            return;
        }
        const double delay = line_.begin[i] - engine_.now().value;
        const auto start = [this, i, &demand] {
            engine_.start(demand, [this, i] {
                line_.end[i] = std::max(line_.begin[i], engine_.now().value);
                line_.device[i] = line_.end[i] - line_.begin[i];
                resolve(i);
                drain();
            });
        };
        if (delay > 0)
            engine_.after(Seconds{delay}, start);
        else
            start();
    }

    const StepGraph& graph_;
    const JobPrices& prices_;
    StepNetwork& network_;
    NetworkEngine& engine_;
    Links after_;
    std::vector<std::uint32_t> pending_, queue_;
    std::vector<double> host_;  // [lanes] when the host has issued all so far
    std::size_t resolved_ = 0;
    Timeline line_;
};

}  // namespace

Timeline walk(const StepGraph& graph, const StepCase&, const JobPrices& prices,
              StepNetwork& network, NetworkModel model) {
    const auto engine = make_engine(model, network.links());
    Timeline line = Walker(graph, prices, network, *engine).run();
    line.model = model;
    return line;
}

}  // namespace moeplan
