#pragma once
/// From any outputs of ours to a page.

#include <string>
#include <vector>

#include "cli/report/report_file.hpp"
#include "core/json.hpp"

namespace moeplan::cli {

class Page;

/// One page over all of them, in the order of the data flow: training, routing, profile, step,
/// plan, validation. Training records of several files share their charts.
std::string page_for(const std::vector<ReportFile>&, const std::string& title = "");
inline std::string page_for(const Json& answer, const std::string& name) {
    return page_for({report_of(answer, name)}, name);
}

/// For --html FILE of any subcommand: writes the page of its answer, if a file was given.
void write_page(const std::string& html_file, const Json& answer, const std::string& name);
void write_page(const std::string& html_file, const std::vector<ReportFile>&,
                const std::string& title);

/// The sections of one file, for pages that are put together otherwise.
void add_sections(Page&, const ReportFile&);

}  // namespace moeplan::cli
