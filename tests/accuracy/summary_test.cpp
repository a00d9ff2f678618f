#include "planner/accuracy/summary.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/text.hpp"
#include "planner/accuracy/report.hpp"
#include "tests/tolerance.hpp"

namespace moeplan {
namespace {

AccuracyRow row(const char* id, double predicted, double measured,
                Metric metric = Metric::step_time) {
    AccuracyRow out;
    out.id = id;
    out.predicted = predicted;
    out.measured = measured;
    out.metric = metric;
    out.gpu = id[0] == 'a' ? "a100" : "h100";
    out.exposed.compute = Seconds{predicted};
    return out;
}
const RowFilter kAll = [](const AccuracyRow&) { return true; };

TEST(Summary, ErrorsAreAbsoluteAndBiasKeepsItsSign) {
    // errors 0.1, 0.2, 0.5; ratios 1.1, 0.8, 1.5
    const std::vector<AccuracyRow> rows = {row("a", 1.1, 1), row("b", 1.6, 2), row("c", 3, 2)};
    const ErrorSummary all = summarize(rows, kAll);
    EXPECT_EQ(all.count, 3u);
    EXPECT_NEAR(all.median, 0.2, kArithmetic);
    EXPECT_NEAR(all.mean, 0.8 / 3, kArithmetic);
    EXPECT_NEAR(all.p90, 0.2 * 0.2 + 0.8 * 0.5, kArithmetic);  // 1.8 of 2 steps along 0.1, 0.2, 0.5
    EXPECT_NEAR(all.bias, 1.1, kArithmetic);
}

TEST(Summary, OtherMetricsDoNotEnterStepTimes) {
    const std::vector<AccuracyRow> rows = {row("a", 1.1, 1),
                                           row("a2", 9, 1, Metric::peak_memory_allocated)};
    EXPECT_EQ(summarize_by(rows, "gpu").at("a100").count, 1u);
    EXPECT_EQ(summarize_by(rows, "metric").at("peak_memory_allocated").count, 1u);
}

TEST(Summary, CoverageIsTheShareInsideItsInterval) {
    std::vector<AccuracyRow> rows = {row("a", 1, 1), row("b", 1, 1), row("c", 1, 1)};
    rows[0].interval = {0.9, 1.1};
    rows[1].interval = {1.05, 1.1};
    EXPECT_EQ(summarize(rows, kAll).coverage, 0.5);  // of those that have one
}

TEST(Summary, TheWorstIsFurthestInLogRatio) {
    // A third of the time is further off than twice the time.
    const std::vector<AccuracyRow> rows = {row("a", 2, 1), row("b", 1, 3), row("c", 1, 1)};
    const auto worst = worst_rows(rows, Metric::step_time, 2);
    ASSERT_EQ(worst.size(), 2u);
    EXPECT_EQ(worst[0].row->id, "b");
    EXPECT_EQ(worst[1].row->id, "a");
}

TEST(Summary, NothingMeasuredIsNoError) {
    EXPECT_EQ(summarize({}, kAll).count, 0u);
    EXPECT_EQ(quantile({}, 0.5), 0);
}

TEST(AccuracyReport, CsvHasOneLineARowAndOneCellAColumn) {
    Evaluation evaluation;
    evaluation.rows = {row("a", 1, 1), row("b", 1, 2)};
    evaluation.rows[0].source = "He said \"fast\", twice";
    const std::string csv = rows_as_csv(evaluation);
    EXPECT_EQ(std::count(csv.begin(), csv.end(), '\n'), 3);
    // b's line has no quotes, so its commas are the head's.
    const auto commas = [](const std::string& line) {
        return std::count(line.begin(), line.end(), ',');
    };
    const auto lines = split(csv, '\n');
    EXPECT_EQ(commas(lines.at(0)), commas(lines.at(2)));
    EXPECT_NE(csv.find("\"He said \"\"fast\"\", twice\""), std::string::npos);
}

}  // namespace
}  // namespace moeplan
