#include "simulator/network/engine.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <limits>
#include <stdexcept>

namespace moeplan {

void StagedEngine::start(const Exchange& exchange, Then then) {
    const auto id = next_exchange_++;
    ++counts_.exchanges_started;
    for (const auto& stage : exchange.stages)
        for (const LinkLoad& load : stage.loads) carried_[load.link] += load.bytes;
    playing_.emplace(id, Playing{&exchange, 0, 0, std::move(then)});
    begin_stage(id);
}

void StagedEngine::begin_stage(std::uint64_t id) {
    Playing& playing = playing_.at(id);
    if (playing.stage == playing.exchange->stages.size()) {
        after(Seconds{0},
              [this, id] { end_stage(id); });  // an exchange of nothing still ends from the loop
        return;
    }
    after(playing.exchange->stages[playing.stage].latency, [this, id] {
        Playing& at = playing_.at(id);
        const ExchangeStage& stage = at.exchange->stages[at.stage];
        at.pending = stage.flows.size();
        counts_.flows_started += stage.flows.size();
        if (stage.flows.empty())
            end_stage(id);
        else
            post(id, *at.exchange, stage);
    });
}

void StagedEngine::end_stage(std::uint64_t id) {
    Playing& playing = playing_.at(id);
    if (playing.stage + 1 < playing.exchange->stages.size()) {
        ++playing.stage;
        begin_stage(id);
        return;
    }
    Then then = std::move(playing.then);
    playing_.erase(id);
    ++counts_.exchanges_finished;
    if (then) then();
}

void StagedEngine::flow_finished(std::uint64_t id) {
    ++counts_.flows_finished;
    if (--playing_.at(id).pending == 0) end_stage(id);
}

void StagedEngine::check_complete() const {
    if (!playing_.empty() || counts_.flows_started != counts_.flows_finished)
        throw std::logic_error(fmt::format(
            "network: {} of {} flows and {} of {} exchanges finished", counts_.flows_finished,
            counts_.flows_started, counts_.exchanges_finished, counts_.exchanges_started));
}

NetworkEngine::Timer FillEngine::after(Seconds delay, Then then) {
    assert(delay.value >= 0);
    const Timer timer = next_timer_++;
    timers_.emplace(timer, std::move(then));
    due_.push({now_ + delay.value, timer});
    return timer;
}

void CollectiveEngine::post(std::uint64_t id, const Exchange& exchange,
                            const ExchangeStage& stage) {
    // Advancing at rate 1 it takes stage.transfer; a link then carries load/transfer of its
    // bandwidth.
    uses_.clear();
    for (const LinkLoad& load : stage.loads)
        uses_.push_back(
            {load.link, load.bytes / (graph_.links[load.link].bandwidth * exchange.efficiency) /
                            stage.transfer});
    links_.add(uses_, stage.transfer.value, exchange.weight, id);
}

void CollectiveEngine::finish(double time) {
    owners_.clear();
    links_.take_finished(time, owners_);
    for (const auto id : owners_) {
        counts_.flows_finished += playing_.at(id).pending;
        end_stage(id);
    }
}

namespace {

std::vector<double> bandwidths(const LinkGraph& graph) {
    std::vector<double> out;
    for (const Link& link : graph.links) out.push_back(link.bandwidth.value);
    return out;
}

}  // namespace

FluidEngine::FluidEngine(const LinkGraph& graph) : FillEngine(graph), flows_(bandwidths(graph)) {}

void FluidEngine::post(std::uint64_t id, const Exchange& exchange, const ExchangeStage& stage) {
    for (const Flow& flow : stage.flows) {
        route_.clear();
        graph_.append_route(static_cast<int>(flow.source), static_cast<int>(flow.destination),
                            route_);
        flows_.add(route_, flow.bytes.value / exchange.efficiency, exchange.weight, id);
    }
}

void FluidEngine::finish(double time) {
    owners_.clear();
    flows_.take_finished(time, owners_);
    for (const auto id : owners_) flow_finished(id);
}

void FillEngine::run() {
    while (true) {
        settle(now_);
        while (!due_.empty() && !timers_.count(due_.top().timer)) due_.pop();  // cancelled
        const double timer =
            due_.empty() ? std::numeric_limits<double>::infinity() : due_.top().time;
        const double soonest = next_finish();
        if (timer == std::numeric_limits<double>::infinity() && soonest == timer) break;
        now_ = std::max(now_, std::min(timer, soonest));
        if (soonest <= timer) {
            finish(now_);
        } else {
            // All that are due at this instant, before shares are settled again.
            while (!due_.empty() && due_.top().time <= now_) {
                const Timer id = due_.top().timer;
                due_.pop();
                const auto at = timers_.find(id);
                if (at == timers_.end()) continue;
                Then then = std::move(at->second);
                timers_.erase(at);
                ++counts_.timers_fired;
                then();
            }
        }
    }
    check_complete();
}

std::unique_ptr<NetworkEngine> make_engine(NetworkModel model, const LinkGraph& graph) {
    switch (model) {
        case NetworkModel::closed_form:
            return std::make_unique<CollectiveEngine>(graph);
        case NetworkModel::fluid:
            return std::make_unique<FluidEngine>(graph);
        case NetworkModel::simgrid:
            return make_simgrid_engine(graph);
    }
    throw std::logic_error("no such network model");
}

}  // namespace moeplan
