#pragma once
/// Any output of ours, read: what a file is, is seen from its content.

#include <filesystem>
#include <string>

#include "core/json.hpp"

namespace moeplan::cli {

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

/// "Routing trace" …, for headings.
std::string kind_title(ReportKind);

}  // namespace moeplan::cli
