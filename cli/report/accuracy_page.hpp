#pragma once
/// The sections of an accuracy answer: errors, pictures of predicted against measured, sweeps, the
/// worst rows with their causes, and what was skipped.

#include "cli/report/page.hpp"
#include "core/json.hpp"

namespace moeplan::cli {

void add_accuracy_sections(Page&, const JsonReader& answer);

}  // namespace moeplan::cli
