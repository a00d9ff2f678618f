#include "cli/report/model_page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/report/values.hpp"
#include "core/quantity_text.hpp"
#include "core/text.hpp"

namespace moeplan::cli {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024, kBillion = 1e9;
constexpr std::size_t kMostStages = 64;  ///< bars that a picture can tell apart

std::string billions(double count) {
    return count >= 1e8 ? fmt::format("{:.3g} B", count / kBillion)
                        : fmt::format("{:.3g} M", count / 1e6);
}

/// Counts of an answer with their thousands apart; what else it says as it stands.
std::string fact_text(const std::string& key, const JsonReader& value) {
    if (value.is_number() && value.number() == std::floor(value.number()) && !key.ends_with("_s") &&
        !key.ends_with("bytes"))
        return count_text(value.number());
    return value_text(key, value);
}

void add_facts(Page& page, const JsonReader& object) {
    std::vector<std::pair<std::string, std::string>> facts;
    for (const auto& [key, value] : object.members())
        if (key != "$schema" && key != "version" && key != "name" && !value.is_object() &&
            !value.is_array())
            facts.emplace_back(spaced(key), fact_text(key, value));
    if (!facts.empty()) page.facts(facts);
}

void add_findings(Page& page, const JsonReader& r, const char* key, const char* heading) {
    const auto findings = r.find(key);
    if (!findings || !findings->is_array() || findings->size() == 0) return;
    page.section(heading);
    std::vector<std::vector<std::string>> rows;
    for (const auto& finding : findings->items())
        rows.push_back({spaced(finding.text_or("rule", "")), finding.text_or("detail", ""),
                        join(texts(finding.find("nearest")), ", ")});
    page.table({"rule", "what", "would do"}, rows);
}

void add_memory_by_stage(Page& page, const JsonReader& memory) {
    Chart chart{.kind = ChartKind::stacked_bars,
                .title = "Memory of the fullest rank of each stage",
                .x_axis = "stage",
                .y_axis = "GiB"};
    for (const char* part :
         {"weights", "gradients", "optimizer", "activations", "dispatch", "other"}) {
        Series series{.name = part};
        double most = 0;
        for (const auto& stage : memory.items()) {
            const double bytes = stage.number_or(std::string(part) + "_bytes", 0);
            most = std::max(most, bytes);
            if (series.points.size() < kMostStages) series.points.push_back({0, bytes / kGiB});
        }
        if (most > 0) chart.series.push_back(std::move(series));
    }
    for (const auto& stage : memory.items())
        if (chart.categories.size() < kMostStages)
            chart.categories.push_back(std::to_string(stage.count_or("stage", 0)));
    const double limit = memory.at(std::size_t{0}).number_or("limit_bytes", 0);
    chart.words = (limit > 0 ? "A GPU has " + to_text(Bytes{limit}) + "." : std::string()) +
                  (memory.size() > kMostStages
                       ? fmt::format(" The first {} of {} stages.", kMostStages, memory.size())
                       : "");
    page.chart(chart);
}

}  // namespace

void add_model_sections(Page& page, const JsonReader& r) {
    const double total = number_at(r, {"parameters", "total"}, 0),
                 active = number_at(r, {"parameters", "active", "with_embeddings"}, 0);
    std::vector<std::pair<std::string, std::string>> figures = {{billions(total), "parameters"}};
    if (active > 0 && active != total)
        figures.push_back({billions(active), "active a token, with embeddings"});
    figures.push_back({count_text(r.number_or("layers", 0)),
                       "layers, " + count_text(r.number_or("moe_layers", 0)) + " with experts"});
    if (const auto moe = r.find("moe"); moe && moe->is_object())
        figures.push_back(
            {fmt::format("{} of {}", moe->count_or("top_k", 0), moe->count_or("num_experts", 0)),
             "experts a token visits"});
    figures.push_back(
        {to_text(Flops{number_at(r, {"flops_per_token", "training"}, 0)}), "to train on a token"});
    page.figures(figures);

    if (const auto all = r.at("parameters").find("parts"); all && all->is_object()) {
        std::vector<std::pair<double, std::string>> parts;
        for (const auto& [name, count] : all->members())
            if (count.number() > 0) parts.emplace_back(count.number(), spaced(name));
        std::sort(parts.rbegin(), parts.rend());
        Chart chart{.kind = ChartKind::bars,
                    .title = "Where the parameters are",
                    .x_axis = "billions",
                    .words = "Each part of all layers together.",
                    .horizontal = true};
        Series series;
        for (const auto& [count, name] : parts) {
            chart.categories.push_back(name);
            series.points.push_back({0, count / kBillion});
        }
        chart.series = {series};
        page.chart(chart);
    }
    page.section("Its shape");
    add_facts(page, r);
    for (const char* key : {"attention", "moe", "flops_per_token"})
        if (const auto part = r.find(key); part && part->is_object()) {
            page.section(std::string(key) == "moe"         ? "Experts"
                         : std::string(key) == "attention" ? "Attention"
                                                           : "Flops per token");
            add_facts(page, *part);
        }
}

std::string check_title(const JsonReader& r) {
    return "Layout: " + spaced(r.text_or("verdict", "?"));
}

void add_check_sections(Page& page, const JsonReader& r) {
    std::vector<std::pair<std::string, std::string>> figures;
    const auto memory = r.find("memory");
    const bool has_memory = memory && memory->is_array() && memory->size() > 0;
    if (has_memory) {
        double most = 0, limit = 0;
        for (const auto& stage : memory->items()) {
            most = std::max(most, stage.number_or("total_bytes", 0));
            limit = stage.number_or("limit_bytes", 0);
        }
        figures.push_back({to_text(Bytes{most}), "fullest rank, of " + to_text(Bytes{limit})});
    }
    if (const auto layout = r.find("layout"); layout && layout->is_object())
        for (const auto& [key, what] :
             {std::pair("tp", "tensor parallel"), std::pair("pp", "pipeline stages"),
              std::pair("dp", "data parallel"), std::pair("ep", "expert parallel")})
            if (layout->has(key)) figures.push_back({fact_text(key, layout->at(key)), what});
    if (!figures.empty()) page.figures(figures);
    if (has_memory) add_memory_by_stage(page, *memory);
    add_findings(page, r, "broken", "What is broken");
    add_findings(page, r, "warnings", "Warnings");
    if (const auto assumed = r.find("assumptions"); assumed && assumed->size() > 0) {
        page.section("Assumed");
        std::vector<std::pair<std::string, std::string>> facts;
        for (const auto& line : assumed->items()) {
            const std::string key = line.text_or("key", ""),
                              value = line.has("value") ? fact_text("", line.at("value")) : "";
            // "zero1", not "zero zero1"
            facts.emplace_back(value.starts_with(key) ? value : spaced(key) + " " + value,
                               line.text_or("detail", ""));
        }
        page.facts(facts);
    }
    if (const auto layout = r.find("layout"); layout && layout->is_object()) {
        page.section("The layout");
        add_facts(page, *layout);
    }
}

}  // namespace moeplan::cli
