#include "simulator/report/memory_over_time.hpp"

#include <algorithm>

namespace moeplan {

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

}  // namespace moeplan
