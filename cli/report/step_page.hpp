#pragma once
/// Pages of a step and of its timeline, from the answers of `simulate`.

#include "cli/report/page.hpp"
#include "core/json.hpp"

namespace moeplan::cli {

void add_step_sections(Page&, const JsonReader& report);
/// @param trace  Chrome-trace JSON, ours or another's
void add_timeline_sections(Page&, const JsonReader& trace);

}  // namespace moeplan::cli
