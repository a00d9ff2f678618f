#pragma once
/// The whole answer of `moeplan accuracy`, as JSON and as a table of rows.

#include <string>

#include "core/json.hpp"
#include "planner/accuracy/evaluate.hpp"

namespace moeplan {

/// schemas/accuracy.schema.json
Json to_json(const Evaluation&);

/// One line a row: id, source, gpu … measured, predicted, ratio, parts of the step, assumptions.
std::string rows_as_csv(const Evaluation&);

}  // namespace moeplan
