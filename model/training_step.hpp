#pragma once
/// One optimizer step of a training run.

#include "model/trace_recorder.hpp"
#include "model/training_run.hpp"

namespace moeplan {

/// Micro-batches through the pipeline, gradients summed over ranks, clipped, applied. Collective.
/// @param recorder    null: the routing is not recorded
/// @param stop_asked  by this rank; `stopped` is true on every rank if it was by any
/// @throws Diverged
StepRecord training_step(TrainingRun&, int step, TraceRecorder* recorder, bool stop_asked,
                         bool& stopped);

}  // namespace moeplan
