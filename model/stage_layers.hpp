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
/// @return [pp · vpp]; virtual stage v is chunk v / pp of rank v % pp
std::vector<int> virtual_stage_layers(int num_layers, const ParallelLayout&, const StepSchedule&);

/// One chunk of consecutive layers of the model.
struct LayerChunk {
    int first = 0, count = 0;
    bool operator==(const LayerChunk&) const = default;
};
/// @return [pp][vpp], the chunks of each stage in the order in which a token meets them
std::vector<std::vector<LayerChunk>> stage_chunks(int num_layers, const ParallelLayout&,
                                                  const StepSchedule&);

}  // namespace moeplan
