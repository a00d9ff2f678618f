#pragma once
/// Bytes that our own trainer takes, tensor by tensor in the order in which it takes and frees them
/// (model/layers/): what `memory_by_stage` answers for the framework "moeplan".

#include <vector>

#include "model/check.hpp"

namespace moeplan {

std::vector<StageMemory> trainer_memory_by_stage(const ModelSpec&, const ParallelLayout&,
                                                 const StepSchedule&, double hot_rank_load);

}  // namespace moeplan
