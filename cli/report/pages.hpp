#pragma once
/// From any output of ours to a page: what a file is, is seen from its content.

#include <filesystem>
#include <string>
#include <vector>

#include "core/json.hpp"

namespace moeplan::cli {

class Page;

/// What a page can show of a file.
enum class ReportKind {
    step,
    timeline,
    plan,
    validation,
    accuracy,
    profile,
    trace,
    training,
    corpus,
    collective,
    comparison,
    cluster,
    model,
    check,
    other
};

/// One file of ours, read. A training record (JSON lines) is an array of its lines, a routing trace
/// its statistics.
struct ReportFile {
    std::string name;  ///< for people: the file's name
    ReportKind kind = ReportKind::other;
    JsonReader answer;
};

/// @throws InputError if it is none of ours
ReportFile read_report_file(const std::filesystem::path&);
ReportFile report_of(const Json& answer, const std::string& name);  ///< an answer still in hand

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
void add_training_section(Page&, const std::vector<const ReportFile*>&);

}  // namespace moeplan::cli
