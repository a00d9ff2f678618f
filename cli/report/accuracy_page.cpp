#include "cli/report/accuracy_page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

namespace moeplan::cli {
namespace {

constexpr std::size_t kMostSweeps = 40;

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

std::string spaced(std::string text) {
    std::replace(text.begin(), text.end(), '_', ' ');
    return text;
}

void add_head(Page& page, const JsonReader& answer) {
    const JsonReader summary = answer.at("summary");
    page.section("Step times");
    page.figures({{percent(summary.at("median_error").number()), "median error"},
                  {percent(summary.at("mean_error").number()), "mean error"},
                  {percent(summary.at("p90_error").number()), "nine of ten are within"},
                  {std::to_string(summary.count_or("step_times", 0)), "published steps"}});
    std::vector<std::vector<std::string>> rows;
    for (const auto& [key, name] :
         {std::pair<const char*, const char*>{"summary_neutral", "benchmarks taken at their word"},
          {"summary", "fitted constants"},
          {"summary_source_left_out", "each source predicted without its own records"}}) {
        const auto part = answer.find(key);
        if (!part || (part->has("records") && part->count_or("records", 0) == 0)) continue;
        rows.push_back({name, percent(part->number_or("median_error", 0)),
                        percent(part->number_or("mean_error", 0)),
                        percent(part->number_or("p90_error", 0)),
                        fmt::format("{:.2f}", part->number_or("bias", 1)),
                        part->has("coverage") ? percent(part->at("coverage").number()) : "–"});
    }
    page.table({"prediction", "median", "mean", "p90", "predicted / measured", "in its interval"},
               rows);
    page.paragraph(fmt::format(
        "{} figures were predicted, {} of them with assumptions where the source is silent; {} "
        "records were skipped. By the memory estimate {} of {} runs that took place do not fit.",
        summary.count_or("predicted", 0), summary.count_or("with_assumptions", 0),
        summary.count_or("skipped", 0), summary.count_or("memory_refuses", 0),
        summary.count_or("memory_runs", 0)));
}

/// Predicted over measured, so that errors show on a logarithmic axis of any length.
void add_pictures(Page& page, const JsonReader& records) {
    struct Cloud {
        Series agree;
        Series ratio;
    };
    std::map<std::string, std::map<std::string, Cloud>> clouds;  // metric, architecture
    for (const JsonReader& record : records.items()) {
        if (!record.is_object() || !record.has("predicted") || !record.has("measured")) continue;
        if (record.has("held_out")) continue;  // thousands of points: a table below
        const double predicted = record.at("predicted").number(),
                     measured = record.at("measured").number();
        if (!(predicted > 0) || !(measured > 0)) continue;
        const bool memory = record.text_or("metric", "").starts_with("peak_memory");
        const double unit = memory ? 1024.0 * 1024 * 1024 : 1;
        const std::string label = record.text_or("id", "") + ": " +
                                  fmt::format("{:.3g} / {:.3g}", predicted / unit, measured / unit);
        Cloud& cloud =
            clouds[record.text_or("metric", "value")][record.text_or("architecture", "all")];
        for (Series* series : {&cloud.agree, &cloud.ratio}) {
            series->line = false;
            series->labels.push_back(label);
        }
        cloud.agree.points.push_back({measured / unit, predicted / unit});
        cloud.ratio.points.push_back({measured / unit, predicted / measured});
    }
    // Whole steps first: they are what the page is opened for.
    std::vector<std::string> order;
    for (const auto& [metric, series] : clouds) order.push_back(metric);
    std::stable_partition(order.begin(), order.end(),
                          [](const std::string& metric) { return metric == "step_time"; });
    for (const std::string& metric : order) {
        auto& series = clouds[metric];
        const bool memory = metric.starts_with("peak_memory");
        const std::string unit = memory ? " (GiB)" : " (s)";
        Chart agree{.kind = ChartKind::scatter,
                    .title = "Predicted against measured: " + spaced(metric),
                    .x_axis = "measured" + unit,
                    .y_axis = "predicted" + unit,
                    .words = "On the line, prediction and measurement agree.",
                    .log_x = true,
                    .log_y = true};
        Chart ratio{.kind = ChartKind::scatter,
                    .title = "Predicted over measured: " + spaced(metric),
                    .x_axis = "measured" + unit,
                    .y_axis = "predicted / measured",
                    .words = "At 1 they agree; half and twice are equally far on this scale.",
                    .log_x = true,
                    .log_y = true};
        double low = 1e300, high = 0;
        for (auto& [architecture, cloud] : series) {
            for (const auto& [x, y] : cloud.agree.points)
                low = std::min({low, x, y}), high = std::max({high, x, y});
            cloud.agree.name = cloud.ratio.name =
                architecture == "moe" ? "MoE" : spaced(architecture);
            agree.series.push_back(std::move(cloud.agree));
            ratio.series.push_back(std::move(cloud.ratio));
        }
        agree.series.push_back(
            {.name = "equal", .points = {{low, low}, {high, high}}, .guide = true});
        ratio.series.push_back({.name = "equal", .points = {{low, 1}, {high, 1}}, .guide = true});
        page.chart(agree);
        if (metric == "step_time") page.chart(ratio);
    }
}

void add_groups(Page& page, const JsonReader& by) {
    page.section("By what was run");
    for (const auto& [key, groups] : by.members()) {
        Chart bars{.kind = ChartKind::bars,
                   .title = "Mean error by " + spaced(key),
                   .x_axis = "mean error (%)",
                   .words = "The table below has the figures.",
                   .horizontal = true};
        Series mean{.name = "mean error"};
        std::vector<std::vector<std::string>> rows;
        for (const auto& [value, part] : groups.members()) {
            bars.categories.push_back(spaced(value));
            mean.points.push_back({0, 100 * part.number_or("mean_error", 0)});
            rows.push_back({key == "metric" ? spaced(value) : value,
                            std::to_string(part.count_or("records", 0)),
                            percent(part.number_or("median_error", 0)),
                            percent(part.number_or("mean_error", 0)),
                            percent(part.number_or("p90_error", 0)),
                            fmt::format("{:.2f}", part.number_or("bias", 1))});
        }
        bars.series = {mean};
        if (key == "source") page.chart(bars);
        page.table({spaced(key), "records", "median", "mean", "p90", "predicted / measured"}, rows);
    }
}

void add_sweeps(Page& page, const JsonReader& sweeps, const std::optional<JsonReader>& families) {
    if (sweeps.size() == 0) return;
    page.section("Would it have chosen well?");
    page.paragraph(
        "Runs of one source that share model, GPUs, batch, precision and software and differ in "
        "what a planner chooses: how well predictions rank them (Spearman), and how much slower "
        "than the best measured one the layout is that we would pick, and the best of our first "
        "three. Where batch and sequence differ too, times a token are put in order.");
    if (families && families->is_array()) {
        std::vector<std::vector<std::string>> of_families;
        for (const JsonReader& family : families->items())
            of_families.push_back({family.text_or("family", ""),
                                   std::to_string(family.count_or("sweeps", 0)),
                                   std::to_string(family.count_or("runs", 0)),
                                   fmt::format("{:.3f}", family.number_or("median_spearman", 0)),
                                   fmt::format("{:.3f}", family.number_or("lowest_spearman", 0)),
                                   percent(family.number_or("mean_regret", 0)),
                                   percent(family.number_or("mean_best_of_3_regret", 0))});
        page.table({"source", "sweeps", "runs", "median rank correlation", "lowest",
                    "our pick, mean", "best of our three, mean"},
                   of_families);
    }
    std::vector<std::vector<std::string>> rows;
    for (const JsonReader& sweep : sweeps.items()) {
        if (rows.size() >= kMostSweeps) break;
        rows.push_back({sweep.text_or("name", ""), std::to_string(sweep.count_or("count", 0)),
                        fmt::format("{:.3f}", sweep.number_or("spearman", 0)),
                        percent(sweep.number_or("regret", 0)),
                        percent(sweep.number_or("best_of_3_regret", 0))});
    }
    page.table({"sweep", "runs", "rank correlation", "our pick", "best of our three"}, rows);
    if (sweeps.size() > rows.size())
        page.paragraph(fmt::format("The first {} of {}.", rows.size(), sweeps.size()));
}

void add_held_out(Page& page, const JsonReader& held_out) {
    if (held_out.size() == 0) return;
    page.section("Kernels and collectives, from profiles built without them");
    std::vector<std::vector<std::string>> rows;
    for (const JsonReader& part : held_out.items())
        rows.push_back({spaced(part.text_or("kind", "")), part.text_or("variant", ""),
                        part.text_or("held_out", ""), std::to_string(part.count_or("records", 0)),
                        percent(part.number_or("median_error", 0)),
                        percent(part.number_or("mean_error", 0)),
                        percent(part.number_or("p90_error", 0)),
                        fmt::format("{:.2f}", part.number_or("bias", 1))});
    page.table(
        {"kind", "variant", "left out", "points", "median", "mean", "p90", "predicted / measured"},
        rows);
}

void add_worst(Page& page, const JsonReader& worst) {
    if (worst.size() == 0) return;
    page.section("Furthest off");
    std::vector<std::vector<std::string>> rows;
    for (const JsonReader& row : worst.items())
        rows.push_back({row.text_or("id", ""),
                        fmt::format("{:.2f}", row.number_or("predicted_over_measured", 1)),
                        row.text_or("cause", "")});
    page.table({"record", "predicted / measured", "where to look"}, rows);
}

void add_skipped(Page& page, const JsonReader& records) {
    std::map<std::string, int> counts, assumed;
    for (const JsonReader& record : records.items()) {
        if (!record.is_object()) continue;
        if (record.has("skipped")) ++counts[record.at("skipped").text()];
        if (const auto list = record.find("assumed"); list && list->is_array())
            for (const JsonReader& item : list->items()) {
                const std::string text = item.text();
                ++assumed[text.substr(0, text.find(": "))];
            }
    }
    const auto table = [&](const char* head, const std::map<std::string, int>& counted) {
        std::vector<std::pair<std::string, int>> sorted(counted.begin(), counted.end());
        std::stable_sort(sorted.begin(), sorted.end(),
                         [](const auto& a, const auto& b) { return a.second > b.second; });
        std::vector<std::vector<std::string>> rows;
        for (const auto& [text, count] : sorted)
            if (rows.size() < kMostSweeps) rows.push_back({text, std::to_string(count)});
        if (!rows.empty()) page.table({head, "records"}, rows);
    };
    page.section("What was assumed, and what was skipped");
    table("assumed", assumed);
    table("skipped", counts);
}

}  // namespace

void add_accuracy_sections(Page& page, const JsonReader& answer) {
    add_head(page, answer);
    const JsonReader records = answer.at("records");
    add_pictures(page, records);
    if (const auto by = answer.find("by"); by && by->is_object()) add_groups(page, *by);
    if (const auto sweeps = answer.find("sweeps"); sweeps && sweeps->is_array())
        add_sweeps(page, *sweeps, answer.find("sweep_families"));
    if (const auto held_out = answer.find("held_out"); held_out && held_out->is_array())
        add_held_out(page, *held_out);
    if (const auto worst = answer.find("worst"); worst && worst->is_array())
        add_worst(page, *worst);
    add_skipped(page, records);
}

}  // namespace moeplan::cli
