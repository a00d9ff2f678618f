/// Many micro-batches that are all alike: a few of them walked, the rest a repetition.
///
/// After its first forwards a lane works in units of one forward and one backward (1F1B), of one
/// from either end (DualPipe), or of as many as there are chunks times stages (interleaved). What
/// it does in a unit depends on the units just before it, of its own and of the neighbouring lanes,
/// which are at most a pipeline's length ahead or behind. If all ops of so many units, in all
/// lanes, are those of a period before moved by one time λ, then the next period is moved by λ
/// again, and so on until the last forward: more micro-batches are more periods. A period may be
/// several micro-batches: where stages wait for one another in both directions, the slowest way
/// round through n stages passes n micro-batches, and only each n-th does what the first did;
/// shared links make other numbers. What an op does not show is the host's lead; it only shrinks if
/// the host needs longer than λ for a period, so that is looked at too.

#include <algorithm>
#include <numeric>
#include <optional>

#include "model/stage_layers.hpp"
#include "simulator/step_order.hpp"
#include "simulator/step_walk.hpp"

namespace moeplan {
namespace {

bool all_alike(const StepCase& step) {
    if (num_moe_layers(step.model) == 0) return true;
    const auto* synthetic = std::get_if<SyntheticRouting>(&step.routing);
    return synthetic && synthetic->kind == "balanced";
}

/// Micro-batches after which an order repeats itself; 0: it does not.
int period_of(const StepCase& step) {
    const int stages = step.layout.pipeline_parallel_size;
    const bool chunks = step.schedule.virtual_pipeline_size > 1;
    if (stages == 1 && !chunks) return 1;
    switch (step.schedule.pipeline) {
        case Pipeline::one_f_one_b:
            return chunks ? stages : 1;
        case Pipeline::interleaved:
            return stages;
        case Pipeline::zero_bubble:
        case Pipeline::zero_bubble_v:
            return 1;
        case Pipeline::dual_pipe:
            return 2;  // one from either end
        case Pipeline::gpipe:
            return 0;
    }
    return 0;
}

/// First op of each unit of a lane: of each forward, up to the next one.
std::vector<std::uint32_t> units_of(const std::vector<Slot>& order,
                                    const std::vector<std::uint32_t>& slots) {
    std::vector<std::uint32_t> first;
    for (std::size_t i = 0; i < order.size(); ++i)
        if (order[i].pass == Pass::forward) first.push_back(slots[i]);
    return first;
}

/// The rhythm of all lanes in a window of units that ends before the last `before_the_end`.
/// @param units  [lanes] first op of each
std::optional<Repeats> rhythm_before(const Timeline& line, const StepGraph& graph,
                                     const std::vector<std::vector<std::uint32_t>>& units,
                                     int period_units, int window, int before_the_end) {
    Repeats repeats;
    const double rounding = 1e-13 * line.step_time;
    double sum = 0, count = 0, least = 0, most = 0;
    for (const auto& first : units) {
        const int last = static_cast<int>(first.size()) - 1 - before_the_end,
                  begin = last - window + 1;
        if (begin - period_units < 0) return std::nullopt;
        for (int unit = begin; unit <= last; ++unit) {
            const std::uint32_t here = first[unit], size = first[unit + 1] - here,
                                before = first[unit - period_units];
            if (first[unit - period_units + 1] - before != size) return std::nullopt;
            for (std::uint32_t i = 0; i < size; ++i) {
                const Op &op = graph.ops[here + i], &then = graph.ops[before + i];
                if (op.demand != then.demand || op.exchange != then.exchange) return std::nullopt;
                for (const auto* times : {&line.begin, &line.end}) {
                    const double moved = (*times)[here + i] - (*times)[before + i];
                    least = count == 0 ? moved : std::min(least, moved);
                    most = count == 0 ? moved : std::max(most, moved);
                    sum += moved;
                    ++count;
                }
            }
            if (most - least > 1e-11 * most + rounding) return std::nullopt;
        }
        repeats.ops.push_back({first[last - period_units + 1], first[last + 1]});
    }
    if (count == 0) return std::nullopt;
    repeats.period = sum / count;
    return repeats;
}

/// Whether a host keeps up: else its lead will run out.
bool hosts_keep_up(const Repeats& repeats, const StepGraph& graph, const JobPrices& prices) {
    for (const auto& [first, last] : repeats.ops) {
        double host = 0;
        for (std::uint32_t i = first; i < last; ++i)
            if (!graph.ops[i].exchange) host += prices.jobs[graph.ops[i].demand].host;
        if (host > repeats.period * (1 + 1e-11)) return false;
    }
    return true;
}

}  // namespace

std::vector<int> micro_batches_to_walk(const StepCase& step) {
    const int all = step.schedule.num_micro_batches, period = period_of(step),
              stages = step.layout.pipeline_parallel_size;
    std::vector<int> out;
    if (period > 0 && !step.keep_timeline && all_alike(step))
        for (int tries = 1;; tries *= 2) {
            // the way in, a window of lanes that lie apart, two periods to compare, the way out
            const int wanted = (stages > 1 ? 4 : 3) * stages * tries + 4,
                      aligned = std::lcm(period, stages);  // most often a whole period
            const int fewer = wanted + (all - wanted % aligned) % aligned;
            // tries in vain take no longer than the whole walk
            if (tries == 1 ? fewer + 2 * period >= all : 2 * fewer >= all) break;
            out.push_back(fewer);
        }
    out.push_back(all);
    return out;
}

std::optional<Repeats> rhythm(const Timeline& line, const StepGraph& graph, const StepCase& walked,
                              const JobPrices& prices) {
    const StepSchedule& schedule = walked.schedule;
    const int stages = walked.layout.pipeline_parallel_size,
              chunks = std::max(1, schedule.virtual_pipeline_size), shortest = period_of(walked);
    if (shortest == 0) return std::nullopt;
    const auto orders =
        pipeline_order(schedule.pipeline, stages, num_chunks(walked.layout, schedule),
                       schedule.num_micro_batches, graph.takes_turns);
    std::vector<std::vector<std::uint32_t>> units;
    for (int lane = 0; lane < graph.num_lanes; ++lane)
        units.push_back(units_of(orders[lane], graph.slots[lane]));
    // The last unit holds the way out; the ones before it may feel that others are on theirs.
    for (int period = shortest; period <= 2 * stages; period += shortest)
        for (const int before_the_end : {1, 3, 1 + stages / 2, 1 + stages}) {
            const int period_units = period * chunks,
                      window = period_units + (shortest * chunks > 1 ? 2 : 1) * stages;
            auto repeats = rhythm_before(line, graph, units, period_units, window, before_the_end);
            if (!repeats) continue;
            repeats->micro_batches = period;
            if (!hosts_keep_up(*repeats, graph, prices)) return std::nullopt;
            return repeats;
        }
    return std::nullopt;
}

void stretch(Timeline& line, const StepGraph& graph, StepNetwork& network, Repeats repeats,
             int times) {
    repeats.times = times;
    std::vector<std::uint64_t> uses(graph.exchanges.size(), 0);
    for (const auto& [first, last] : repeats.ops)
        for (std::uint32_t i = first; i < last; ++i)
            if (graph.ops[i].exchange) ++uses[graph.ops[i].demand];
    for (std::uint32_t d = 0; d < uses.size(); ++d)
        if (uses[d] > 0)
            for (const ExchangeStage& stage : network.loads(d).stages)
                for (const LinkLoad& load : stage.loads)
                    line.carried[load.link] +=
                        load.bytes * (static_cast<double>(uses[d]) * repeats.times);
    line.step_time += repeats.times * repeats.period;
    line.repeats = std::move(repeats);
}

}  // namespace moeplan
