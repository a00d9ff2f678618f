#pragma once
/// Pages of a plan and of a validation, from their JSON answers: the same for `--html` and
/// `report`.

#include "cli/report/page.hpp"
#include "core/json.hpp"

namespace moeplan::cli {

/// "Plan of mixtral-8x7b for dgx-h100"
std::string plan_title(const JsonReader& plan);
/// Adds the sections of a plan: best candidates, front, what was refused, what it rests on.
void add_plan_sections(Page&, const JsonReader& plan);
/// Predicted beside measured.
void add_validation_sections(Page&, const JsonReader& validation);

}  // namespace moeplan::cli
