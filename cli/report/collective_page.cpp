#include "cli/report/collective_page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/report/values.hpp"

namespace moeplan::cli {

std::string collective_title(const JsonReader& r) {
    return capital(spaced(r.text_or("collective", "collective"))) +
           fmt::format(", {} ranks", r.count_or("ranks", 0)) +
           (r.has("cluster") && r.at("cluster").is_string() ? " of " + r.at("cluster").text() : "");
}

void add_collective_sections(Page& page, const JsonReader& r) {
    const auto rows = r.at("rows").items();
    constexpr double kGB = 1e9;
    if (rows.size() == 1) {
        page.figures(
            {{value_text("time_s", rows[0].at("time_s")),
              "for " + value_text("bytes", rows[0].at("bytes"))},
             {value_text("bandwidth", rows[0].at("algorithm_bandwidth")), "algorithm bandwidth"},
             {value_text("bandwidth", rows[0].at("bus_bandwidth")), "bus bandwidth"}});
    } else {
        Chart chart{.kind = ChartKind::scatter,
                    .title = "Bandwidth over message size",
                    .x_axis = "bytes",
                    .y_axis = "GB/s",
                    .words =
                        "Algorithm bandwidth is the message over its time; bus bandwidth what "
                        "the links carry of it, as nccl-tests count.",
                    .log_x = true};
        Series bus{.name = "bus bandwidth"}, algorithm{.name = "algorithm bandwidth"};
        for (const auto& row : rows) {
            const double bytes = number_at(row, {"bytes"}, 0);
            if (!(bytes > 0)) continue;
            bus.points.push_back({bytes, number_at(row, {"bus_bandwidth"}, 0) / kGB});
            algorithm.points.push_back({bytes, number_at(row, {"algorithm_bandwidth"}, 0) / kGB});
        }
        chart.series = {bus, algorithm};
        page.chart(chart);
    }
    page.facts({{"algorithm", spaced(r.text_or("algorithm", "–"))},
                {"fidelity", r.text_or("fidelity", "–")},
                {"engine", spaced(r.text_or("engine", "–"))}});
    if (rows.size() == 1) return;
    std::vector<std::vector<std::string>> cells;
    for (const auto& row : rows) {
        auto& line = cells.emplace_back();
        for (const char* key :
             {"bytes", "time_s", "algorithm_bandwidth", "bus_bandwidth", "algorithm"})
            line.push_back(row.has(key) ? value_text(key, row.at(key)) : "–");
    }
    page.table({"message", "time", "algorithm bandwidth", "bus bandwidth", "algorithm"}, cells);
}

}  // namespace moeplan::cli
