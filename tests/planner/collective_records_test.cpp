#include "planner/accuracy/collective_records.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "planner/accuracy/deepep.hpp"

namespace moeplan {
namespace {

HeldOutAnswers published() {
    std::vector<CurveRecord> records;
    const auto file = JsonReader::from_file(std::string(MOEPLAN_SOURCE_DIR) +
                                            "/validation/published/collectives.json");
    for (const JsonReader& record : file.items())
        records.push_back({record.at("id").text(), record.at("group").text(),
                           record.at("source").at("title").text(), record});
    return predict_collective_records(records);
}

/// docs/collectives.md states these errors; they are its ceilings.
TEST(CollectiveRecords, ArePredictedWithoutHavingBeenSeen) {
    const HeldOutAnswers answers = published();
    const auto quantile = [&](bool deepep, const std::string& held_out, double share) {
        std::vector<double> errors;
        for (const HeldOutRow& row : answers.rows)
            if (row.held_out == held_out &&
                (row.kind == "dispatch" || row.kind == "combine") == deepep)
                errors.push_back(std::abs(row.error()));
        EXPECT_GT(errors.size(), 100u);
        std::sort(errors.begin(), errors.end());
        return errors[static_cast<std::size_t>(share * static_cast<double>(errors.size()))];
    };
    for (const char* held_out : {"point", "curve"}) {
        EXPECT_LT(quantile(false, held_out, 0.5), 0.10);
        EXPECT_LT(quantile(false, held_out, 0.9), 0.20);
    }
    EXPECT_LT(quantile(true, "curve", 0.5), 0.05);
    EXPECT_LT(quantile(true, "curve", 0.9), 0.15);
    for (const HeldOutRow& row : answers.rows)
        EXPECT_TRUE(std::isfinite(row.error()) && row.predicted > 0) << row.id;
}

TEST(DeepEp, CountsATokenOnceARank) {
    // One expert a token visits one rank, many experts all eight: copies n·(1 − (1 − 1/n)^k) = 1
    // and 8 in the limit.
    const auto time = [](int top_k) {
        DeepEpCall call{"h100-sxm", 8, 1, 24, 1 << 20, 7168, top_k, false};
        return deepep_time(call)->value;
    };
    const double start = 26.73e-6, itself = 2 * 0.00351e-6 * (1 << 20);
    EXPECT_NEAR((time(1000) - start - itself) / (time(1) - start - itself), 8, 1e-6);
}

TEST(DeepEp, SaysNothingOfWhatItDoesNotKnow) {
    EXPECT_FALSE(deepep_time({"v100-sxm2-16", 8, 1, 24, 4096, 7168, 8, false}));
    EXPECT_FALSE(deepep_time({"h100-sxm", 64, 8, 24, 4096, 7168, 8, false}));
}

}  // namespace
}  // namespace moeplan
