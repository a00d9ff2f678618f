/// The published records of the repository, held against committed ceilings: a change that makes
/// predictions worse fails here.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/json.hpp"
#include "planner/accuracy/calibrate.hpp"
#include "planner/accuracy/error_bands.hpp"
#include "planner/accuracy/evaluate.hpp"
#include "planner/accuracy/ranking.hpp"
#include "planner/accuracy/summary.hpp"

namespace moeplan {
namespace {

std::string published(const char* file) {
    return std::string(MOEPLAN_SOURCE_DIR) + "/validation/published/" + file;
}

/// Read and predicted once for all tests of this program.
const Evaluation& evaluation() {
    static const Evaluation all = [] {
        EvaluationOptions options{.profiles = shipped_profile_source()};
        const auto records =
            read_record_files({published("training.json"), published("vtrain_single_node.json")});
        const CalibrationStudy study = read_calibration_study(JsonReader::from_file(
            std::string(MOEPLAN_SOURCE_DIR) + "/validation/calibration_left_out.json"));
        for (const auto& [source, calibration] : study.left_out)
            options.source_left_out[source] = shipped_profile_source(calibration);
        for (const Record& record : records)  // the shipped constants never saw the other sources
            if (const auto* training = std::get_if<TrainingRecord>(&record))
                options.source_left_out.try_emplace(training->source.title, options.profiles);
        Evaluation out = evaluate_training(records, options);
        add_intervals(out.rows);
        return out;
    }();
    return all;
}

TEST(Published, EveryCompleteRecordIsPredictedAndNoneIsRefused) {
    std::size_t moe = 0, steps = 0, rates = 0, sweep = 0;
    for (const AccuracyRow& row : evaluation().rows) {
        steps += row.metric == Metric::step_time;
        moe += row.metric == Metric::step_time && row.architecture == "moe";
        rates += row.metric == Metric::step_time_of_rate;
        sweep += row.metric == Metric::step_time_of_sweep;
        EXPECT_GT(row.predicted, 0) << row.id;
    }
    EXPECT_EQ(steps, 383u);
    EXPECT_EQ(moe, 75u);
    EXPECT_EQ(rates, 24u);
    EXPECT_EQ(sweep, 900u);
    for (const SkippedRecord& skipped : evaluation().skipped)
        EXPECT_EQ(skipped.rule, "missing") << skipped.id << ": " << skipped.reason;
}

TEST(Published, ErrorsStayUnderTheCommittedCeiling) {
    const JsonReader ceilings = JsonReader::from_file(std::string(MOEPLAN_SOURCE_DIR) +
                                                      "/validation/accuracy_ceiling.json");
    for (const auto& [name, ceiling] : ceilings.at("ceilings").members()) {
        const std::string metric = ceiling.at("metric").text(),
                          architecture = ceiling.text_or("architecture", "");
        const Judged judged = ceiling.text_or("judged", "fitted") == "source_left_out"
                                  ? Judged::source_left_out
                                  : Judged::fitted;
        const ErrorSummary found = summarize(
            evaluation().rows,
            [&](const AccuracyRow& row) {
                return name_of(row.metric) == metric &&
                       (architecture.empty() || row.architecture == architecture);
            },
            judged);
        EXPECT_GT(found.count, 0u) << name;
        for (const auto& [key, value] :
             {std::pair{"median", found.median}, {"mean", found.mean}, {"p90", found.p90}}) {
            const auto most = ceiling.find(key);
            if (!most) continue;
            EXPECT_LE(value, most->number()) << name << ", " << key << " error";
        }
    }
}

/// Whatever was measured did fit: an estimate that refuses it is wrong, or the source leaves out what
/// saved memory (offloaded activations).
TEST(Published, FewRunsThatTookPlaceAreRefusedForTheirMemory) {
    const MemoryVerdicts verdicts = memory_verdicts(evaluation().rows);
    EXPECT_EQ(verdicts.runs, 383u + 24u);
    EXPECT_LE(static_cast<double>(verdicts.refused),
              JsonReader::from_file(std::string(MOEPLAN_SOURCE_DIR) +
                                    "/validation/accuracy_ceiling.json")
                  .at("most_runs_that_memory_refuses")
                  .number());
}

TEST(Published, LayoutsAreInTheirMeasuredOrderAsFarAsCommitted) {
    const JsonReader order = JsonReader::from_file(std::string(MOEPLAN_SOURCE_DIR) +
                                                   "/validation/accuracy_ceiling.json")
                                 .at("orders_of_layouts");
    const RankingSummary all = rank_layouts(evaluation().rows).all;
    EXPECT_EQ(all.sweeps, 102);
    EXPECT_GE(all.median_correlation, order.at("least_median_rank_correlation").number());
    EXPECT_GE(all.worst_correlation, order.at("least_rank_correlation").number());
    EXPECT_LE(all.mean_regret_of_one, order.at("most_regret_of_one").number());
    EXPECT_LE(all.mean_regret_of_three, order.at("most_regret_of_three").number());
}

TEST(Published, FourOfFiveStepTimesOfASourceNotSeenLieInTheirInterval) {
    const ErrorSummary steps = summarize(
        evaluation().rows,
        [](const AccuracyRow& row) { return row.metric == Metric::step_time; },
        Judged::source_left_out);
    ASSERT_TRUE(steps.coverage);
    EXPECT_GE(*steps.coverage, 0.75);
    EXPECT_LE(*steps.coverage, 0.85);
}

}  // namespace
}  // namespace moeplan
