#include "cli/report/training_page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "cli/report/values.hpp"

namespace moeplan::cli {
namespace {

/// A running mean over a fortieth of the curve: what a noisy loss is read by.
std::vector<std::array<double, 2>> smoothed(const std::vector<std::array<double, 2>>& points) {
    const auto half = static_cast<std::ptrdiff_t>(points.size() / 80);
    std::vector<std::array<double, 2>> out;
    for (const std::size_t i : evenly(points.size(), kMostPoints)) {
        const auto at = static_cast<std::ptrdiff_t>(i);
        const std::ptrdiff_t reach =
            std::min({half, at, static_cast<std::ptrdiff_t>(points.size()) - 1 - at});
        double sum = 0;
        for (std::ptrdiff_t j = at - reach; j <= at + reach; ++j)
            sum += points[static_cast<std::size_t>(j)][1];
        out.push_back({points[i][0], sum / static_cast<double>(2 * reach + 1)});
    }
    return out;
}

}  // namespace

void add_training_sections(Page& page, const std::vector<const ReportFile*>& files) {
    Chart loss{.kind = ChartKind::line,
               .title = "Loss",
               .x_axis = "step",
               .y_axis = "nats a token",
               .words = "Training loss, smoothed over a fortieth of the run."};
    Chart held_out{.kind = ChartKind::line,
                   .title = "Held-out loss",
                   .x_axis = "step",
                   .y_axis = "nats a token",
                   .words = "On documents that are never trained on."};
    Chart balance{.kind = ChartKind::line,
                  .title = "Busiest expert over the mean",
                  .x_axis = "step",
                  .y_axis = "max / mean",
                  .words = "Mean over the layers of each step; 1 is perfect balance."};
    Chart speed{.kind = ChartKind::line,
                .title = "Tokens a second",
                .x_axis = "step",
                .y_axis = "tokens/s",
                .words = "Smoothed over a fortieth of the run."};
    loss.y_from_zero = held_out.y_from_zero = balance.y_from_zero = false;
    std::vector<std::vector<std::string>> rows;
    for (const ReportFile* file : files) {
        std::vector<std::array<double, 2>> losses, held, imbalance, rate;
        for (const auto& line : file->answer.items()) {
            const double step = number_at(line, {"step"});
            if (std::isnan(step)) continue;
            const auto add = [&](auto& to, double value) {
                if (std::isfinite(value)) to.push_back({step, value});
            };
            add(losses, number_at(line, {"loss"}));
            add(held, number_at(line, {"held_out_loss"}));
            add(rate, number_at(line, {"tokens_per_second"}));
            if (const auto values = numbers(line.find("expert_imbalance")); !values.empty()) {
                double sum = 0;
                for (const double v : values) sum += v;
                add(imbalance, sum / static_cast<double>(values.size()));
            }
        }
        const auto put = [&](Chart& chart, const auto& points) {
            if (!points.empty())
                chart.series.push_back({.name = file->name, .points = smoothed(points)});
        };
        put(loss, losses);
        if (!held.empty()) held_out.series.push_back({.name = file->name, .points = held});
        put(balance, imbalance);
        put(speed, rate);
        if (!losses.empty()) {
            std::vector<double> rates;
            for (const auto& [step, value] : rate) rates.push_back(value);
            std::sort(rates.begin(), rates.end());
            const double last = smoothed(losses).back()[1];
            double tail = 0;
            const std::size_t n = std::max<std::size_t>(1, losses.size() / 20);
            for (std::size_t i = losses.size() - n; i < losses.size(); ++i)
                tail += losses[i][1] / static_cast<double>(n);
            rows.push_back(
                {file->name, std::to_string(losses.size()),
                 fmt::format("{:.3f}", losses.front()[1]),
                 fmt::format("{:.3f}", losses.size() > 20 ? tail : last),
                 fmt::format("{:.3f}", losses.front()[1] - (losses.size() > 20 ? tail : last)),
                 rates.empty() ? "–" : fmt::format("{:.0f}", rates[rates.size() / 2])});
        }
    }
    page.table({"run", "steps", "first loss", "last loss (mean of a twentieth)", "fell by",
                "tokens/s (median)"},
               rows);
    for (const Chart* chart : {&loss, &held_out, &balance, &speed})
        if (!chart->series.empty()) page.chart(*chart);
}

}  // namespace moeplan::cli
