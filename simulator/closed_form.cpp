/// The step at closed form: exchanges share links as wholes. Milliseconds.

#include <algorithm>

#include "core/errors.hpp"
#include "simulator/step_walk.hpp"

namespace moeplan {

Timeline walk_closed_form(const StepGraph& graph, const StepCase& step) {
    StepNetwork network(step, graph);
    return walk(graph, step, price_jobs(graph, step), network, NetworkModel::closed_form);
}

StepReport estimate_step(const StepCase& step) {
    const StepGraph graph = build_step_graph(step);
    const JobPrices prices = price_jobs(graph, step);
    StepNetwork network(step, graph);
    const Timeline line = walk(graph, step, prices, network, NetworkModel::closed_form);
    return report(step, graph, prices, line, network, Fidelity::closed_form);
}

}  // namespace moeplan
