#pragma once
/// The largest losses of a step in words, each with what would reduce it.

#include <vector>

#include "simulator/step_walk.hpp"

namespace moeplan {

/// @param lane     the stage that works longest
/// @param exposed  its parts of the step
/// @return         the largest first, three at most
std::vector<Loss> losses(const StepCase&, const StepGraph&, const JobPrices&, const Timeline&,
                         int lane, const TimeBreakdown& exposed);

}  // namespace moeplan
