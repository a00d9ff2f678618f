#include "planner/accuracy/error_bands.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "simulator/interval.hpp"

namespace moeplan {
namespace {

constexpr int kFewestRows = 8, kFewestSources = 2;

bool is_narrow(const AccuracyRow& row) {
    return row.precision == "fp8" || row.precision == "mxfp8" || row.precision == "nvfp4";
}

}  // namespace

double weighted_quantile(std::vector<std::pair<double, double>> values, double q) {
    if (values.empty()) return 0;
    std::stable_sort(values.begin(), values.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    double all = 0;
    for (const auto& [value, weight] : values) all += weight;
    // a value stands at the middle of its weight
    double before = 0, place = 0, last_place = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
        place = (before + values[i].second / 2) / all;
        if (place >= q) {
            if (i == 0) return values[0].first;
            const double share = (q - last_place) / (place - last_place);
            return values[i - 1].first + share * (values[i].first - values[i - 1].first);
        }
        before += values[i].second;
        last_place = place;
    }
    return values.back().first;
}

std::vector<ErrorBand> error_bands(const std::vector<AccuracyRow>& rows,
                                   const std::string& without) {
    const auto counts = [&](const AccuracyRow& row) {
        return row.metric == Metric::step_time && row.predicted_source_left_out &&
               (without.empty() || row.source != without);
    };
    std::vector<ErrorBand> out;
    for (const char* architecture : {"dense", "moe"})
        for (const bool narrow : {false, true}) {
            ErrorBand band{architecture, narrow, 0, 0, 0, 0};
            for (const int wider : {0, 1, 2}) {  // the kind, its architecture, all
                const auto like = [&](const AccuracyRow& row) {
                    return counts(row) && (wider == 2 || row.architecture == architecture) &&
                           (wider >= 1 || is_narrow(row) == narrow);
                };
                std::map<std::string, double> of_source;
                for (const AccuracyRow& row : rows)
                    if (like(row)) of_source[row.source] += 1;
                std::vector<std::pair<double, double>> errors;
                for (const AccuracyRow& row : rows)
                    if (like(row))
                        errors.push_back(
                            {std::abs(std::log(row.measured / *row.predicted_source_left_out)),
                             1 / std::sqrt(of_source[row.source])});
                band.records = static_cast<int>(errors.size());
                band.sources = static_cast<int>(of_source.size());
                if ((band.records < kFewestRows || band.sources < kFewestSources) && wider < 2)
                    continue;
                const double unseen = std::sqrt(1 + 1.0 / band.sources);
                band.high = unseen * weighted_quantile(errors, 0.8);
                band.low = -band.high;
                break;
            }
            if (band.records > 0) out.push_back(band);
        }
    return out;
}

void add_intervals(std::vector<AccuracyRow>& rows) {
    std::map<std::string, std::vector<ErrorBand>> bands;
    for (const AccuracyRow& row : rows)
        if (!bands.contains(row.source)) bands[row.source] = error_bands(rows, row.source);
    for (AccuracyRow& row : rows) {
        if (row.metric != Metric::step_time || !row.predicted_source_left_out) continue;
        const ErrorBand* band =
            band_of(bands[row.source], row.architecture == "moe", is_narrow(row));
        if (!band) continue;
        const auto interval =
            interval_of(Seconds{*row.predicted_source_left_out}, *band, std::nullopt);
        row.interval = {interval[0].value, interval[1].value};
    }
}

}  // namespace moeplan
