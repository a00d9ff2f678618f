#pragma once
/// Things and lines as SVG with its legend.

#include <string>

#include "cli/report/page.hpp"

namespace moeplan::cli {

std::string diagram_html(const Diagram&);

}  // namespace moeplan::cli
