#pragma once
/// Pages of answers without one of their own, and of comparisons: single values as a list, arrays
/// of objects as tables.

#include "cli/report/page.hpp"
#include "core/json.hpp"

namespace moeplan::cli {

void add_other_sections(Page&, const JsonReader& answer);
/// Two reports, field by field.
void add_comparison_sections(Page&, const JsonReader& comparison);

}  // namespace moeplan::cli
