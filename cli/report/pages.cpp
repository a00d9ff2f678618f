#include "cli/report/pages.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "cli/report/accuracy_page.hpp"
#include "cli/report/cluster_page.hpp"
#include "cli/report/collective_page.hpp"
#include "cli/report/model_page.hpp"
#include "cli/report/other_page.hpp"
#include "cli/report/page.hpp"
#include "cli/report/plan_page.hpp"
#include "cli/report/profile_page.hpp"
#include "cli/report/step_page.hpp"
#include "cli/report/trace_page.hpp"
#include "cli/report/training_page.hpp"
#include "cli/report/values.hpp"
#include "core/output_file.hpp"
#include "core/text.hpp"

namespace moeplan::cli {
namespace {

/// The plan's own sections, memory beside them, and the recommended step in full.
void add_plan(Page& page, const JsonReader& r) {
    add_plan_sections(page, r);
    const auto candidates = r.at("candidates");
    if (candidates.size() == 0) return;
    std::set<std::size_t> front;
    for (const double i : numbers(r.find("front")))
        front.insert(static_cast<std::size_t>(std::max(0.0, i)));
    Chart memory{.kind = ChartKind::scatter,
                 .title = "Step time against memory",
                 .x_axis = "step time (s)",
                 .y_axis = "fullest rank (GiB)",
                 .words = "Points further down leave more memory free."};
    memory.y_from_zero = false;
    Series on_front{.name = "front", .emphasised = true, .line = false},
        others{.name = "candidates", .line = false};
    for (std::size_t i = 0; i < candidates.size(); ++i) {
        const auto c = candidates.at(i);
        double bytes = c.number_or("fullest_rank_bytes", 0);
        for (const double b : numbers(c.at("predicted").find("peak_memory_bytes")))
            bytes = std::max(bytes, b);
        Series& series = front.contains(i) ? on_front : others;
        series.points.push_back(
            {c.at("predicted").at("step_time_s").number(), bytes / (1024.0 * 1024 * 1024)});
        series.labels.push_back("candidate " + std::to_string(i));
    }
    for (Series* series : {&on_front, &others})
        if (!series->points.empty()) memory.series.push_back(std::move(*series));
    page.chart(memory);
    page.section("The recommended step");
    add_step_sections(page, candidates.at(std::size_t{0}).at("predicted"));
}

/// "model" of "moeplan/model.schema.json", as a heading; empty without a schema.
std::string schema_word(const JsonReader& r) {
    std::string word = r.is_object() ? r.text_or("$schema", "") : "";
    word = word.substr(word.rfind('/') + 1);
    word = spaced(word.substr(0, word.find('.')));
    std::replace(word.begin(), word.end(), '-', ' ');
    return capital(word);
}

/// The answer first, then what it rests on. (Training records share charts, so files of a kind
/// stand together.)
int place_of(ReportKind kind) {
    static const std::vector<ReportKind> order = {
        ReportKind::plan,       ReportKind::step,       ReportKind::timeline,
        ReportKind::comparison, ReportKind::validation, ReportKind::accuracy,
        ReportKind::training,   ReportKind::trace,      ReportKind::profile,
        ReportKind::collective, ReportKind::model,      ReportKind::check,
        ReportKind::cluster,    ReportKind::corpus,     ReportKind::other};
    return static_cast<int>(std::find(order.begin(), order.end(), kind) - order.begin());
}

}  // namespace

void add_sections(Page& page, const ReportFile& file) {
    switch (file.kind) {
        case ReportKind::step:
            return add_step_sections(page, file.answer);
        case ReportKind::timeline:
            return add_timeline_sections(page, file.answer);
        case ReportKind::plan:
            return add_plan(page, file.answer);
        case ReportKind::validation:
            return add_validation_sections(page, file.answer);
        case ReportKind::accuracy:
            return add_accuracy_sections(page, file.answer);
        case ReportKind::profile:
            return add_profile_sections(page, file.answer);
        case ReportKind::trace:
            return add_trace_sections(page, file.answer);
        case ReportKind::training:
            return add_training_sections(page, {&file});
        case ReportKind::collective:
            return add_collective_sections(page, file.answer);
        case ReportKind::comparison:
            return add_comparison_sections(page, file.answer);
        case ReportKind::cluster:
            return add_cluster_sections(page, file.answer);
        case ReportKind::model:
            return add_model_sections(page, file.answer);
        case ReportKind::check:
            return add_check_sections(page, file.answer);
        case ReportKind::corpus:
        case ReportKind::other:
            return add_other_sections(page, file.answer);
    }
}

namespace {

/// What a page over one file is called, and what stands beneath.
std::pair<std::string, std::string> heading_of(const ReportFile& file) {
    const std::string kind = kind_title(file.kind);
    switch (file.kind) {
        case ReportKind::cluster:
            return {kind + ": " + cluster_title(file.answer),
                    "Its GPUs and the links between them"};
        case ReportKind::model:
            return {kind + ": " + file.answer.text_or("name", file.name),
                    "Its parameters and flops"};
        case ReportKind::check:
            return {check_title(file.answer), file.name};
        case ReportKind::collective:
            return {collective_title(file.answer), kind};
        case ReportKind::plan:
            return {plan_title(file.answer), file.name};
        case ReportKind::other: {
            const std::string name = file.answer.text_or("name", file.name),
                              what = schema_word(file.answer);
            return {what.empty() ? kind : what + (name.empty() ? "" : ": " + name),
                    name == file.name ? "" : file.name};
        }
        default:
            return {kind, file.name};
    }
}

}  // namespace

std::string page_for(const std::vector<ReportFile>& files, const std::string& title) {
    std::vector<std::string> names;
    for (const auto& file : files)
        if (!file.name.empty() && file.name != title) names.push_back(file.name);
    auto [heading, beneath] = files.size() == 1 ? heading_of(files[0])
                                                : std::pair<std::string, std::string>(
                                                      "moeplan report", join(names, ", "));
    if (!title.empty()) {
        beneath = !names.empty()  ? join(names, ", ")
                  : files.empty() ? ""
                                  : kind_title(files[0].kind);
        heading = title;
    }
    Page page(heading, beneath);
    std::vector<const ReportFile*> order;
    for (const auto& file : files) order.push_back(&file);
    std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
        return place_of(a->kind) < place_of(b->kind);
    });
    std::vector<const ReportFile*> training;
    for (const auto* file : order)
        if (file->kind == ReportKind::training) training.push_back(file);
    bool training_done = false;
    for (const auto* file : order) {
        if (file->kind == ReportKind::training) {
            if (training_done) continue;
            training_done = true;
            if (files.size() > 1) page.section("Training");
            add_training_sections(page, training);
            continue;
        }
        if (files.size() > 1 && file->kind == ReportKind::plan)
            page.section(plan_title(file->answer));
        else if (files.size() > 1 && file->kind != ReportKind::validation) {
            // The first file without a name is what the page itself is named after.
            if (!file->name.empty() || file != order.front())
                page.section(kind_title(file->kind) +
                             (file->name.empty() ? "" : ": " + file->name));
        }
        add_sections(page, *file);
    }
    return page.html();
}

void write_page(const std::string& html_file, const Json& answer, const std::string& name) {
    if (!html_file.empty()) write_whole(html_file, page_for(answer, name));
}

void write_page(const std::string& html_file, const std::vector<ReportFile>& files,
                const std::string& title) {
    if (!html_file.empty()) write_whole(html_file, page_for(files, title));
}

}  // namespace moeplan::cli
