#include "cli/report/trace_page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/report/values.hpp"
#include "core/quantity_text.hpp"
#include "core/text.hpp"

namespace moeplan::cli {

void add_trace_sections(Page& page, const JsonReader& r) {
    const int experts = r.at("num_experts").count(1);
    page.figures({{count_text(r.number_or("tokens", 0)),
                   "tokens in " + std::to_string(r.count_or("steps", 0)) +
                       (r.count_or("steps", 0) == 1 ? " step" : " steps")},
                  {fmt::format("top {} of {}", r.count_or("top_k", 0), experts),
                   r.count_or("num_moe_heads", 1) > 1
                       ? std::to_string(r.count_or("num_moe_heads", 1)) + " MoE heads"
                       : "experts"},
                  {spaced(r.text_or("source", "?")), "source"}});
    HeatMap heat{.title = "Load of the experts, over the mean",
                 .x_axis = "expert",
                 .y_axis = "layer",
                 .words =
                     "One row a MoE layer, one column an expert, over all steps; an even row is a "
                     "balanced layer.",
                 .unit = "× the mean"};
    Chart ranks{
        .kind = ChartKind::line,
        .title = "Busiest rank over the mean, in one micro-batch",
        .x_axis = "expert-parallel ranks",
        .y_axis = "max / mean",
        .words = "What a layer waits for, when experts lie in equal blocks; 1 is perfect balance.",
        .log_x = true};
    ranks.y_from_zero = false;
    std::vector<std::vector<std::string>> rows;
    const auto layers = r.at("layers");
    for (const std::size_t i : evenly(layers.size(), kMostRows)) {
        const auto layer = layers.at(i);
        const std::string name =
            "layer " + std::to_string(layer.count_or("layer", static_cast<int>(i)));
        auto counts = numbers(layer.find("tokens_per_expert"));
        double total = 0;
        for (const double c : counts) total += c;
        for (double& c : counts) c = total > 0 ? c * static_cast<double>(counts.size()) / total : 0;
        heat.rows.push_back(name);
        heat.values.push_back(std::move(counts));
        Series series{.name = name};
        if (const auto micro_batch = layer.find("micro_batch");
            micro_batch && micro_batch->has("by_ranks"))
            for (const auto& [n, value] : micro_batch->at("by_ranks").members())
                series.points.push_back({std::stod(n), number_at(value, {"mean"}, 1)});
        if (!series.points.empty() && ranks.series.size() < 8)
            ranks.series.push_back(std::move(series));
        const auto cell = [&](const char* key) {
            return layer.has(key) && layer.at(key).is_number()
                       ? fmt::format("{:.3g}", layer.at(key).number())
                       : std::string("–");
        };
        rows.push_back(
            {name, cell("max_over_mean"),
             fmt::format("{:.3g}", number_at(layer, {"micro_batch", "max_over_mean", "mean"}, 1)),
             cell("gini"), cell("entropy"), cell("experts_times_over_dispersion"),
             cell("domain_cosine"), cell("sum_of_chosen_gates")});
    }
    page.heat_map(heat);
    if (!ranks.series.empty()) page.chart(ranks);
    if (const auto drift = r.find("drift"); drift && drift->size() > 1) {
        Chart chart{.kind = ChartKind::line,
                    .title = "Over the steps",
                    .x_axis = "step",
                    .words =
                        "Max over mean of single micro-batches, and how popularity correlates with "
                        "the window before."};
        Series balance{.name = "max / mean of a micro-batch"},
            same{.name = "correlation of popularity"};
        for (const auto& window : drift->items()) {
            balance.points.push_back(
                {window.at("to_step").number(), window.number_or("micro_batch_max_over_mean", 1)});
            if (window.has("popularity_correlation"))
                same.points.push_back(
                    {window.at("to_step").number(), window.at("popularity_correlation").number()});
        }
        chart.series = {balance, same};
        page.chart(chart);
    }
    page.table({"", "max/mean", "one micro-batch", "Gini", "entropy", "E·ρ", "domain cosine",
                "sum of gates"},
               rows);
}

}  // namespace moeplan::cli
