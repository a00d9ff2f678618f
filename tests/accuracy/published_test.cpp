/// The published records of the repository, held against committed ceilings: a change that makes
/// predictions worse fails here.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/json.hpp"
#include "planner/accuracy/evaluate.hpp"
#include "planner/accuracy/summary.hpp"

namespace moeplan {
namespace {

std::string published(const char* file) {
    return std::string(MOEPLAN_SOURCE_DIR) + "/validation/published/" + file;
}

/// Read and predicted once for all tests of this program.
const Evaluation& evaluation() {
    static const Evaluation all = evaluate_training(
        read_record_files({published("training.json"), published("vtrain_single_node.json")}),
        {.profiles = shipped_profile_source()});
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
        const ErrorSummary found = summarize(evaluation().rows, [&](const AccuracyRow& row) {
            return name_of(row.metric) == metric &&
                   (architecture.empty() || row.architecture == architecture);
        });
        EXPECT_GT(found.count, 0u) << name;
        for (const auto& [key, value] :
             {std::pair{"median", found.median}, {"mean", found.mean}, {"p90", found.p90}}) {
            const auto most = ceiling.find(key);
            if (!most) continue;
            EXPECT_LE(value, most->number()) << name << ", " << key << " error";
        }
    }
}

}  // namespace
}  // namespace moeplan
