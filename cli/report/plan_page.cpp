#include "cli/report/plan_page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "core/quantity_text.hpp"

namespace moeplan::cli {
namespace {

std::string figure(const char* format, double value) {
    char text[64];
    std::snprintf(text, sizeof text, format, value);
    return text;
}

std::string word(const JsonReader& object, const char* key) {
    const auto found = object.find(key);
    if (!found) return "-";
    return found->is_string() ? found->text() : found->value().dump();
}

std::string layout_of(const JsonReader& candidate) {
    const JsonReader layout = candidate.at("layout");
    std::string out;
    for (const char* key :
         {"tp", "cp", "pp", "dp", "ep", "etp", "micro_batch", "vpp", "zero", "recompute"})
        if (layout.has(key)) {
            const std::string value = word(layout, key);
            if (value == "1" && (std::string(key) == "cp" || std::string(key) == "etp" ||
                                 std::string(key) == "vpp"))
                continue;
            const std::string name = std::string(key) == "micro_batch" ? "micro-batch" : key;
            // "zero 1", not "zero zero1"
            out += (out.empty() ? "" : ", ") + name + " " +
                   (value.starts_with(name) ? value.substr(name.size()) : value);
        }
    return out;
}

std::string candidate_name(const JsonReader& candidate) {
    const std::string heads = word(candidate, "heads");
    return heads + (heads == "1" ? " head, " : " heads, ") + word(candidate, "experts") +
           " experts, top-" + word(candidate, "top_k");
}

void list_of(Page& page, const JsonReader& object, const char* key) {
    const auto found = object.find(key);
    if (!found || !found->is_array() || found->size() == 0) return;
    std::vector<std::string> items;
    for (const JsonReader& item : found->items())
        items.push_back(item.is_string() ? item.text() : item.value().dump());
    page.list(items);
}

}  // namespace

std::string plan_title(const JsonReader& plan) {
    const auto cluster = plan.find("cluster");
    return "Plan of " + plan.text_or("model", "a model") + " for " +
           (cluster && cluster->is_object() ? cluster->text_or("name", "a cluster") : "a cluster");
}

void add_plan_sections(Page& page, const JsonReader& plan) {
    const std::vector<JsonReader> candidates = plan.at("candidates").items();
    std::set<int> front;
    for (const JsonReader& index : plan.at("front").items()) front.insert(index.count(0));

    if (candidates.empty()) {
        page.paragraph("Nothing fits. " + plan.text_or("nearest", ""));
    } else {
        const JsonReader best = candidates.front(), predicted = best.at("predicted");
        page.figures(
            {{to_text(Seconds{predicted.at("step_time_s").number()}), "a step"},
             {rounded_text(predicted.at("tokens_per_second").number()), "tokens a second"},
             {figure("%.1f %%", 100 * predicted.at("mfu").number()), "of peak flops (MFU)"},
             {to_text(Bytes{best.at("fullest_rank_bytes").number()}), "on the fullest GPU"}});
        page.paragraph("Best by " + plan.text_or("objective", "throughput") + ": " +
                       candidate_name(best) + "; " + layout_of(best) + ".");
        std::vector<std::vector<std::string>> rows;
        Series others{"candidates", {}, {}, false, false}, kept{"front", {}, {}, true, false};
        std::set<double> losses;
        for (std::size_t i = 0; i < candidates.size(); ++i) {
            const JsonReader& c = candidates[i];
            const double step = c.at("predicted").at("step_time_s").number();
            const bool on_front = front.contains(static_cast<int>(i));
            std::string loss = "-";
            if (const auto quality = c.find("quality")) {
                loss = figure("%.3f", quality->at("loss").number()) + " (" +
                       figure("%.3f", quality->at("low").number()) + " … " +
                       figure("%.3f", quality->at("high").number()) + ")";
                losses.insert(quality->at("loss").number());
                Series& into = on_front ? kept : others;
                into.points.push_back({step, quality->at("loss").number()});
                into.labels.push_back(candidate_name(c) + "; " + layout_of(c));
            }
            rows.push_back({std::to_string(i) + (on_front ? " *" : ""), word(c, "heads"),
                            word(c, "experts"), word(c, "top_k"), layout_of(c),
                            to_text(Seconds{step}),
                            figure("%.1f %%", 100 * c.at("predicted").at("mfu").number()),
                            to_text(Bytes{c.at("fullest_rank_bytes").number()}), loss});
        }
        page.table(
            {"", "heads", "experts", "top-k", "layout", "step", "MFU", "memory", "loss (range)"},
            rows);
        page.paragraph(
            "* not dominated in step time, loss range and memory among these candidates.");
        Chart chart;
        chart.kind = ChartKind::scatter;
        chart.title = "Step time against loss";
        chart.x_axis = "step time (s)";
        chart.y_axis = "loss (nats a token)";
        chart.words =
            "Each candidate by its step time and the loss its law estimates; the front is drawn "
            "stronger.";
        chart.y_from_zero = false;
        for (Series* series : {&kept, &others})
            if (!series->points.empty()) chart.series.push_back(*series);
        // One model in several layouts: their losses are one and the same.
        if (losses.size() > 1) page.chart(chart);
    }

    if (const auto refused = plan.find("refused"); refused && refused->size() > 0) {
        page.section("Refused");
        std::vector<std::vector<std::string>> rows;
        const auto examples = plan.find("refused_examples");
        for (const auto& [rule, count] : refused->members())
            rows.push_back({rule, count.value().dump(),
                            examples ? examples->text_or(rule, "") : std::string()});
        page.table({"rule", "combinations", "for example"}, rows);
    }
    if (const auto placement = plan.find("placement")) {
        page.section("Placing experts");
        page.paragraph(
            "Busiest rank over the mean on later steps of the trace: " +
            figure("%.3f", placement->at("contiguous_max_over_mean").number()) + " in blocks, " +
            figure("%.3f", placement->at("placed_max_over_mean").number()) + " by popularity, " +
            figure("%.3f", placement->at("replicated_max_over_mean").number()) + " with " +
            word(*placement, "spare_slots") + " spare slot(s) a rank.");
    }
    page.section("What the plan rests on");
    list_of(page, plan, "assumptions");
    if (!candidates.empty()) {
        const auto basis = candidates.front().at("predicted").find("basis");
        if (basis) {
            std::vector<std::string> shares;
            for (const auto& [name, share] : basis->members())
                if (share.number() > 0)
                    shares.push_back(figure("%.0f %% of kernel time ", 100 * share.number()) +
                                     name);
            page.list(shares);
        }
        if (const auto quality = candidates.front().find("quality"))
            list_of(page, *quality, "notes");
    }
}

void add_validation_sections(Page& page, const JsonReader& validation) {
    page.section("Predicted beside measured");
    page.paragraph(validation.boolean_or("passed", false) ? "Every tolerance was kept."
                                                          : "A tolerance was missed.");
    if (const auto pace = validation.find("machine_pace"))
        page.paragraph(fmt::format(
            "A reference piece of work took {:.2f} times as long around the steps as in the profile; "
            "at that pace of the machine {} a step are predicted ({:+.1f} %).",
            pace->at("slower").number(), to_text(Seconds{pace->at("predicted_step_time_s").number()}),
            100 * pace->at("relative_error").number()));
    std::vector<std::vector<std::string>> rows;
    Chart chart;
    chart.kind = ChartKind::bars;
    chart.title = "Predicted and measured times";
    chart.y_axis = "seconds";
    chart.words = "For each part of a step, the predicted time beside the measured one.";
    Series predicted{"predicted", {}, {}, false, false}, measured{"measured", {}, {}, true, false};
    for (const JsonReader& field : validation.at("fields").items()) {
        const auto a = field.find("predicted"), b = field.find("measured");
        if (!a || !b) continue;
        const std::string name = field.at("field").text();
        const auto error = field.find("relative_error"), tolerance = field.find("tolerance");
        rows.push_back({name, figure("%.6g", a->number()), figure("%.6g", b->number()),
                        error ? figure("%+.1f %%", 100 * error->number()) : "-",
                        tolerance ? figure("%.0f %%", 100 * tolerance->number()) : "",
                        tolerance ? (field.boolean_or("passed", false) ? "kept" : "missed") : ""});
        if (name.ends_with("_s") && (name == "step_time_s" || name.starts_with("exposed.")) &&
            (a->number() > 0 || b->number() > 0)) {
            chart.categories.push_back(name);
            predicted.points.push_back({0, a->number()});
            measured.points.push_back({0, b->number()});
        }
    }
    chart.series = {predicted, measured};
    if (!chart.categories.empty()) page.chart(chart);
    page.table({"field", "predicted", "measured", "error", "tolerance", ""}, rows);
    if (const auto shrunk = validation.find("shrunk")) {
        page.paragraph("Made smaller for this machine:");
        list_of(page, *shrunk, "changes");
        page.paragraph("This run checks:");
        list_of(page, *shrunk, "checked");
        page.paragraph("It cannot check:");
        list_of(page, *shrunk, "unchecked");
    }
}

}  // namespace moeplan::cli
