#include "planner/scout.hpp"

namespace moeplan {

Seconds scout_step(const StepCase& step, const StepRunner& runner) {
    StepCase small = step;
    small.routing = SyntheticRouting{};
    const auto time = [&](int micro_batches) {
        small.schedule.num_micro_batches = micro_batches;
        return runner(small).step_time;
    };
    // Interleaved schedules come in groups of pp micro-batches.
    // DualPipe needs two a stage.
    const int pp = step.layout.pipeline_parallel_size,
              group = step.schedule.pipeline == Pipeline::dual_pipe && pp > 1 ? 2 * pp
                      : step.schedule.virtual_pipeline_size > 1               ? pp
                                                                              : 1;
    const int all = step.schedule.num_micro_batches;
    if (all <= 3 * group) return time(all);
    const Seconds first = time(group);
    const Seconds each = (time(2 * group) - first) / group;
    return first + each * (all - group);
}

}  // namespace moeplan
