#pragma once
/// Pages of a model and of a checked layout, from the answers of `model show` and `check`.

#include "cli/report/page.hpp"
#include "core/json.hpp"

namespace moeplan::cli {

void add_model_sections(Page&, const JsonReader& model);
/// "Layout: valid"
std::string check_title(const JsonReader& check);
void add_check_sections(Page&, const JsonReader& check);

}  // namespace moeplan::cli
