#pragma once
/// A plan and a validation in words and tables, for people at a terminal.

#include <string>

#include "planner/plan.hpp"
#include "planner/shrink.hpp"
#include "planner/validate.hpp"

namespace moeplan::cli {

std::string plan_text(const Plan&, const StepCase& base);
/// @param pace  of the machine then and now; empty: not known
std::string validation_text(const Validation&, const Shrunk&, const StepReport& measured,
                            const std::optional<PaceShift>& pace);

}  // namespace moeplan::cli
