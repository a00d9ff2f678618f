#pragma once
/// Why a prediction may be off: where to look first, in words.

#include <string>
#include <vector>

#include "planner/accuracy/evaluate.hpp"

namespace moeplan {

/// What the prediction consists of; what other releases of the same recipe measured; whether runs
/// like it are off alike; what was assumed.
std::string likely_cause(const AccuracyRow&, const std::vector<AccuracyRow>& all);

}  // namespace moeplan
