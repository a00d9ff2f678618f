#include "planner/accuracy/summary.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "planner/accuracy/cause.hpp"

namespace moeplan {
namespace {

std::optional<double> judged_value(const AccuracyRow& row, Judged judged) {
    switch (judged) {
        case Judged::fitted:
            return row.predicted;
        case Judged::neutral:
            return row.predicted_neutral;
        case Judged::source_left_out:
            return row.predicted_source_left_out;
    }
    return std::nullopt;
}

const std::string& value_of(const AccuracyRow& row, const std::string& key) {
    if (key == "gpu") return row.gpu;
    if (key == "precision") return row.precision;
    if (key == "architecture") return row.architecture;
    return row.source;
}

}  // namespace

double quantile(std::vector<double> values, double q) {
    if (values.empty()) return 0;
    std::sort(values.begin(), values.end());
    const double at = q * static_cast<double>(values.size() - 1);
    const auto low = static_cast<std::size_t>(at);
    if (low + 1 >= values.size()) return values.back();
    const double share = at - static_cast<double>(low);
    return values[low] * (1 - share) + values[low + 1] * share;
}

namespace {

ErrorSummary summary_of(const std::vector<double>& ratios) {
    ErrorSummary out;
    out.count = ratios.size();
    if (ratios.empty()) return out;
    std::vector<double> errors;
    for (const double ratio : ratios) {
        errors.push_back(std::abs(ratio - 1));
        out.mean += errors.back() / static_cast<double>(ratios.size());
    }
    out.median = quantile(errors, 0.5);
    out.p90 = quantile(errors, 0.9);
    out.bias = quantile(ratios, 0.5);
    return out;
}

}  // namespace

ErrorSummary summarize(const std::vector<AccuracyRow>& rows, const RowFilter& filter,
                       Judged judged) {
    std::vector<double> ratios;
    std::size_t with_interval = 0, inside = 0;
    for (const AccuracyRow& row : rows) {
        if (!filter(row)) continue;
        const auto predicted = judged_value(row, judged);
        if (!predicted) continue;
        ratios.push_back(*predicted / row.measured);
        if (row.interval) {
            ++with_interval;
            inside += row.measured >= (*row.interval)[0] && row.measured <= (*row.interval)[1];
        }
    }
    ErrorSummary out = summary_of(ratios);
    if (with_interval > 0)
        out.coverage = static_cast<double>(inside) / static_cast<double>(with_interval);
    return out;
}

std::map<std::string, ErrorSummary> summarize_by(const std::vector<AccuracyRow>& rows,
                                                 const std::string& key, Judged judged) {
    std::map<std::string, ErrorSummary> out;
    for (const AccuracyRow& row : rows) {
        if (key == "metric")
            out[std::string(name_of(row.metric))];
        else if (row.metric == Metric::step_time)
            out[value_of(row, key)];
    }
    for (auto& [value, summary] : out)
        summary = summarize(
            rows,
            [&](const AccuracyRow& row) {
                return key == "metric"
                           ? name_of(row.metric) == value
                           : row.metric == Metric::step_time && value_of(row, key) == value;
            },
            judged);
    return out;
}

std::vector<HeldOutSummary> summarize_held_out(const std::vector<HeldOutRow>& rows) {
    std::map<std::array<std::string, 3>, std::vector<double>> ratios;
    for (const HeldOutRow& row : rows)
        ratios[{row.kind, row.variant.empty() && row.kind == "gemm" ? row.precision : row.variant,
                row.held_out}]
            .push_back(row.predicted / row.measured);  // fp8 tables time other kernels than bf16's
    std::vector<HeldOutSummary> out;
    for (const auto& [key, values] : ratios)
        out.push_back({key[0], key[1], key[2], summary_of(values)});
    return out;
}

std::vector<WorstRow> worst_rows(const std::vector<AccuracyRow>& rows, Metric metric,
                                 std::size_t count) {
    std::vector<WorstRow> out;
    for (const AccuracyRow& row : rows)
        if (row.metric == metric) out.push_back({&row, ""});
    const auto distance = [](const WorstRow& w) {
        return std::abs(std::log(w.row->predicted / w.row->measured));
    };
    std::stable_sort(out.begin(), out.end(), [&](const WorstRow& a, const WorstRow& b) {
        return distance(a) > distance(b);
    });
    if (out.size() > count) out.resize(count);
    for (WorstRow& worst : out) worst.cause = likely_cause(*worst.row, rows);
    return out;
}

MemoryVerdicts memory_verdicts(const std::vector<AccuracyRow>& rows) {
    MemoryVerdicts out;
    for (const AccuracyRow& row : rows) {
        if (row.metric != Metric::step_time && row.metric != Metric::step_time_of_rate) continue;
        ++out.runs;
        out.refused += row.fits ? 0 : 1;
    }
    return out;
}

Json to_json(const ErrorSummary& summary) {
    Json out = {{"records", summary.count},
                {"median_error", summary.median},
                {"mean_error", summary.mean},
                {"p90_error", summary.p90},
                {"bias", summary.bias}};
    out["coverage"] = summary.coverage ? Json(*summary.coverage) : Json(nullptr);
    return out;
}

}  // namespace moeplan
