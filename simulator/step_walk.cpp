#include "simulator/step_walk.hpp"

#include <algorithm>
#include <stdexcept>

#include "simulator/walker.hpp"

namespace moeplan {

Walker::Walker(const StepGraph& graph, const JobPrices& prices, StepNetwork& network)
    : graph_(graph), prices_(prices), network_(network) {
    const std::size_t ops = graph.ops.size();
    after_.first.assign(ops + 1, 0);
    pending_.assign(ops, 0);
    for (const Edge& edge : graph.edges) {
        ++after_.first[edge.before + 1];
        ++pending_[edge.after];
    }
    for (std::size_t i = 1; i <= ops; ++i) after_.first[i] += after_.first[i - 1];
    after_.to.resize(graph.edges.size());
    auto at = after_.first;
    for (const Edge& edge : graph.edges) after_.to[at[edge.before]++] = edge.after;
    line_.begin.assign(ops, 0);
    line_.end.assign(ops, 0);
    line_.device.assign(ops, 0);
    host_.assign(static_cast<std::size_t>(graph.num_lanes), 0);
}

void Walker::begin() {
    for (std::uint32_t i = 0; i < graph_.ops.size(); ++i)
        if (pending_[i] == 0) queue_.push_back(i);
    drain();
}

void Walker::drain() {
    while (!queue_.empty()) {
        const std::uint32_t i = queue_.back();
        queue_.pop_back();
        graph_.ops[i].exchange ? exchange(i) : work(i);
    }
}

Timeline Walker::take() {
    if (resolved_ != graph_.ops.size())
        throw std::logic_error("the step's graph has a cycle: " + std::to_string(resolved_) +
                               " of " + std::to_string(graph_.ops.size()) + " ops ran");
    for (const double end : line_.end) line_.step_time = std::max(line_.step_time, end);
    return std::move(line_);
}

void Walker::resolve(std::uint32_t i) {
    ++resolved_;
    for (std::uint32_t j = after_.first[i]; j < after_.first[i + 1]; ++j) {
        const std::uint32_t next = after_.to[j];
        line_.begin[next] = std::max(line_.begin[next], line_.end[i]);
        if (--pending_[next] == 0) queue_.push_back(next);
    }
}

/// Kernels: when they end is known as soon as what they wait for is, even if that lies ahead of the
/// network's clock.
void Walker::work(std::uint32_t i) {
    const Op& op = graph_.ops[i];
    const JobPrice& price = prices_.jobs[op.demand];
    double device = price.device;
    if (!prices_.slowdown.empty()) {
        const auto& slow = prices_.slowdown[op.lane];
        double most = 0;
        for (std::size_t r = 0; r < slow.size(); ++r)
            most = std::max(most, slow[r] * (price.by_rank >= 0 ? prices_.ranks[price.by_rank][r]
                                                                : price.device));
        device = most;
    }
    if (op.under >= 0 && graph_.communication_share > 0) {
        // the exchange holds its SMs while it lasts: at most its time alone, at the remaining rate
        const double rate = 1 - graph_.communication_share,
                     lasts = network_.alone(static_cast<std::uint32_t>(op.under));
        device =
            device / rate <= lasts ? device / rate : device + lasts * graph_.communication_share;
    }
    double& host = host_[op.lane];
    const double begin = line_.begin[i];
    if (op.awaited) host = std::max(host, begin);
    if (price.sync_first > 0) host = std::max(host, begin) + price.sync_first;
    const double mixed = price.mixed > 0 ? price.mixed + (device - price.device) : 0;
    double& end = line_.end[i];
    end = std::max(begin + device, price.mixed > 0 ? host + mixed : 0.0);
    line_.device[i] = device;
    host += price.host;
    if (price.sync > 0) {
        // what follows is launched after the host has read: the device is idle meanwhile
        host = end = std::max(host, end) + price.sync;
    }
    resolve(i);
}

namespace {

/// Exchanges in an engine with a clock of its own.
class EngineWalker : public Walker {
  public:
    EngineWalker(const StepGraph& graph, const JobPrices& prices, StepNetwork& network,
                 NetworkEngine& engine)
        : Walker(graph, prices, network), engine_(engine) {}

    Timeline run() {
        begin();
        engine_.run();
        line_.carried = engine_.carried();
        const auto counts = engine_.counts();
        line_.events = counts.exchanges_finished + counts.timers_fired + counts.flows_finished;
        return take();
    }

  private:
    void exchange(std::uint32_t i) override {
        const Exchange& demand = network_.exchange(graph_.ops[i].demand);
        if (demand.stages.empty()) {
            finish(i, line_.begin[i]);
            return;
        }
        const double delay = line_.begin[i] - engine_.now().value;
        const auto start = [this, i, &demand] {
            engine_.start(demand, [this, i] {
                finish(i, std::max(line_.begin[i], engine_.now().value));
                drain();
            });
        };
        if (delay > 0)
            engine_.after(Seconds{delay}, start);
        else
            start();
    }

    NetworkEngine& engine_;
};

}  // namespace

Timeline walk_by_engine(const StepGraph& graph, const JobPrices& prices, StepNetwork& network,
                        NetworkEngine& engine) {
    return EngineWalker(graph, prices, network, engine).run();
}

Timeline walk(const StepGraph& graph, const StepCase&, const JobPrices& prices,
              StepNetwork& network, NetworkModel model) {
    Timeline line;
    if (model == NetworkModel::closed_form) {
        line = walk_by_loads(graph, prices, network);
    } else {
        const auto engine = make_engine(model, network.links());
        line = walk_by_engine(graph, prices, network, *engine);
    }
    line.model = model;
    return line;
}

}  // namespace moeplan
