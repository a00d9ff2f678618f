#include "simulator/graph/pipeline_shape.hpp"

#include "simulator/overlap.hpp"

namespace moeplan {

PipelineShape::PipelineShape(const StepCase& step)
    : step_(step),
      num_chunks_(moeplan::num_chunks(step.layout, step.schedule)),
      chunks_(
          stage_chunks(static_cast<int>(step.model.layers.size()), step.layout, step.schedule)) {}

bool PipelineShape::is(Pipeline pipeline) const {
    return step_.schedule.pipeline == pipeline && num_stages() > 1;
}

bool PipelineShape::splits_backward() const {
    return is(Pipeline::zero_bubble) || is(Pipeline::zero_bubble_v) || is(Pipeline::dual_pipe);
}

bool PipelineShape::takes_turns() const {
    return moeplan::takes_turns(step_.layout, step_.schedule) && !runs_on_cpu(step_);
}

int PipelineShape::virtual_stage_of(int lane, int chunk) const {
    return virtual_stage(step_.schedule.pipeline, num_stages(), lane, chunk);
}

int PipelineShape::last_virtual_stage() const {
    return (is(Pipeline::dual_pipe) ? 1 : num_chunks_) * num_stages() - 1;
}

bool PipelineShape::holds(int lane, int wanted) const {
    for (int chunk = 0; chunk < num_chunks_; ++chunk)
        if (virtual_stage_of(lane, chunk) == wanted) return true;
    return false;
}

bool PipelineShape::ends_meet() const {
    return num_stages() == 1 || is(Pipeline::zero_bubble_v) || is(Pipeline::dual_pipe);
}

bool PipelineShape::leads_down(int chunk) const {
    return !(chunk == 1 && (is(Pipeline::zero_bubble_v) || is(Pipeline::dual_pipe)));
}

bool PipelineShape::turns_round(int lane) const {
    return is(Pipeline::zero_bubble_v) && lane == num_stages() - 1;
}

}  // namespace moeplan
