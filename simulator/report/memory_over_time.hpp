#pragma once
/// How the memory of a stage's rank rises and falls during a step.

#include <vector>

#include "model/check.hpp"
#include "simulator/step_walk.hpp"

namespace moeplan {

/// Activations rise with each forward of a stage and fall with its backward, up to the memory
/// model's peak.
/// @param stages  [stages] of the memory model
/// @return        [stages] curves of the first rank, of some 256 points each
std::vector<RankMemory> memory_over_time(const StepGraph&, const Timeline&,
                                         const std::vector<StageMemory>& stages);

}  // namespace moeplan
