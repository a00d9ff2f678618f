#pragma once
/// Which of the combinations that the closed form priced reach the last stage.

#include <cstddef>
#include <vector>

#include "planner/search/points.hpp"

namespace moeplan {

/// Candidates for the last stage: the best of each model first, then those that no other dominates
/// in time and memory, then the next best.
/// @param score       [run] what the objective orders by; less is better
/// @param num_models  that Point::model counts
/// @return            indexes of `run`
std::vector<std::size_t> choose(const std::vector<Priced>& run, const std::vector<double>& score,
                                std::size_t num_models, std::size_t most);

}  // namespace moeplan
