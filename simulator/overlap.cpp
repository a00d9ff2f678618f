#include "simulator/overlap.hpp"

namespace moeplan {

bool runs_on_cpu(const StepCase& step) { return step.profile && step.profile->host_overlap <= 0; }

bool is_own_trainer(const StepCase& step) { return step.schedule.software.framework == "moeplan"; }

Overlap effective_overlap(const StepCase& step) {
    if (!runs_on_cpu(step)) return step.schedule.overlap;
    Overlap none = step.schedule.overlap;
    none.gradients = none.parameters = none.tensor = none.experts = none.shared_experts = false;
    return none;
}

}  // namespace moeplan
