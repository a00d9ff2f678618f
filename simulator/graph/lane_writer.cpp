#include "simulator/graph/lane_writer.hpp"

#include <algorithm>
#include <cassert>
#include <optional>

namespace moeplan {

// ---------------------------------------------------------------------------------------------
// ops

std::uint32_t LaneWriter::job(std::uint32_t work, std::int32_t loads) {
    const auto key = std::make_pair(work, loads);
    const auto [at, fresh] =
        job_ids_.try_emplace(key, static_cast<std::uint32_t>(graph_.jobs.size()));
    if (fresh) graph_.jobs.push_back({work, loads});
    return at->second;
}

std::uint32_t LaneWriter::exchange_id(const ExchangeDemand& demand) {
    const auto key = std::make_tuple(static_cast<int>(demand.kind), static_cast<int>(demand.group),
                                     static_cast<int>(demand.stage), demand.payload.value,
                                     demand.loads, demand.to_experts);
    const auto [at, fresh] =
        exchange_ids_.try_emplace(key, static_cast<std::uint32_t>(graph_.exchanges.size()));
    if (fresh) graph_.exchanges.push_back(demand);
    return at->second;
}

std::uint32_t LaneWriter::add_op(LaneState& state, Op op,
                                 const std::vector<std::uint32_t>& before) {
    const auto id = static_cast<std::uint32_t>(graph_.ops.size());
    graph_.ops.push_back(op);
    auto& tail = state.tail[static_cast<int>(op.stream)];
    for (const std::uint32_t b : before)
        if (b != kNoOp && b != tail) graph_.edges.push_back({b, id});
    if (tail != kNoOp) graph_.edges.push_back({tail, id});
    tail = id;
    mark_company(state, id, before);
    return id;
}

/// Marks jobs and exchanges of a lane that may run at the same time. Some that are marked never
/// meet, which only costs the walk some events.
void LaneWriter::mark_company(LaneState& state, std::uint32_t id,
                              const std::vector<std::uint32_t>& before) {
    if (!graph_.exact_overlap) return;
    Op& op = graph_.ops[id];
    if (!op.exchange) {
        // what it waits for is over, and what went before that on the same stream
        for (const std::uint32_t b : before)
            if (b != kNoOp && graph_.ops[b].exchange)
                std::erase_if(state.open, [&](std::uint32_t x) {
                    return x <= b && graph_.ops[x].stream == graph_.ops[b].stream;
                });
        op.beside = !state.open.empty();
        for (const std::uint32_t x : state.open) graph_.ops[x].beside = true;
        return;
    }
    if (!(sm_share(graph_, graph_.exchanges[op.demand]) > 0)) return;
    state.open.push_back(id);
    // jobs since what it waits for: it may start while they run
    std::uint32_t since = graph_.slots.empty() ? id : graph_.slots.back().front();
    for (const std::uint32_t b : before)
        if (b != kNoOp) since = std::max(since, b + 1);
    for (std::uint32_t i = since; i < id; ++i)
        if (!graph_.ops[i].exchange) graph_.ops[i].beside = op.beside = true;
}

std::uint32_t LaneWriter::exchange(LaneState& state, ExchangeDemand demand, Stream stream,
                                   Part part, Phase phase, int layer, int micro_batch,
                                   const std::vector<std::uint32_t>& before) {
    demand.stage = static_cast<std::uint16_t>(state.lane);
    Op op;
    op.lane = demand.stage;
    op.layer = static_cast<std::uint16_t>(layer);
    op.micro_batch = static_cast<std::uint16_t>(micro_batch);
    op.phase = phase;
    op.stream = stream;
    op.part = part;
    op.exchange = true;
    op.demand = exchange_id(demand);
    return add_op(state, op, before);
}

// ---------------------------------------------------------------------------------------------
// messages between stages

void LaneWriter::receive(LaneState& state, std::uint32_t op) {
    if (state.message) receives_.emplace_back(op, state.message);
    state.message = nullptr;
}

void LaneWriter::hand_over(LaneState& state, std::uint32_t& sent) {
    sent = state.message ? *state.message : state.last;  // a chunk without layers passes it on
    state.message = nullptr;
}

void LaneWriter::connect_messages() {
    for (const auto& [receiver, send] : receives_) {
        assert(*send != kNoOp);
        graph_.edges.push_back({*send, receiver});
    }
}

void LaneWriter::meet_before(int lane, std::uint32_t one, std::uint32_t other,
                             ExchangeDemand demand, Part part) {
    Op op;
    op.lane = static_cast<std::uint16_t>(lane);
    op.phase = Phase::backward;
    op.stream = Stream::data;
    op.part = part;
    op.exchange = true;
    demand.stage = op.lane;
    op.demand = exchange_id(demand);
    const auto id = static_cast<std::uint32_t>(graph_.ops.size());
    const std::size_t edges = graph_.edges.size();
    graph_.ops.push_back(op);
    for (std::size_t i = 0; i < edges; ++i)
        if (graph_.edges[i].after == one || graph_.edges[i].after == other)
            graph_.edges.push_back({graph_.edges[i].before, id});
    graph_.edges.push_back({id, one});
    graph_.edges.push_back({id, other});
}

// ---------------------------------------------------------------------------------------------
// passes

LaneWriter::Running LaneWriter::begin(const LaneState& state, const LayerPass& pass, int layer,
                                      int moe_layer, int micro_batch) {
    Running run{&pass, layer, moe_layer, micro_batch, state.last, {}};
    run.ids.reserve(pass.items.size());
    return run;
}

void LaneWriter::add_item(LaneState& state, Running& run) {
    const PassItem& item = run.pass->items[run.ids.size()];
    std::vector<std::uint32_t> before;
    for (const int b : item.after) before.push_back(b < 0 ? run.entry : run.ids[b]);
    if (!item.exchange && !state.wait.empty()) {
        before.insert(before.end(), state.wait.begin(), state.wait.end());
        state.wait.clear();
    }
    const std::int32_t loads =
        run.moe_layer >= 0 && item.routed ? loads_.of(run.moe_layer, run.micro_batch) : -1;
    if (item.exchange) {
        ExchangeDemand demand = item.demand;
        demand.loads = loads;
        run.ids.push_back(exchange(state, demand, item.stream, item.part, item.phase, run.layer,
                                   run.micro_batch, before));
        return;
    }
    Op op;
    op.lane = static_cast<std::uint16_t>(state.lane);
    op.layer = static_cast<std::uint16_t>(run.layer);
    op.micro_batch = static_cast<std::uint16_t>(run.micro_batch);
    op.phase = item.phase;
    op.part = graph_.works[item.work].part;
    op.demand = job(item.work, loads);
    if (!graph_.exact_overlap)
        op.under = item.under >= 0
                       ? static_cast<std::int32_t>(graph_.ops[run.ids[item.under]].demand)
                       : state.under;
    if (item.under < 0) state.under = -1;
    run.ids.push_back(add_op(state, op, before));
    receive(state, run.ids.back());
}

void LaneWriter::end(LaneState& state, const Running& run) {
    if (!run.ids.empty()) {
        // What follows the pass waits for its last item, and for any of its exchanges that nothing
        // in it waited for.
        state.last = run.ids.back();
        if (run.pass->items.back().exchange) state.wait.push_back(run.ids.back());
    }
    state.pass_ends.push_back(state.last);
}

void LaneWriter::write(LaneState& state, const LayerPass& pass, int layer, int moe_layer,
                       int micro_batch) {
    Running run = begin(state, pass, layer, moe_layer, micro_batch);
    while (!run.done()) add_item(state, run);
    end(state, run);
}

// ---------------------------------------------------------------------------------------------
// programs

void LaneWriter::run(LaneState& state, const Program& program) {
    state.message = program.message;
    for (const ProgramStep& step : program.steps)
        if (step.pass)
            write(state, *step.pass, step.layer, step.moe_layer, program.micro_batch);
        else
            step.other(state);
}

struct LaneWriter::Track {
    const Program* program;
    std::uint32_t last;  // what the lane's state has of these while this program is at work
    std::vector<std::uint32_t> wait;
    const std::uint32_t* message;
    std::size_t step = 0;
    std::optional<Running> running;
    bool done() const { return step == program->steps.size(); }
    void swap_with(LaneState& state) {
        std::swap(state.last, last);
        std::swap(state.wait, wait);
        std::swap(state.message, message);
    }
};

/// On to the next exchange among experts, or to the end.
void LaneWriter::go_on(LaneState& state, Track& track) {
    for (bool travels = false; !travels && !track.done();) {
        const ProgramStep& step = track.program->steps[track.step];
        if (!step.pass) {
            step.other(state);
            ++track.step;
            continue;
        }
        if (!track.running)
            track.running =
                begin(state, *step.pass, step.layer, step.moe_layer, track.program->micro_batch);
        if (!track.running->done()) {
            add_item(state, *track.running);
            const Op& op = graph_.ops[track.running->ids.back()];
            travels = op.exchange && op.stream == Stream::expert;
        }
        if (track.running->done()) {
            end(state, *track.running);
            track.running.reset();
            ++track.step;
        }
    }
}

void LaneWriter::take_turns(LaneState& state, const Program& one, const Program& other) {
    std::array<Track, 2> tracks = {
        Track{&one, state.last, std::move(state.wait), one.message, 0, {}},
        Track{&other, state.last, {}, other.message, 0, {}}};
    state.wait.clear();
    for (int turn = 0; !tracks[0].done() || !tracks[1].done(); turn = 1 - turn) {
        tracks[turn].swap_with(state);
        go_on(state, tracks[turn]);
        tracks[turn].swap_with(state);
    }
    state.last = tracks[1].last;
    for (const Track& track : tracks)
        state.wait.insert(state.wait.end(), track.wait.begin(), track.wait.end());
}

}  // namespace moeplan
