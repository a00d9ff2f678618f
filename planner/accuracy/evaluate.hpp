#pragma once
/// Published runs predicted, one row a figure that was measured.

#include <array>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "planner/accuracy/held_out.hpp"
#include "planner/accuracy/record.hpp"
#include "planner/accuracy/record_case.hpp"
#include "simulator/step.hpp"

namespace moeplan {

/// What was measured. A table of runs and rates of flops stand apart from step times: the first is
/// one source smoothed or extrapolated, the second rests on a convention of counting.
enum class Metric : std::uint8_t {
    step_time,
    step_time_of_sweep,
    step_time_of_rate,
    peak_memory_allocated,
    peak_memory_reserved
};

/// One measured figure and ours.
struct AccuracyRow {
    std::string id, source, gpu, precision, architecture, framework, release, sweep;
    std::string model, layout;  ///< layout in words: "tp 2, pp 4, micro-batch 1"
    std::string software;       ///< the state that a planner does not choose: release, fusions,
                                ///< graphs, recipe; and the routing
    int gpus = 0, seq = 0, global_batch = 0;
    Metric metric = Metric::step_time;
    double measured = 0, predicted = 0;  ///< seconds or bytes
    std::optional<double> predicted_neutral, predicted_source_left_out;
    std::optional<std::array<double, 2>> interval;  ///< 80 %, same unit
    std::vector<Assumption> assumed;
    std::vector<std::string> warnings;
    bool fits = true;  ///< by the memory estimate; it did
    TimeBreakdown exposed, busy;  ///< of a step time
    std::string notes;
    /// Release, and its time over this one's: the same recipe in other software.
    std::vector<std::pair<std::string, double>> other_releases;
    double error() const { return predicted / measured - 1; }
};

struct Evaluation {
    std::vector<AccuracyRow> rows;     ///< in the order of the records
    std::vector<HeldOutRow> held_out;  ///< points of kernels and collectives
    std::vector<SkippedRecord> skipped;
};

struct EvaluationOptions {
    int num_threads = 0;  ///< 0: all cores; the answer does not depend on it
    ProfileSource profiles;
    ProfileSource neutral;  ///< benchmarks taken at their word; empty: not predicted
    /// By title of a source: fitted without its records.
    std::map<std::string, ProfileSource> source_left_out;
    std::function<void(std::size_t, std::size_t)> progress;  ///< done, of
};

/// Predicts every training record, step time and peak memory where they are published.
Evaluation evaluate_training(const std::vector<Record>&, const EvaluationOptions&);

/// The same, and every kernel and collective from profiles built without it.
Evaluation evaluate(const std::vector<Record>&, const EvaluationOptions&);

/// Shipped profiles, each read once. @param calibration  in place of the shipped one
ProfileSource shipped_profile_source(std::optional<Calibration> calibration = std::nullopt);

/// Seconds of a step behind a published rate of flops, by the convention it was counted in; empty
/// where the convention is unknown.
std::optional<Seconds> step_time_of_rate(const TrainingRecord&, std::string& convention);

template <>
const EnumNames<Metric>& enum_names<Metric>();

}  // namespace moeplan
