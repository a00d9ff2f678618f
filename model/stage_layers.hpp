#pragma once
/// Which layers a pipeline stage holds.

#include <vector>

#include "model/model_spec.hpp"
#include "model/parallel_layout.hpp"
#include "model/step_schedule.hpp"

namespace moeplan {

/// Layers of each virtual stage (chunk) in the order of the model: `schedule.stage_layers` if
/// given, else as even as can be, what is left over going to the middle chunks (the first holds the
/// embedding, the last the head).
/// @return [pp · vpp] in the order of the model
std::vector<int> virtual_stage_layers(int num_layers, const ParallelLayout&, const StepSchedule&);

/// Chunks that a stage works on: `virtual_pipeline_size`, or two copies of stages in DualPipe.
int num_chunks(const ParallelLayout&, const StepSchedule&);

/// Whether the forward of one micro-batch and the backward of another take turns on a stage, so that
/// each computes while the other's tokens travel: asked for (--overlap-experts, with the SMs
/// that its exchanges hold stated), or the schedule's own way (DualPipe).
bool takes_turns(const ParallelLayout&, const StepSchedule&);

/// How far into the model a chunk of a stage lies, in the order of a forward pass: chunk · p + stage
/// (interleaved), down one chunk and up the other (ZB-V), or from either end (DualPipe, whose second
/// chunk serves the micro-batches that enter at the last stage).
int virtual_stage(Pipeline, int num_stages, int stage, int chunk);

/// One chunk of consecutive layers of the model.
struct LayerChunk {
    int first = 0, count = 0;
    bool operator==(const LayerChunk&) const = default;
};
/// @return [pp][num_chunks], the chunks of each stage by number; DualPipe: its own layers, then those
/// of the stage across
std::vector<std::vector<LayerChunk>> stage_chunks(int num_layers, const ParallelLayout&,
                                                  const StepSchedule&);

}  // namespace moeplan
