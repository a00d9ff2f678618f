/// From begin and end of every op to what a person asks: where the time goes, and what would reduce
/// it.

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "core/version.hpp"
#include "model/check.hpp"
#include "model/op_counts.hpp"
#include "simulator/interval.hpp"
#include "simulator/report/critical_path.hpp"
#include "simulator/report/losses.hpp"
#include "simulator/report/memory_over_time.hpp"
#include "simulator/report/pictures.hpp"
#include "simulator/software_state.hpp"
#include "simulator/step_walk.hpp"

namespace moeplan {
namespace {

constexpr std::size_t kLinksListed = 32;  ///< the busiest; a cluster has tens of thousands

std::vector<Seconds> rank_busy(const StepCase& step, const StepGraph& graph,
                               const JobPrices& prices, const Timeline& line) {
    const auto width = static_cast<std::size_t>(graph.width);
    std::vector<double> lanes(static_cast<std::size_t>(graph.num_lanes) * width, 0);
    std::vector<double> alike(static_cast<std::size_t>(graph.num_lanes), 0);  // for every rank
    for (std::size_t i = 0; i < graph.ops.size(); ++i) {
        const Op& op = graph.ops[i];
        if (op.exchange) continue;
        const JobPrice& price = prices.jobs[op.demand];
        const double times = line.times(i, op.lane);
        if (prices.slowdown.empty()) {
            const double stolen = line.device[i] - price.device;
            alike[op.lane] += (price.by_rank >= 0 ? stolen : line.device[i]) * times;
            if (price.by_rank < 0) continue;
        }
        for (std::size_t r = 0; r < width; ++r) {
            const double slow = prices.slowdown.empty() ? 1 : prices.slowdown[op.lane][r];
            const double alone = price.by_rank >= 0 ? prices.ranks[price.by_rank][r] : price.device;
            lanes[op.lane * width + r] += alone * slow * times;
        }
    }
    for (std::size_t i = 0; i < lanes.size(); ++i) lanes[i] += alike[i / width];
    const int stage_ranks = graph.width * graph.replicas;
    std::vector<Seconds> busy(static_cast<std::size_t>(world_size(step.layout)));
    for (std::size_t rank = 0; rank < busy.size(); ++rank)
        busy[rank] =
            Seconds{lanes[rank / stage_ranks * graph.width + rank % stage_ranks % graph.width]};
    return busy;
}

std::vector<LinkUse> link_use(const StepNetwork& network, const Timeline& line) {
    std::vector<LinkUse> uses;
    for (std::size_t l = 0; l < line.carried.size(); ++l)
        if (line.carried[l].value > 0 && line.step_time > 0)
            uses.push_back(
                {network.links().links[l].name,
                 line.carried[l].value / network.links().links[l].bandwidth.value / line.step_time,
                 line.carried[l]});
    std::stable_sort(uses.begin(), uses.end(),
                     [](const LinkUse& a, const LinkUse& b) { return a.busy > b.busy; });
    if (uses.size() > kLinksListed) uses.resize(kLinksListed);
    return uses;
}

BasisShare basis_shares(const StepGraph& graph, const JobPrices& prices, const Timeline& line) {
    std::vector<double> times(prices.jobs.size(), 0);
    for (std::size_t i = 0; i < graph.ops.size(); ++i)
        if (!graph.ops[i].exchange) times[graph.ops[i].demand] += line.times(i, graph.ops[i].lane);
    std::array<double, 4> seconds{};
    for (std::size_t job = 0; job < times.size(); ++job)
        for (std::size_t b = 0; b < 4; ++b) seconds[b] += prices.jobs[job].by_basis[b] * times[job];
    const double all = std::accumulate(seconds.begin(), seconds.end(), 0.0);
    if (all <= 0) return {0, 0, 0, 1};
    return {seconds[0] / all, seconds[1] / all, seconds[2] / all, seconds[3] / all};
}

FlopsPerSecond peak_of(const StepCase& step) {
    const auto find = [&](const std::map<Precision, FlopsPerSecond>& peaks) -> FlopsPerSecond {
        for (const Precision p :
             {step.schedule.precision, Precision::bf16, Precision::fp16, Precision::fp32})
            if (const auto found = peaks.find(p); found != peaks.end() && found->second.value > 0)
                return found->second;
        return {};
    };
    // The faster of what the cluster states and what the kernels ran at: fp32 products run in TF32
    // on tensor cores, and a share of the plain fp32 rate would exceed 1.
    return std::max(find(step.cluster.gpu.peak), find(step.profile->roofline.peak));
}

/// Tokens a second, and the share of the peak that their model flops are.
void add_speed(StepReport& out, const StepCase& step, const Timeline& line) {
    const auto& schedule = step.schedule;
    const double tokens = static_cast<double>(schedule.sequence_length) *
                          schedule.micro_batch_size * schedule.num_micro_batches *
                          step.layout.data_parallel_size;
    if (line.step_time > 0) {
        out.tokens_per_second = tokens / line.step_time;
        const double peak = peak_of(step).value * world_size(step.layout);
        if (peak > 0)
            out.mfu =
                flops_per_token(step.model, schedule.sequence_length).training_causal_half.value *
                tokens / (peak * line.step_time);
    }
}

/// Of every rank, as the memory model has it with the hottest layer's routing.
void add_memory(StepReport& out, const StepCase& step, const StepGraph& graph,
                const Timeline& line) {
    double hot = 1;
    for (const double imbalance : graph.load_imbalance) hot = std::max(hot, imbalance);
    const auto memory =
        memory_by_stage(step.model, step.layout, step.schedule, hot, expert_copies(step));
    const int stage_ranks = graph.width * graph.replicas;
    out.peak_memory.assign(static_cast<std::size_t>(world_size(step.layout)), Bytes{0});
    for (std::size_t rank = 0; rank < out.peak_memory.size(); ++rank)
        if (rank / stage_ranks < memory.size())
            out.peak_memory[rank] = memory[rank / stage_ranks].total();
    out.memory_by_rank = memory_over_time(graph, line, memory);
}

/// What the report takes for granted, and what was simulated once for many.
void add_notes(StepReport& out, const StepCase& step, const StepGraph& graph, const Timeline& line,
               const StepNetwork& network) {
    out.assumptions = graph.assumptions;
    out.assumptions.push_back(
        "mfu counts model flops with causal attention halved, no recomputation, over the peak of " +
        std::string(name_of(step.schedule.precision)));
    if (out.basis.roofline > 0.005)
        out.assumptions.push_back(
            "kernels without a measured or published curve are priced by the datasheet's roofline "
            "with a stated efficiency (" +
            std::to_string(static_cast<int>(std::lround(out.basis.roofline * 100))) +
            " % of kernel time, profile " + step.profile->name + ")");
    if (step.profile->host_overlap > 0) {
        const SoftwareCosts software = software_costs(step);
        const std::string& framework = step.schedule.software.framework;
        out.assumptions.push_back(
            "launches, waits and fusion as of the software state " + software.name +
            (software.assumed ? framework.empty() ? " (no framework was named)"
                                                  : " (no state names " + framework + ")"
                              : ""));
    }
    if (graph.load_imbalance.size() > 0 && step.schedule.precision != Precision::fp32 &&
        step.layout.expert_parallel_size > 1)
        out.assumptions.push_back("tokens travel to experts in two bytes an element");
    out.folded = graph.folded;
    out.folded.insert(out.folded.end(), network.folded().begin(), network.folded().end());
    if (line.repeats.times > 0)
        out.folded.push_back("micro-batches that all do the same: " +
                             std::to_string(step.schedule.num_micro_batches) +
                             " of them, walked until the pipeline repeats itself");
    if (out.fidelity == Fidelity::flow && line.model == NetworkModel::fluid)
        out.folded.push_back(
            "flows were shared by our own fluid solver: too many for SimGrid's bookkeeping");
}

}  // namespace

StepReport report(const StepCase& step, const StepGraph& graph, const JobPrices& prices,
                  const Timeline& line, StepNetwork& network, Fidelity fidelity) {
    StepReport out;
    out.fidelity = fidelity;
    out.step_time = Seconds{line.step_time};
    const int lane = busiest_lane(graph, line);
    out.exposed = exposed_parts(graph, line, lane);
    out.busy = busy_parts(graph, prices, line, lane, out.exposed);

    add_speed(out, step, line);
    add_memory(out, step, graph, line);
    out.busy_by_rank = rank_busy(step, graph, prices, line);
    out.link_use = link_use(network, line);
    out.losses = losses(step, graph, prices, line, lane, out.exposed);
    out.load_imbalance = graph.load_imbalance;
    out.basis = basis_shares(graph, prices, line);

    add_notes(out, step, graph, line, network);
    if (const ErrorBand* band = errors_of(step))
        out.interval = interval_of(out.step_time, *band, std::nullopt);
    out.made = {kVersion, digest_of(step), step.seed};
    if (step.keep_timeline) {
        out.timeline = timeline_bars(graph, prices, line, out.busy_by_rank);
        out.link_history = link_history(graph, line, network);
    }
    return out;
}

}  // namespace moeplan
