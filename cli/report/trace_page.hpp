#pragma once
/// Page of a routing trace, from its statistics.

#include "cli/report/page.hpp"
#include "core/json.hpp"

namespace moeplan::cli {

void add_trace_sections(Page&, const JsonReader& statistics);

}  // namespace moeplan::cli
