#include "planner/search/points.hpp"

namespace moeplan {

StepCase SearchGrid::case_of(const Point& point) const {
    StepCase step = cases[point.model];
    step.layout = layouts[point.layout];
    step.schedule = schedules_of(space, schedule, step.layout, global_batch_size)[point.schedule];
    return step;
}

}  // namespace moeplan
