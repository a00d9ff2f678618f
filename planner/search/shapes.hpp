#pragma once
/// Models that a search tries: the base model and what it is resized to.

#include <vector>

#include "planner/resize.hpp"
#include "planner/search_space.hpp"
#include "simulator/step.hpp"

namespace moeplan {

/// Every shape of MoE heads, experts, choices and document pools that was asked for, resized by the
/// space's rule; those that the rule refuses say why.
std::vector<ResizedModel> shapes_of(const SearchSpace&, const StepCase& base);

/// Whether a recorded trace can stand for a model's routing: as it is, or with each of its experts
/// split into several.
bool fits_trace(const ModelSpec&, const TraceReader&);

}  // namespace moeplan
