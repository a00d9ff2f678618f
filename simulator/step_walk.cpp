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
    lanes_.resize(static_cast<std::size_t>(graph.num_lanes));
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

/// Of the slowest rank of the lane.
double Walker::device_of(const Op& op, const JobPrice& price) const {
    if (prices_.slowdown.empty()) return price.device;
    const auto& slow = prices_.slowdown[op.lane];
    double most = 0;
    for (std::size_t r = 0; r < slow.size(); ++r)
        most = std::max(most, slow[r] * (price.by_rank >= 0 ? prices_.ranks[price.by_rank][r]
                                                            : price.device));
    return most;
}

/// @return how long it takes with the device to itself
double Walker::begin_job(Lane& lane, std::uint32_t i, double device) {
    const JobPrice& price = prices_.jobs[graph_.ops[i].demand];
    const double begin = line_.begin[i];
    if (graph_.ops[i].awaited) lane.host = std::max(lane.host, begin);
    if (price.sync_first > 0) lane.host = std::max(lane.host, begin) + price.sync_first;
    if (!(price.mixed > 0)) return device;
    return std::max(device, lane.host + price.mixed + (device - price.device) - begin);
}

void Walker::end_job(Lane& lane, std::uint32_t i) {
    const JobPrice& price = prices_.jobs[graph_.ops[i].demand];
    double& end = line_.end[i];
    lane.host += price.host;
    if (price.sync > 0) {
        // what follows is launched after the host has read: the device is idle meanwhile
        lane.host = end = std::max(lane.host, end) + price.sync;
    }
    resolve(i);
}

/// Kernels: when they end is known as soon as what they wait for is, even if that lies ahead of the
/// network's clock; unless an exchange may run beside them.
void Walker::work(std::uint32_t i) {
    const Op& op = graph_.ops[i];
    Lane& lane = lanes_[op.lane];
    if (op.beside) {
        lane.job = i;
        lane.running = false;
        call_at(line_.begin[i], op.lane, ++lane.version);
        return;
    }
    double device = device_of(op, prices_.jobs[op.demand]);
    if (op.under >= 0) {
        // the exchange holds its SMs while it lasts: at most its time alone, at the remaining rate
        const auto demand = static_cast<std::uint32_t>(op.under);
        const double share = sm_share(graph_, graph_.exchanges[demand]), rate = 1 - share,
                     lasts = network_.alone(demand);
        device = device / rate <= lasts ? device / rate : device + lasts * share;
    }
    line_.device[i] = device;
    line_.end[i] = line_.begin[i] + begin_job(lane, i, device);
    end_job(lane, i);
}

void Walker::due(double now, std::uint32_t at, std::uint32_t version) {
    Lane& lane = lanes_[at];
    if (version != lane.version) return;
    const std::uint32_t i = lane.job;
    if (!lane.running) {
        const Op& op = graph_.ops[i];
        lane.device = device_of(op, prices_.jobs[op.demand]);
        lane.all = lane.left = begin_job(lane, i, lane.device);
        lane.running = true;
        lane.since = now;
        time_anew(at, now);
        return;
    }
    lane.running = false;
    line_.end[i] = now;
    // what the others took it was at work, too
    line_.device[i] = std::max(0.0, now - line_.begin[i] - (lane.all - lane.device));
    end_job(lane, i);
}

/// A kernel slows by what bounds it: with a share s of the SMs gone, products take 1/(1 − s) as
/// long; with a share h of the memory bandwidth gone, streaming takes 1/(1 − h). Where the device
/// waits for launches it loses nothing.
double Walker::rate_of(const Lane& lane) const {
    if (lane.exchanges == 0 || !(lane.all > 0)) return 1;
    constexpr double kMost = 0.9;  // something is always left to kernels
    const double streamed = prices_.jobs[graph_.ops[lane.job].demand].streamed,
                 slower = (1 - streamed) / (1 - std::min(kMost, lane.sms)) +
                          streamed / (1 - std::min(kMost, lane.memory)),
                 working = lane.device / lane.all;
    return 1 / (1 - working + working * slower);
}

void Walker::time_anew(std::uint32_t at, double now) {
    Lane& lane = lanes_[at];
    if (!lane.running) return;
    lane.left = std::max(0.0, lane.left - (now - lane.since) * lane.rate);
    lane.since = now;
    lane.rate = rate_of(lane);
    call_at(now + lane.left / lane.rate, at, ++lane.version);
}

void Walker::hold(std::uint32_t i, double now) {
    const Op& op = graph_.ops[i];
    Lane& lane = lanes_[op.lane];
    ++lane.exchanges;
    lane.sms += sm_share(graph_, graph_.exchanges[op.demand]);
    lane.memory += network_.memory_share(op.demand);
    time_anew(op.lane, now);
}

void Walker::release(std::uint32_t i, double now) {
    const Op& op = graph_.ops[i];
    Lane& lane = lanes_[op.lane];
    if (--lane.exchanges == 0) {
        lane.sms = lane.memory = 0;
    } else {
        lane.sms -= sm_share(graph_, graph_.exchanges[op.demand]);
        lane.memory -= network_.memory_share(op.demand);
    }
    time_anew(op.lane, now);
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
            finish(i, met(i));
            return;
        }
        const double delay = met(i) - engine_.now().value;
        const auto start = [this, i, &demand] {
            if (graph_.ops[i].beside) hold(i, std::max(line_.begin[i], engine_.now().value));
            engine_.start(demand, [this, i] {
                const double now = std::max(line_.begin[i], engine_.now().value);
                if (graph_.ops[i].beside) release(i, now);
                finish(i, now);
                drain();
            });
        };
        if (delay > 0)
            engine_.after(Seconds{delay}, start);
        else
            start();
    }
    void call_at(double time, std::uint32_t lane, std::uint32_t version) override {
        engine_.after(Seconds{std::max(0.0, time - engine_.now().value)},
                      [this, time, lane, version] {
                          due(time, lane, version);
                          drain();
                      });
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
