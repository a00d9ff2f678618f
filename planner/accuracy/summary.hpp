#pragma once
/// What a list of predictions comes to.

#include <map>
#include <string>
#include <vector>

#include "core/json.hpp"
#include "planner/accuracy/evaluate.hpp"

namespace moeplan {

struct ErrorSummary {
    std::size_t count = 0;
    double median = 0, mean = 0, p90 = 0;  ///< of |predicted / measured − 1|
    double bias = 1;                       ///< median of predicted / measured
    std::optional<double> coverage;        ///< share of measured figures inside their interval
};

/// @param value  of q in a sorted list, linear between neighbours; 0 for an empty one
double quantile(std::vector<double> values, double q);

/// Which prediction of a row is judged.
enum class Judged : std::uint8_t { fitted, neutral, source_left_out };

using RowFilter = std::function<bool(const AccuracyRow&)>;
ErrorSummary summarize(const std::vector<AccuracyRow>&, const RowFilter&,
                       Judged judged = Judged::fitted);

/// By the values of a key: gpu, precision, architecture, source or metric. Step times only, except
/// by metric.
std::map<std::string, ErrorSummary> summarize_by(const std::vector<AccuracyRow>&,
                                                 const std::string& key,
                                                 Judged judged = Judged::fitted);

/// Whole runs that took place, by their step time or rate, and those of them that the memory
/// estimate would have refused.
struct MemoryVerdicts {
    std::size_t runs = 0, refused = 0;
};
MemoryVerdicts memory_verdicts(const std::vector<AccuracyRow>&);

/// Kernels and collectives by kind, variant (of matrix products: their precision) and what was left
/// out of the profile.
struct HeldOutSummary {
    std::string kind, variant, held_out;
    ErrorSummary errors;
};
std::vector<HeldOutSummary> summarize_held_out(const std::vector<HeldOutRow>&);

/// The rows of `metric` that are furthest off, in log ratio, with the likely cause in words.
struct WorstRow {
    const AccuracyRow* row;
    std::string cause;
};
std::vector<WorstRow> worst_rows(const std::vector<AccuracyRow>&, Metric, std::size_t count);

Json to_json(const ErrorSummary&);

}  // namespace moeplan
