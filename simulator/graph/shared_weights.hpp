#pragma once
/// Weights that two stages hold: their gradients meet before the optimizers of both.

#include "simulator/graph/data_parallel.hpp"
#include "simulator/graph/lane_writer.hpp"
#include "simulator/graph/pipeline_shape.hpp"
#include "simulator/graph/stage_parameters.hpp"

namespace moeplan {

/// Once all lanes are written: the tied embedding of the first and the last stage, and DualPipe's
/// copies of a stage's layers on the stage across.
void add_shared_weights(const StepCase&, const PipelineShape&, const StageParameters&,
                        const DataParallel&, LaneWriter&);

}  // namespace moeplan
