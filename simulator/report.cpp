/// From begin and end of every op to what a person asks: where the time goes, and what would reduce
/// it.

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "core/quantity_text.hpp"
#include "core/version.hpp"
#include "model/check.hpp"
#include "model/op_counts.hpp"
#include "simulator/interval.hpp"
#include "simulator/step_fields.hpp"
#include "simulator/software_state.hpp"
#include "simulator/step_walk.hpp"

namespace moeplan {
namespace {

constexpr std::size_t kLinksListed = 32;  ///< the busiest; a cluster has tens of thousands
constexpr int kLossesListed = 3;

struct Before {
    std::vector<std::uint32_t> first, from;
};
Before predecessors(const StepGraph& graph) {
    Before out;
    out.first.assign(graph.ops.size() + 1, 0);
    for (const Edge& edge : graph.edges) ++out.first[edge.after + 1];
    for (std::size_t i = 1; i < out.first.size(); ++i) out.first[i] += out.first[i - 1];
    out.from.resize(graph.edges.size());
    auto at = out.first;
    for (const Edge& edge : graph.edges) out.from[at[edge.after]++] = edge.before;
    return out;
}

/// Mean over a lane's ranks of the time its kernels take.
std::vector<double> lane_busy(const StepGraph& graph, const Timeline& line) {
    std::vector<double> busy(graph.num_lanes, 0);
    for (std::size_t i = 0; i < graph.ops.size(); ++i)
        if (!graph.ops[i].exchange)
            busy[graph.ops[i].lane] += line.device[i] * line.times(i, graph.ops[i].lane);
    return busy;
}

/// The stage whose kernels take longest, for which the others wait; the first of those that differ
/// by no more than sums round.
int busiest_lane(const StepGraph& graph, const Timeline& line) {
    const auto busy = lane_busy(graph, line);
    const double most = *std::max_element(busy.begin(), busy.end()) * (1 - 1e-12);
    return static_cast<int>(
        std::find_if(busy.begin(), busy.end(), [&](double lane) { return lane >= most; }) -
        busy.begin());
}

/// How many seconds of the step an interval of the walk stands for: more where the walk shows one
/// period for many.
class Stretch {
  public:
    Stretch(const StepGraph& graph, const Timeline& line, int lane) : times_(line.repeats.times) {
        if (times_ == 0) return;
        // up to its last kernel: messages after it may last into what follows the last period
        std::uint32_t last = line.repeats.ops[static_cast<std::size_t>(lane)].second - 1;
        while (graph.ops[last].exchange) --last;
        to_ = line.end[last];
        from_ = to_ - line.repeats.period;
    }
    double operator()(double begin, double end) const {
        if (times_ == 0) return end - begin;
        return end - begin + times_ * std::max(0.0, std::min(end, to_) - std::max(begin, from_));
    }

  private:
    int times_ = 0;
    double from_ = 0, to_ = 0;
};

/// Walks the critical path of one stage back from the end of the step. Work of other stages that it
/// waited for is bubble. The parts telescope: each covers what lies between the end of what came
/// before and its own end.
TimeBreakdown exposed_parts(const StepGraph& graph, const Timeline& line, int lane) {
    TimeBreakdown parts;
    const Stretch stretched(graph, line, lane);
    const auto add = [&](Part part, double begin, double end) {
        part_of(parts, part) += Seconds{stretched(begin, end)};
    };
    const Before before = predecessors(graph);
    double now = line.step_time - line.repeats.times * line.repeats.period;
    // the last to end in this lane, or its whole idle tail
    std::size_t at = graph.ops.size();
    for (std::size_t i = 0; i < graph.ops.size(); ++i)
        if (graph.ops[i].lane == lane && (at == graph.ops.size() || line.end[i] > line.end[at]))
            at = i;
    if (at == graph.ops.size()) {
        add(Part::bubble, 0, now);
        return parts;
    }
    add(Part::bubble, line.end[at], now);
    now = line.end[at];
    while (true) {
        const Op& op = graph.ops[at];
        const double begin = line.begin[at];
        if (op.exchange) {
            add(op.part, begin, now);
        } else {
            // what the device did not work it waited for the host
            const double device = std::min(line.device[at], now - begin);
            const double share = now > begin ? device / (now - begin) : 1;
            const double all = stretched(begin, now);
            part_of(parts, op.part) += Seconds{line.repeats.times == 0 ? device : all * share};
            parts.host +=
                Seconds{line.repeats.times == 0 ? now - begin - device : all - all * share};
        }
        now = begin;
        // Of what it waited for: the latest of this lane, unless another stage's message came
        // later.
        std::size_t own = graph.ops.size(), other = graph.ops.size();
        for (std::uint32_t j = before.first[at]; j < before.first[at + 1]; ++j) {
            const std::uint32_t b = before.from[j];
            auto& best = graph.ops[b].lane == lane ? own : other;
            if (best == graph.ops.size() || line.end[b] > line.end[best]) best = b;
        }
        const double own_end = own == graph.ops.size() ? 0 : line.end[own];
        if (other != graph.ops.size() && line.end[other] > own_end) {
            const double sent = std::max(own_end, line.begin[other]);
            add(graph.ops[other].part, sent, now);
            add(Part::bubble, own_end, sent);
            now = own_end;
        } else if (own_end < now) {
            add(Part::bubble, own_end, now);
            now = own_end;
        }
        if (own == graph.ops.size()) break;
        at = own;
    }
    return parts;
}

/// Parts sum to the step to the last bit: in whole units of its last place every partial sum is
/// exact, and compute takes what the rounding leaves.
void settle(TimeBreakdown& parts, Seconds total) {
    if (!(total.value > 0)) return;
    const double grain = std::nextafter(total.value, 2 * total.value) - total.value;
    Seconds others;
    for_each_part(parts, [&](const char*, Seconds& time) {
        time.value = std::nearbyint(time.value / grain) * grain;
        if (&time != &parts.compute) others += time;
    });
    parts.compute = total - others;
}

TimeBreakdown busy_parts(const StepGraph& graph, const JobPrices& prices, const Timeline& line,
                         int lane, const TimeBreakdown& exposed) {
    TimeBreakdown parts;
    for (std::size_t i = 0; i < graph.ops.size(); ++i) {
        const Op& op = graph.ops[i];
        if (op.lane != lane) continue;
        const double times = line.times(i, lane);
        part_of(parts, op.part) += Seconds{line.device[i] * times};
        if (!op.exchange) parts.host += Seconds{prices.jobs[op.demand].host * times};
    }
    parts.bubble = exposed.bubble;
    return parts;
}

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

/// Activations rise with each forward of a stage and fall with its backward, up to the memory
/// model's peak.
std::vector<RankMemory> memory_over_time(const StepGraph& graph, const Timeline& line,
                                         const std::vector<StageMemory>& stages) {
    std::vector<RankMemory> out;
    for (int lane = 0; lane < graph.num_lanes && lane < static_cast<int>(stages.size()); ++lane) {
        // one forward of a layer holds, its backward frees
        struct Change {
            double time;
            int sign;
            std::uint32_t op;
        };
        std::vector<Change> changes;
        const auto& slots = graph.slots[static_cast<std::size_t>(lane)];
        for (std::uint32_t i = slots.front(); i < slots.back(); ++i) {
            const Op& op = graph.ops[i];
            if (op.exchange || op.part != Part::compute) continue;
            if (op.phase == Phase::forward) changes.push_back({line.end[i], +1, i});
            if (op.phase == Phase::backward) changes.push_back({line.end[i], -1, i});
        }
        std::stable_sort(changes.begin(), changes.end(),
                         [](const Change& a, const Change& b) { return a.time < b.time; });
        double forwards = 0, backwards = 0;
        // changes of the period that is repeated
        std::size_t first = changes.size(), last = 0;
        for (std::size_t i = 0; i < changes.size(); ++i) {
            const double times = line.times(changes[i].op, lane);
            (changes[i].sign > 0 ? forwards : backwards) += times;
            if (times > 1) first = std::min(first, i), last = i + 1;
        }
        const std::size_t repeated = last > first ? last - first : 0,
                          more = repeated * static_cast<std::size_t>(line.repeats.times);
        std::vector<double> held;
        double level = 0, peak = 0;
        for (const Change& change : changes) {
            level += change.sign > 0 ? 1.0 : -forwards / std::max(1.0, backwards);
            level = std::max(0.0, level);
            peak = std::max(peak, level);
            held.push_back(level);
        }
        const StageMemory& memory = stages[lane];
        const double fixed = (memory.total() - memory.activations - memory.dispatch).value,
                     swing = (memory.activations + memory.dispatch).value;
        RankMemory curve{lane * graph.width * graph.replicas, {{Seconds{0}, Bytes{fixed}}}};
        const std::size_t all = held.size() + more,
                          stride = std::max<std::size_t>(1, all / 256);  // a picture, not a log
        const auto add = [&](std::size_t i, int periods) {
            curve.points.push_back({Seconds{changes[i].time + periods * line.repeats.period},
                                    Bytes{fixed + (peak > 0 ? swing * held[i] / peak : 0)}});
        };
        for (std::size_t i = 0; i < all;) {
            std::size_t walked = i;
            int periods = 0;
            if (more > 0 && i >= last) {
                periods = static_cast<int>(std::min((i - last) / repeated + 1,
                                                    static_cast<std::size_t>(line.repeats.times)));
                walked = i - static_cast<std::size_t>(periods) * repeated;
            }
            const bool top = held[walked] >= peak, on_stride = i % stride == 0;
            if ((on_stride || i + 1 == all || top) &&
                !(top && walked > 0 && held[walked - 1] >= peak && !on_stride))
                add(walked, periods);
            // tops lie anywhere in what was walked; in its repetitions the stride is enough
            if (more > 0 && i >= last && i < last + more)
                i = std::min(last + more, (i / stride + 1) * stride);
            else
                ++i;
        }
        out.push_back(std::move(curve));
    }
    return out;
}

/// Inside dispatch, combine and the other exchanges: what ranks with equal work wait for each
/// other.
Seconds waited_for_slowest(const StepGraph& graph, const JobPrices& prices, const Timeline& line,
                           int lane) {
    Seconds sum;
    for (std::size_t i = 0; i < prices.waits.size(); ++i)
        if (graph.ops[i].lane == lane) sum += Seconds{prices.waits[i] * line.times(i, lane)};
    return sum;
}

/// "a, b, or c"
std::string any_of_these(const std::vector<std::string>& ways) {
    std::string out;
    for (std::size_t i = 0; i < ways.size(); ++i)
        out += (i == 0                 ? ""
                : ways.size() == 2     ? " or "
                : i + 1 == ways.size() ? ", or "
                                       : ", ") +
               ways[i];
    return out;
}

// Remedies name no option that is on already.

std::string for_bubble(const StepSchedule& schedule, int stages) {
    std::vector<std::string> ways = {"more micro-batches"};
    if (schedule.virtual_pipeline_size == 1 &&
        (schedule.pipeline == Pipeline::gpipe || schedule.pipeline == Pipeline::one_f_one_b))
        ways.push_back("interleaved chunks (--vpp)");
    if (stages > 1) ways.push_back("fewer pipeline stages");
    return any_of_these(ways);
}

std::string for_expert_exchange(const StepCase& step, const StepGraph& graph) {
    const auto& layout = step.layout;
    std::vector<std::string> ways;
    if (layout.expert_parallel_size > gpus_per_domain(step.cluster)) {
        ways.push_back("expert groups inside an NVLink domain");
        if (step.schedule.dispatcher != Dispatcher::deduplicating)
            ways.push_back("a dispatcher that sends a token once per node (--dispatcher deepep)");
    } else if (layout.expert_parallel_size > 1) {
        ways.push_back("a smaller expert-parallel size");
    }
    if (!graph.takes_turns && !step.schedule.overlap.experts)
        ways.push_back("another micro-batch's compute meanwhile (--overlap-experts)");
    double uneven = 1;
    for (const double imbalance : graph.load_imbalance) uneven = std::max(uneven, imbalance);
    constexpr double kUneven = 1.5;  // the fullest rank receives half as much again as the mean
    if (uneven > kUneven)
        ways.push_back("a more even load (the fullest rank's links set the pace)");
    if (ways.size() < 3) ways.push_back("fewer choices a token");
    return any_of_these(ways);
}

std::string for_data_exchange(const Overlap& overlap) {
    std::vector<std::string> ways = {"more micro-batches a step"};
    if (!overlap.gradients) ways.push_back("overlap with the backward pass (--overlap-gradients)");
    if (!overlap.parameters) ways.push_back("overlap with the forward pass (--overlap-parameters)");
    ways.push_back("fewer replicas");
    return any_of_these(ways);
}

std::string for_host(const SoftwareState& software) {
    std::vector<std::string> ways = {"larger micro-batches"};
    if (software.graph_scope.empty()) ways.push_back("CUDA graphs (--graph-scope)");
    if (software.fusion.empty()) ways.push_back("fused kernels");
    return any_of_these(ways);
}

std::vector<Loss> losses(const StepCase& step, const StepGraph& graph, const JobPrices& prices,
                         const Timeline& line, int lane, const TimeBreakdown& exposed) {
    std::vector<Loss> all;
    const auto& schedule = step.schedule;
    const auto& layout = step.layout;
    if (exposed.bubble.value > 0 && layout.pipeline_parallel_size > 1)
        all.push_back({"pipeline bubble: stage " + std::to_string(lane) + " waits for other stages",
                       for_bubble(schedule, layout.pipeline_parallel_size), exposed.bubble});
    if (exposed.host.value > 0)
        all.push_back({"the GPU waits for the host to launch kernels", for_host(schedule.software),
                       exposed.host});
    const Seconds exchange = exposed.dispatch + exposed.combine;
    if (exchange.value > 0)
        all.push_back({"all-to-all of tokens to experts and back", for_expert_exchange(step, graph),
                       exchange});
    if (exposed.tensor_comm.value > 0)
        all.push_back({"tensor-parallel collectives around every layer",
                       schedule.overlap.tensor
                           ? "a smaller tensor-parallel size"
                           : "a smaller tensor-parallel size, or overlapping them with the "
                             "products (--overlap-tensor)",
                       exposed.tensor_comm});
    if (exposed.context_comm.value > 0)
        all.push_back({"keys and values gathered for context parallelism",
                       "a smaller context-parallel size, or longer sequences a rank",
                       exposed.context_comm});
    if (exposed.data_comm.value > 0)
        all.push_back({"gradients and parameters exchanged among replicas",
                       for_data_exchange(schedule.overlap), exposed.data_comm});
    if (exposed.pipeline_comm.value > 0)
        all.push_back({"activations sent between stages",
                       "fewer stages or chunks, or stages inside a node", exposed.pipeline_comm});
    if (exposed.optimizer.value > 0)
        all.push_back({"the optimizer's update",
                       schedule.sharding == Sharding::none
                           ? "sharding its state (--zero 1)"
                           : "more replicas to share its state, or more micro-batches a step",
                       exposed.optimizer});
    // of compute: what the fullest rank works longer than the mean
    double skew = 0;
    for (std::size_t i = 0; i < graph.ops.size(); ++i) {
        const Op& op = graph.ops[i];
        if (!op.exchange && op.lane == lane && prices.jobs[op.demand].by_rank >= 0)
            skew += (prices.jobs[op.demand].device - prices.jobs[op.demand].mean_device) *
                    line.times(i, lane);
    }
    skew = std::min(skew, exposed.compute.value);
    if (skew > 0)
        all.push_back(
            {"unequal experts: every layer waits for the rank with most tokens",
             "placing popular experts apart or replicating them, a balance loss, or capacity",
             Seconds{skew}});
    double taken = 0;
    if (prices.slowdown.empty())
        for (std::size_t i = 0; i < graph.ops.size(); ++i)
            if (graph.ops[i].beside && !graph.ops[i].exchange && graph.ops[i].lane == lane)
                taken += (line.device[i] - prices.jobs[graph.ops[i].demand].device) *
                         line.times(i, lane);
    if (taken > 0)
        all.push_back(
            {"kernels slowed by the SMs and the memory bandwidth of exchanges beside them",
             schedule.overlap.communication_sms > 0
                 ? "fewer SMs than the " + std::to_string(schedule.overlap.communication_sms) +
                       " that exchanges hold"
                 : "a dispatcher or channels that hold fewer SMs (--communication-sms)",
             Seconds{taken}});
    if (!prices.slowdown.empty()) {
        double slow = 0;
        for (std::size_t i = 0; i < graph.ops.size(); ++i)
            if (!graph.ops[i].exchange && graph.ops[i].lane == lane)
                slow += (line.device[i] - prices.jobs[graph.ops[i].demand].device) *
                        line.times(i, lane);
        if (slow > 0)
            all.push_back(
                {"a slow rank holds up its stage", "taking the slow GPU out", Seconds{slow}});
    }
    if (const Seconds waited = waited_for_slowest(graph, prices, line, lane); waited.value > 0)
        all.push_back({"equal ranks wait for the one that was disturbed, at every exchange",
                       "fewer and larger exchanges (larger micro-batches), or a quieter machine",
                       waited});
    std::stable_sort(all.begin(), all.end(),
                     [](const Loss& a, const Loss& b) { return a.time > b.time; });
    if (all.size() > kLossesListed) all.resize(kLossesListed);
    return all;
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

/// Ranks to draw of a stage: where all do the same the first, else also those with most and least to
/// do. A rank of several replicas stands for all of them.
std::vector<int> drawn_ranks(const StepGraph& graph, const std::vector<Seconds>& busy, int lane) {
    const auto first = busy.begin() + lane * graph.width * graph.replicas,
               last = first + graph.width;
    const auto [least, most] = std::minmax_element(first, last);
    std::vector<int> out = {0};
    if (*most > *least) {
        out.push_back(static_cast<int>(most - first));
        out.push_back(static_cast<int>(least - first));
    }
    std::sort(out.begin(), out.end());
    out.erase(std::unique(out.begin(), out.end()), out.end());
    return out;
}

std::vector<TimelineBar> bars(const StepGraph& graph, const JobPrices& prices, const Timeline& line,
                              const std::vector<Seconds>& busy) {
    static constexpr const char* kStreams[] = {"compute",      "tensor",        "context",
                                               "experts",      "send forward",  "send backward",
                                               "data",         "parameters"};
    std::vector<std::vector<int>> ranks;  // [lanes] in the lane
    for (int lane = 0; lane < graph.num_lanes; ++lane)
        ranks.push_back(drawn_ranks(graph, busy, lane));
    std::vector<TimelineBar> out;
    out.reserve(graph.ops.size());
    for (std::size_t i = 0; i < graph.ops.size(); ++i) {
        const Op& op = graph.ops[i];
        const std::string where = op.phase == Phase::optimizer
                                      ? ""
                                      : " · layer " + std::to_string(op.layer) + " · micro-batch " +
                                            std::to_string(op.micro_batch);
        std::string what;
        if (op.exchange) {
            const auto& demand = graph.exchanges[op.demand];
            what = op.part == Part::dispatch  ? "dispatch"
                   : op.part == Part::combine ? "combine"
                                              : std::string(name_of(demand.kind));
        } else {
            what = graph.works[graph.jobs[op.demand].work].what;
        }
        if (op.phase == Phase::recompute) what += " (recompute)";
        for (const int rank : ranks[op.lane]) {
            // a rank with less to do is done sooner, and waits for the slowest at the next exchange
            double share = 1;
            if (!op.exchange) {
                const JobPrice& price = prices.jobs[op.demand];
                const auto seconds = [&](std::size_t r) {
                    return (price.by_rank >= 0 ? prices.ranks[price.by_rank][r] : price.device) *
                           (prices.slowdown.empty() ? 1 : prices.slowdown[op.lane][r]);
                };
                double most = price.device;
                if (!prices.slowdown.empty())
                    for (std::size_t r = 0; r < prices.slowdown[op.lane].size(); ++r)
                        most = std::max(most, seconds(r));
                if (most > 0) share = seconds(static_cast<std::size_t>(rank)) / most;
            }
            const double end =
                share >= 1 ? line.end[i] : line.begin[i] + share * (line.end[i] - line.begin[i]);
            out.push_back({op.lane * graph.width * graph.replicas + rank,
                           kStreams[static_cast<int>(op.stream)], what + where,
                           Seconds{line.begin[i]}, Seconds{end}});
        }
    }
    return out;
}

constexpr std::size_t kLinksDrawn = 12;

std::vector<LinkHistory> link_history(const StepGraph& graph, const Timeline& line,
                                   StepNetwork& network) {
    const auto& links = network.links().links;
    std::vector<std::uint32_t> busiest;
    for (std::uint32_t l = 0; l < line.carried.size(); ++l)
        if (line.carried[l].value > 0) busiest.push_back(l);
    std::stable_sort(busiest.begin(), busiest.end(), [&](std::uint32_t a, std::uint32_t b) {
        return line.carried[a] / links[a].bandwidth > line.carried[b] / links[b].bandwidth;
    });
    if (busiest.size() > kLinksDrawn) busiest.resize(kLinksDrawn);
    std::map<std::uint32_t, std::map<double, double>> changes;  // link → time → more or less busy
    for (const auto link : busiest) changes[link];
    for (std::size_t i = 0; i < graph.ops.size(); ++i) {
        if (!graph.ops[i].exchange || !(line.end[i] > line.begin[i])) continue;
        for (const ExchangeStage& stage : network.loads(graph.ops[i].demand).stages)
            for (const LinkLoad& load : stage.loads) {
                const auto at = changes.find(load.link);
                if (at == changes.end()) continue;
                const double busy = (load.bytes / links[load.link].bandwidth).value /
                                    (line.end[i] - line.begin[i]);
                at->second[line.begin[i]] += busy;
                at->second[line.end[i]] -= busy;
            }
    }
    std::vector<LinkHistory> out;
    for (const auto link : busiest) {
        LinkHistory curve{links[link].name, {}};
        double busy = 0;
        for (const auto& [time, change] : changes[link]) {
            busy = std::max(0.0, busy + change);
            if (busy < 1e-12) busy = 0;  // what sums of ends leave
            curve.points.push_back({Seconds{time}, busy});
        }
        out.push_back(std::move(curve));
    }
    return out;
}

}  // namespace

StepReport report(const StepCase& step, const StepGraph& graph, const JobPrices& prices,
                  const Timeline& line, StepNetwork& network, Fidelity fidelity) {
    StepReport out;
    out.fidelity = fidelity;
    out.step_time = Seconds{line.step_time};
    const int lane = busiest_lane(graph, line);
    out.exposed = exposed_parts(graph, line, lane);
    settle(out.exposed, out.step_time);
    out.busy = busy_parts(graph, prices, line, lane, out.exposed);

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
    double hot = 1;
    for (const double imbalance : graph.load_imbalance) hot = std::max(hot, imbalance);
    const auto memory = memory_by_stage(step.model, step.layout, schedule, hot, expert_copies(step));
    const int stage_ranks = graph.width * graph.replicas;
    out.peak_memory.assign(static_cast<std::size_t>(world_size(step.layout)), Bytes{0});
    for (std::size_t rank = 0; rank < out.peak_memory.size(); ++rank)
        if (rank / stage_ranks < memory.size())
            out.peak_memory[rank] = memory[rank / stage_ranks].total();
    out.memory_by_rank = memory_over_time(graph, line, memory);
    out.busy_by_rank = rank_busy(step, graph, prices, line);
    out.link_use = link_use(network, line);
    out.losses = losses(step, graph, prices, line, lane, out.exposed);
    out.load_imbalance = graph.load_imbalance;
    out.basis = basis_shares(graph, prices, line);

    out.assumptions = graph.assumptions;
    out.assumptions.push_back(
        "mfu counts model flops with causal attention halved, no recomputation, over the peak of " +
        std::string(name_of(schedule.precision)));
    if (out.basis.roofline > 0.005)
        out.assumptions.push_back(
            "kernels without a measured or published curve are priced by the datasheet's roofline "
            "with a stated efficiency (" +
            std::to_string(static_cast<int>(std::lround(out.basis.roofline * 100))) +
            " % of kernel time, profile " + step.profile->name + ")");
    if (step.profile->host_overlap > 0) {
        const SoftwareCosts software = software_costs(step);
        const std::string& framework = schedule.software.framework;
        out.assumptions.push_back(
            "launches, waits and fusion as of the software state " + software.name +
            (software.assumed ? framework.empty() ? " (no framework was named)"
                                                  : " (no state names " + framework + ")"
                              : ""));
    }
    if (graph.load_imbalance.size() > 0 && schedule.precision != Precision::fp32 &&
        step.layout.expert_parallel_size > 1)
        out.assumptions.push_back("tokens travel to experts in two bytes an element");
    out.folded = graph.folded;
    out.folded.insert(out.folded.end(), network.folded().begin(), network.folded().end());
    if (line.repeats.times > 0)
        out.folded.push_back(
            "micro-batches that all do the same: " + std::to_string(schedule.num_micro_batches) +
            " of them, walked until the pipeline repeats itself");
    if (fidelity == Fidelity::flow && line.model == NetworkModel::fluid)
        out.folded.push_back(
            "flows were shared by our own fluid solver: too many for SimGrid's bookkeeping");
    if (const ErrorBand* band = errors_of(step))
        out.interval = interval_of(out.step_time, *band, std::nullopt);
    out.made = {kVersion, digest_of(step), step.seed};
    if (step.keep_timeline) {
        out.timeline = bars(graph, prices, line, out.busy_by_rank);
        out.link_history = link_history(graph, line, network);
    }
    return out;
}

}  // namespace moeplan
