#pragma once
/// What every page carries: the charting library, our few lines that feed it, and the style.
/// Embedded into the binary.

#include <string_view>

namespace moeplan::cli {

std::string_view chart_library();  ///< Chart.js, minified, with its licence line
std::string_view page_script();
std::string_view page_style();

}  // namespace moeplan::cli
