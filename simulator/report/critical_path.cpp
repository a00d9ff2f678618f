#include "simulator/report/critical_path.hpp"

#include <algorithm>
#include <cmath>

#include "simulator/step_fields.hpp"

namespace moeplan {
namespace {

/// Mean over a lane's ranks of the time its kernels take.
std::vector<double> lane_busy(const StepGraph& graph, const Timeline& line) {
    std::vector<double> busy(graph.num_lanes, 0);
    for (std::size_t i = 0; i < graph.ops.size(); ++i)
        if (!graph.ops[i].exchange)
            busy[graph.ops[i].lane] += line.device[i] * line.times(i, graph.ops[i].lane);
    return busy;
}

/// Of every op, those that it waited for.
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

TimeBreakdown path_parts(const StepGraph& graph, const Timeline& line, int lane) {
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

}  // namespace

int busiest_lane(const StepGraph& graph, const Timeline& line) {
    const auto busy = lane_busy(graph, line);
    const double most = *std::max_element(busy.begin(), busy.end()) * (1 - 1e-12);
    return static_cast<int>(
        std::find_if(busy.begin(), busy.end(), [&](double lane) { return lane >= most; }) -
        busy.begin());
}

TimeBreakdown exposed_parts(const StepGraph& graph, const Timeline& line, int lane) {
    TimeBreakdown parts = path_parts(graph, line, lane);
    settle(parts, Seconds{line.step_time});
    return parts;
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

}  // namespace moeplan
