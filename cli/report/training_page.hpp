#pragma once
/// Page of training records: loss, balance and speed over the steps.

#include <vector>

#include "cli/report/page.hpp"
#include "cli/report/report_file.hpp"

namespace moeplan::cli {

/// Records of several runs share their charts.
void add_training_sections(Page&, const std::vector<const ReportFile*>&);

}  // namespace moeplan::cli
