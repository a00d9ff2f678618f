/// The step at closed form: exchanges share links as wholes. Milliseconds.

#include <utility>
#include <vector>

#include "simulator/step_walk.hpp"

namespace moeplan {

Timeline walk_closed_form(const StepGraph& graph, const StepCase& step) {
    StepNetwork network(step, graph);
    return walk(graph, step, price_jobs(graph, step), network, NetworkModel::closed_form);
}

StepReport estimate_step(const StepCase& step) {
    const int all = step.schedule.num_micro_batches;
    StepCase walked = step;
    const std::vector<int> tries = micro_batches_to_walk(step);
    auto next = tries.begin();
    for (int micro_batches = *next;;) {
        walked.schedule.num_micro_batches = micro_batches;
        const StepGraph graph = build_step_graph(walked);
        const JobPrices prices = price_jobs(graph, walked);
        StepNetwork network(walked, graph);
        Timeline line = walk(graph, walked, prices, network, NetworkModel::closed_form);
        const auto made = [&] {
            return report(step, graph, prices, line, network, Fidelity::closed_form);
        };
        if (micro_batches == all) return made();
        int more = 0;  // until what is left is whole periods
        if (auto found = rhythm(line, graph, walked, prices)) {
            const int left = all - micro_batches, period = found->micro_batches;
            more = left % period;
            if (more == 0) {
                stretch(line, graph, network, std::move(*found), left / period);
                return made();
            }
        }
        if (more > 0) {
            micro_batches += more;
        } else {
            while (*next <= micro_batches) ++next;  // all of them are the last
            micro_batches = *next;
        }
    }
}

}  // namespace moeplan
