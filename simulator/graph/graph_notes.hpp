#pragma once
/// What a step graph takes for granted and what it folds, in words.

#include "simulator/graph/pipeline_shape.hpp"
#include "simulator/graph/step_loads.hpp"

namespace moeplan {

/// Adds to a finished graph's `assumptions` and `folded`.
void add_notes(const StepCase&, const PipelineShape&, const StepLoads&, StepGraph&);

}  // namespace moeplan
