#include "cli/report/profile_page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "cli/report/other_page.hpp"
#include "cli/report/values.hpp"
#include "core/quantity_text.hpp"

namespace moeplan::cli {
namespace {

/// Columns by name, a row at a time.
void for_each_row(const JsonReader& curve,
                  const std::function<void(const std::map<std::string, double>&)>& visit) {
    const auto columns = texts(curve.find("columns"));
    for (const auto& row : curve.at("rows").items()) {
        std::map<std::string, double> values;
        const auto cells = row.items();
        for (std::size_t i = 0; i < cells.size() && i < columns.size(); ++i)
            if (cells[i].is_number()) values[columns[i]] = cells[i].number();
        visit(values);
    }
}

}  // namespace

void add_profile_sections(Page& page, const JsonReader& r) {
    page.figures({{r.text_or("device", "?"), "device"},
                  {std::to_string(r.has("kernels") ? r.at("kernels").size() : 0), "kernel curves"},
                  {std::to_string(r.has("links") ? r.at("links").size() : 0), "link curves"}});
    Chart rates{.kind = ChartKind::scatter,
                .title = "Matrix products: work against rate",
                .x_axis = "flops of one call",
                .y_axis = "Flop/s",
                .words = "Each point is one measured shape.",
                .log_x = true,
                .log_y = true};
    Chart spread{.kind = ChartKind::scatter,
                 .title = "Spread of the measurements",
                 .x_axis = "median, seconds",
                 .y_axis = "relative spread",
                 .words = "How far repeated measurements of a shape lie apart, over the median.",
                 .log_x = true};
    std::vector<std::vector<std::string>> rows;
    if (const auto kernels = r.find("kernels"))
        for (const auto& curve : kernels->items()) {
            const std::string name =
                curve.at("kernel").text() + " " + curve.text_or("precision", "");
            Series rate{.name = name, .line = false}, spreads{.name = name, .line = false};
            std::size_t count = 0;
            double worst = 0;
            for_each_row(curve, [&](const auto& v) {
                ++count;
                const auto get = [&](const char* key) {
                    const auto at = v.find(key);
                    return at == v.end() ? 0.0 : at->second;
                };
                const double median = get("median_s");
                if (!(median > 0)) return;
                const double flops = 2 * get("m") * get("n") * get("k");
                if (flops > 0) rate.points.push_back({flops, flops / median});
                if (v.contains("relative_spread"))
                    spreads.points.push_back({median, get("relative_spread")});
                worst = std::max(worst, get("relative_spread"));
            });
            if (rows.size() < kMostRows)
                rows.push_back(
                    {name, curve.text_or("basis", ""), std::to_string(count), percent(worst)});
            if (!rate.points.empty() && rates.series.size() < 8)
                rates.series.push_back(std::move(rate));
            if (!spreads.points.empty() && spread.series.size() < 8)
                spread.series.push_back(std::move(spreads));
        }
    if (!rates.series.empty()) page.chart(rates);
    Chart links{.kind = ChartKind::scatter,
                .title = "Links: message against time",
                .x_axis = "bytes",
                .y_axis = "seconds",
                .words = "Median time of a collective over its message size.",
                .log_x = true,
                .log_y = true};
    if (const auto curves = r.find("links"))
        for (const auto& curve : curves->items()) {
            Series series{.name = fmt::format("{}, {} ranks", spaced(curve.at("collective").text()),
                                              curve.count_or("num_ranks", 0))};
            for_each_row(curve, [&](const auto& v) {
                const auto bytes = v.find("bytes"), median = v.find("median_s");
                if (bytes != v.end() && median != v.end() && bytes->second > 0 &&
                    median->second > 0)
                    series.points.push_back({bytes->second, median->second});
            });
            if (!series.points.empty() && links.series.size() < 10)
                links.series.push_back(std::move(series));
        }
    if (!links.series.empty()) page.chart(links);
    if (!spread.series.empty()) page.chart(spread);
    if (!rows.empty()) page.table({"kernel", "basis", "shapes", "widest spread"}, rows);
    if (rates.series.empty() && links.series.empty()) {
        page.paragraph("Nothing was measured: times come from the datasheet's roofline.");
        add_other_sections(page, r);
    }
}

}  // namespace moeplan::cli
