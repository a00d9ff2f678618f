#include "planner/accuracy/kernel_records.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "planner/accuracy/fused_moe.hpp"

namespace moeplan {
namespace {

std::vector<CurveRecord> published_kernels() {
    std::vector<CurveRecord> records;
    const auto file = JsonReader::from_file(std::string(MOEPLAN_SOURCE_DIR) +
                                            "/validation/published/kernels.json");
    for (const JsonReader& record : file.items())
        records.push_back({record.at("id").text(), record.at("group").text(),
                           record.at("source").at("title").text(), record});
    return records;
}

TEST(FusedMoeLoads, AreAllChoicesOfTheTokensWhenOneRankHoldsEveryExpert) {
    FusedMoePoint point;
    point.tokens = 1024, point.top_k = 8, point.num_experts = point.local_experts = 64;
    const auto balanced = fused_moe_loads(point, 1);
    EXPECT_EQ(std::accumulate(balanced.begin(), balanced.end(), 0.0), 1024 * 8);
    EXPECT_EQ(*std::max_element(balanced.begin(), balanced.end()), 1024 * 8 / 64);
    // Skewed: rounded expert by expert, half a token each at most, and a token chooses an expert
    // once.
    point.exponent = 1.2;
    const auto skewed = fused_moe_loads(point, 1);
    EXPECT_LE(std::accumulate(skewed.begin(), skewed.end(), 0.0), 1024 * 8 + 32);
    EXPECT_LE(*std::max_element(skewed.begin(), skewed.end()), 1024u);
    EXPECT_GT(*std::max_element(skewed.begin(), skewed.end()), 2 * 1024u * 8 / 64);
    // One of 8 ranks, skewed: the one with most, so at least its even share.
    point.local_experts = 8;
    const auto hottest = fused_moe_loads(point, 1);
    EXPECT_GE(std::accumulate(hottest.begin(), hottest.end(), 0.0), 1024);
}

/// Every record of the published kernels from a profile built without it: the medians that
/// docs/profiles.md states, as ceilings.
TEST(KernelRecords, ArePredictedWithoutHavingBeenSeen) {
    const HeldOutAnswers answers = predict_kernel_records(published_kernels());
    const auto median = [&](const std::string& kind, const std::string& precision,
                            const std::string& held_out) {
        std::vector<double> errors;
        for (const HeldOutRow& row : answers.rows)
            if (row.kind == kind && row.held_out == held_out &&
                (precision.empty() || row.precision == precision))
                errors.push_back(std::abs(row.error()));
        EXPECT_GT(errors.size(), 200u) << kind;
        std::sort(errors.begin(), errors.end());
        return errors[errors.size() / 2];
    };
    EXPECT_LT(median("gemm", "bf16", "point"), 0.05);
    EXPECT_LT(median("gemm", "bf16", "curve"), 0.055);
    EXPECT_LT(median("attention", "", "point"), 0.08);
    EXPECT_LT(median("attention", "", "curve"), 0.08);
    for (const char* held_out : {"point", "curve"})
        for (const char* precision : {"bf16", "fp8"})
            EXPECT_LT(median("moe_forward", precision, held_out), 0.12);
    for (const HeldOutRow& row : answers.rows) EXPECT_TRUE(std::isfinite(row.error())) << row.id;
}

TEST(KernelRecords, SkipWhatTheyCannotReadAndSayWhy) {
    const auto record = [](const char* text) {
        const auto value = JsonReader::from_text(text, "mine.json");
        return CurveRecord{value.at("id").text(), "kernels", "", value};
    };
    const auto answers = predict_kernel_records({
        record(
            R"({"id": "a", "hardware": {"gpu": "Abacus"}, "workload": {"kernel": "gemm", "dtype": "bfloat16", "n": 8, "k": 8}, "measured": {"metric": "latency_by_m", "value": {"m": [1], "ms": [1]}}})"),
        record(
            R"({"id": "b", "hardware": {"gpu": "H100 SXM"}, "workload": {"kernel": "gemm", "dtype": "bfloat16", "k": 8}, "measured": {"metric": "latency_by_m", "value": {"m": [1], "ms": [1]}}})"),
        record(
            R"({"id": "c", "hardware": {"gpu": "H100 SXM"}, "workload": {"kernel": "gemm", "dtype": "bfloat16", "n": 8, "k": 8}, "measured": {"metric": "latency_by_m", "value": {"m": [1, 2], "ms": [1]}}})"),
    });
    EXPECT_TRUE(answers.rows.empty());
    ASSERT_EQ(answers.skipped.size(), 3u);
    EXPECT_EQ(answers.skipped[0].rule, "unknown_gpu");
    EXPECT_NE(answers.skipped[1].reason.find("n"), std::string::npos);
    EXPECT_EQ(answers.skipped[2].rule, "missing");
}

}  // namespace
}  // namespace moeplan
