/// The step at closed form: exchanges share links as wholes. Milliseconds.

#include <algorithm>
#include <stdexcept>

#include "core/errors.hpp"
#include "simulator/step_walk.hpp"

namespace moeplan {

Timeline walk_closed_form(const StepGraph& graph, const StepCase& step) {
    StepNetwork network(step, graph);
    return walk(graph, step, price_jobs(graph, step), network, NetworkModel::closed_form);
}

StepReport estimate_step(const StepCase& step) {
    StepCase walked = step;
    for (const int micro_batches : micro_batches_to_walk(step)) {
        walked.schedule.num_micro_batches = micro_batches;
        const StepGraph graph = build_step_graph(walked);
        const JobPrices prices = price_jobs(graph, walked);
        StepNetwork network(walked, graph);
        Timeline line = walk(graph, walked, prices, network, NetworkModel::closed_form);
        const int all = step.schedule.num_micro_batches;
        if (micro_batches == all || stretch(line, graph, walked, prices, network, all))
            return report(step, graph, prices, line, network, Fidelity::closed_form);
    }
    throw std::logic_error("the last try walks every micro-batch");
}

}  // namespace moeplan
