#pragma once
/// Page of one collective over message sizes.

#include "cli/report/page.hpp"
#include "core/json.hpp"

namespace moeplan::cli {

/// "All reduce, 64 ranks of dgx-h100"
std::string collective_title(const JsonReader& collective);
void add_collective_sections(Page&, const JsonReader& collective);

}  // namespace moeplan::cli
