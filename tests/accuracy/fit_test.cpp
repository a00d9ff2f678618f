#include "planner/accuracy/fit.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "core/seed.hpp"
#include "planner/accuracy/error_bands.hpp"
#include "planner/accuracy/ranking.hpp"
#include "simulator/interval.hpp"
#include "tests/tolerance.hpp"

namespace moeplan {
namespace {

/// A world in which a step is work over a sustained rate, launches and an exchange, each in its own
/// share: t = a/sustained_hopper + b·framework_launch + c/expert_exchange.
struct World {
    struct Run {
        std::string source;
        double a, b, c;
    };
    std::vector<Run> runs;
    std::vector<FitTarget> targets;

    static double time(const Run& run, const Calibration& at) {
        return run.a / at[Constant::sustained_hopper] + run.b * at[Constant::framework_launch] +
               run.c / at[Constant::expert_exchange];
    }
    World(int sources, int each, const Calibration& truth, double noise) {
        DrawStream draws(Seed{4});
        for (int s = 0; s < sources; ++s)
            for (int i = 0; i < each; ++i) {
                const Run run{"source " + std::to_string(s), draws.uniform(), 4e4 * draws.uniform(),
                              draws.uniform()};
                runs.push_back(run);
                targets.push_back({run.source, time(run, truth) * std::exp(noise * draws.normal())});
            }
    }
    PredictAll predict() const {
        return [this](const Calibration& at) {
            std::vector<double> out;
            for (const Run& run : runs) out.push_back(time(run, at));
            return out;
        };
    }
};

Calibration truth() {
    Calibration out;
    out[Constant::sustained_hopper] = 0.77;
    out[Constant::framework_launch] = 14e-6;
    out[Constant::expert_exchange] = 0.41;
    return out;
}

TEST(Fit, FindsTheConstantsThatMadeTheRuns) {
    const World world(4, 20, truth(), 0);
    FitOptions options;
    options.pull = 0;
    options.most_rounds = 40;
    options.enough = 1e-12;
    options.step = 1e-4;
    const Fit fit = fit_constants(world.targets, world.predict(), Calibration{}, options);
    EXPECT_NEAR(fit.calibration[Constant::sustained_hopper], 0.77, 1e-3);
    EXPECT_NEAR(fit.calibration[Constant::framework_launch], 14e-6, 1e-7);
    EXPECT_NEAR(fit.calibration[Constant::expert_exchange], 0.41, 1e-3);
    EXPECT_LT(fit.loss_after, 1e-3 * fit.loss_before);
}

TEST(Fit, WhatNoRunShowsStaysNeutral) {
    const World world(2, 10, truth(), 0);
    const Fit fit = fit_constants(world.targets, world.predict(), Calibration{});
    EXPECT_EQ(fit.calibration[Constant::sustained_ampere], 1);
    EXPECT_EQ(fit.calibration[Constant::collective_training], 1);
}

TEST(Fit, AFewWildRunsHardlyMoveIt) {
    // one run in ten took three times as long; squares would follow them, absolute errors do not
    World world(4, 20, truth(), 0.02);
    for (std::size_t i = 0; i < world.targets.size(); i += 10) world.targets[i].measured *= 3;
    const Fit fit = fit_constants(world.targets, world.predict(), Calibration{});
    EXPECT_NEAR(fit.calibration[Constant::sustained_hopper], 0.77, 0.03);
    EXPECT_NEAR(fit.calibration[Constant::expert_exchange], 0.41, 0.02);
}

TEST(Fit, ConstantsStayInsideTheirRange) {
    Calibration beyond = truth();
    beyond[Constant::expert_exchange] = 0.02;  // the table allows 0.1
    const World world(3, 20, beyond, 0);
    const Fit fit = fit_constants(world.targets, world.predict(), Calibration{});
    for (const ConstantFacts& facts : constant_facts()) {
        EXPECT_GE(fit.calibration[facts.constant], facts.least) << facts.name;
        EXPECT_LE(fit.calibration[facts.constant], facts.most) << facts.name;
    }
    EXPECT_NEAR(fit.calibration[Constant::expert_exchange], 0.1, 1e-9);
}

TEST(Fit, ALeftOutSourceDoesNotReachTheConstantsFittedWithoutIt) {
    // source 0 measures everything twice as slow: without it the others' constants are the truth's
    World world(4, 20, truth(), 0);
    for (FitTarget& target : world.targets)
        if (target.source == "source 0") target.measured *= 2;
    FitOptions options;
    options.pull = 1e-6;
    options.most_rounds = 40;
    const Fit fit = fit_with_sources_left_out(world.targets, world.predict(), Calibration{}, options);
    ASSERT_EQ(fit.left_out.size(), 4u);
    EXPECT_NEAR(fit.left_out.at("source 0")[Constant::sustained_hopper], 0.77, 0.02);
    EXPECT_NEAR(fit.left_out.at("source 0")[Constant::expert_exchange], 0.41, 0.02);
    EXPECT_NE(fit.left_out.at("source 1").values, fit.left_out.at("source 0").values);
}

TEST(Ranking, CorrelationByHand) {
    // ranks 0 1 2 3 against 1 0 2 3: d² = 1 + 1, ρ = 1 − 6·2/(4·15) = 0.8
    EXPECT_NEAR(rank_correlation({1, 2, 3, 4}, {20, 10, 30, 40}), 0.8, kArithmetic);
    EXPECT_NEAR(rank_correlation({1, 2, 3}, {9, 5, 1}), -1, kArithmetic);
    // two share ranks 0 and 1: ½ each; (½, ½, 2) against (0, 1, 2): 1.5/√(1.5·2) = √¾
    EXPECT_NEAR(rank_correlation({4, 4, 7}, {1, 2, 3}), std::sqrt(0.75), kArithmetic);
    EXPECT_EQ(rank_correlation({1, 1, 1}, {1, 2, 3}), 0);
}

TEST(Ranking, RegretByHand) {
    // predicted order: the third (12 s), the first (10 s), the second (11 s): one pick costs 20 %
    const std::vector<double> predicted = {2, 3, 1}, measured = {10, 11, 12};
    EXPECT_NEAR(regret(predicted, measured, 1), 0.2, kArithmetic);
    EXPECT_NEAR(regret(predicted, measured, 2), 0, kArithmetic);
}

std::vector<AccuracyRow> runs_of(const std::string& model, int count) {
    std::vector<AccuracyRow> rows(static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i) {
        AccuracyRow& row = rows[static_cast<std::size_t>(i)];
        row.source = "s";
        row.model = model;
        row.software = "megatron@1";
        row.seq = 1024;
        row.global_batch = 64;
        row.predicted = row.measured = i + 1;
    }
    return rows;
}

TEST(Ranking, SweepsHoldFourRunsAndMore) {
    std::vector<AccuracyRow> rows = runs_of("large", 4);
    for (const AccuracyRow& row : runs_of("small", 3)) rows.push_back(row);
    const Ranking ranking = rank_layouts(rows);
    ASSERT_EQ(ranking.groups.size(), 1u);
    EXPECT_TRUE(ranking.groups.front().name.starts_with("large"));
    EXPECT_EQ(ranking.all.worst_correlation, 1);
    EXPECT_EQ(ranking.all.runs, 4u);
}

TEST(Ranking, WhatAPlannerDoesNotChooseDividesSweeps) {
    // eight runs, four of them different in one thing: two sweeps; in layout alone: one
    const auto sweeps = [](const std::function<void(AccuracyRow&)>& change) {
        std::vector<AccuracyRow> rows = runs_of("large", 8);
        for (std::size_t i = 4; i < 8; ++i) change(rows[i]);
        return rank_layouts(rows).groups.size();
    };
    EXPECT_EQ(sweeps([](AccuracyRow& r) { r.software = "megatron@2"; }), 2u);
    EXPECT_EQ(sweeps([](AccuracyRow& r) { r.gpus = 16; }), 2u);
    EXPECT_EQ(sweeps([](AccuracyRow& r) { r.gpu = "b200"; }), 2u);
    EXPECT_EQ(sweeps([](AccuracyRow& r) { r.precision = "fp8"; }), 2u);
    EXPECT_EQ(sweeps([](AccuracyRow& r) { r.global_batch = 128; }), 2u);
    EXPECT_EQ(sweeps([](AccuracyRow& r) { r.source = "t"; }), 2u);
    EXPECT_EQ(sweeps([](AccuracyRow& r) { r.layout = "tp 8"; }), 1u);
}

TEST(Ranking, RunsOfDifferentBatchesAreOrderedByTheTimeOfAToken) {
    // times 1 2 3 4 at batches 64 128 192 256, lengths 1 2 4 8 thousand: a token takes 1, ½, ¼, ⅛
    // of the first one's time, predicted in the reverse order
    std::vector<AccuracyRow> rows = runs_of("large", 4);
    for (int i = 0; i < 4; ++i) {
        AccuracyRow& row = rows[static_cast<std::size_t>(i)];
        row.global_batch = 64 * (i + 1);
        row.seq = 1024 << i;
        row.predicted = row.measured * (1 << (2 * i));
    }
    const Ranking ranking = rank_layouts(rows);
    ASSERT_EQ(ranking.groups.size(), 1u);
    EXPECT_EQ(ranking.groups.front().of, SweepOf::sizes);
    EXPECT_NEAR(ranking.groups.front().correlation, -1, kArithmetic);
    EXPECT_NEAR(ranking.groups.front().regret_of_one, 7, kArithmetic);
}

TEST(Interval, CausesAddInSquaresOfLogarithms) {
    // errors e^−0.3 … e^0.4, routing e^−0.4 … e^0.3 around 2 s: both ways √(0.09 + 0.16) = 0.5
    const ErrorBand band{"moe", false, -0.3, 0.4, 0, 0};
    const std::array<Seconds, 2> routing = {Seconds{2 * std::exp(-0.4)}, Seconds{2 * std::exp(0.3)}};
    const auto both = interval_of(Seconds{2}, band, routing);
    EXPECT_NEAR(both[0].value, 2 * std::exp(-0.5), kArithmetic);
    EXPECT_NEAR(both[1].value, 2 * std::exp(0.5), kArithmetic);
    const auto errors = interval_of(Seconds{2}, band, std::nullopt);
    EXPECT_NEAR(errors[0].value, 2 * std::exp(-0.3), kArithmetic);
    // a band that lies above the time altogether starts at the time
    EXPECT_EQ(interval_of(Seconds{2}, {"moe", false, 0.1, 0.2, 0, 0}, std::nullopt)[0], Seconds{2});
}

TEST(ErrorBands, QuantilesByHand) {
    // weights 1 1 2: middles at ⅛, ⅜ and ¾; a quarter lies half way between the first two
    EXPECT_NEAR(weighted_quantile({{3, 2}, {1, 1}, {2, 1}}, 0.25), 1.5, kArithmetic);
    EXPECT_EQ(weighted_quantile({{3, 2}, {1, 1}, {2, 1}}, 0.01), 1);
    EXPECT_EQ(weighted_quantile({{3, 2}, {1, 1}, {2, 1}}, 0.99), 3);
}

TEST(ErrorBands, ASourceIsJudgedByTheOthers) {
    // one source is always 2 times too slow, two others within 5 %: the first one's interval does not
    // hold it, for it did not make it
    std::vector<AccuracyRow> rows;
    for (const std::string source : {"a", "b", "c"})
        for (int i = 0; i < 12; ++i) {
            AccuracyRow row;
            row.source = source;
            row.architecture = "dense";
            row.precision = "bf16";
            row.predicted = 1;
            row.predicted_source_left_out = 1;
            row.measured = source == "a" ? 2 : 0.95 + 0.1 * i / 11;
            rows.push_back(row);
        }
    add_intervals(rows);
    EXPECT_LT((*rows.front().interval)[1], 1.1);
    EXPECT_GT((*rows.back().interval)[1], 1.9);
    const auto bands = error_bands(rows);
    ASSERT_FALSE(bands.empty());
    EXPECT_EQ(bands.front().sources, 3);
}

TEST(ErrorBands, ASourceNotSeenScattersMoreThanThoseThatWereSeen) {
    // |ln(measured/predicted)| of every row of n sources is 0.1, so is its 80 % quantile, and a
    // further draw has the variance σ²·(1 + 1/n).
    for (const int sources : {2, 4, 12}) {
        std::vector<AccuracyRow> rows;
        for (int s = 0; s < sources; ++s)
            for (int i = 0; i < 20; ++i) {
                AccuracyRow row;
                row.metric = Metric::step_time;
                row.source = "source " + std::to_string(s);
                row.architecture = "dense";
                row.precision = "bf16";
                row.predicted = 1;
                row.predicted_source_left_out = 1;
                row.measured = std::exp(i % 2 ? 0.1 : -0.1);
                rows.push_back(row);
            }
        const ErrorBand band = error_bands(rows).front();
        EXPECT_NEAR(band.high, 0.1 * std::sqrt(1 + 1.0 / sources), 1e-12);
        EXPECT_NEAR(band.low, -band.high, 1e-12);
    }
}

TEST(ErrorBands, SourcesThatAllErrToOneSideSayHowFarNotToWhich) {
    // ln(measured/predicted) = 0.1 for all rows of two sources: 0.1·√(1 + 1/2) both ways
    std::vector<AccuracyRow> rows(20);
    for (std::size_t i = 0; i < rows.size(); ++i) {
        rows[i].metric = Metric::step_time;
        rows[i].source = i % 2 ? "a" : "b";
        rows[i].architecture = "moe";
        rows[i].precision = "bf16";
        rows[i].predicted = 1;
        rows[i].predicted_source_left_out = 1;
        rows[i].measured = std::exp(0.1);
    }
    const auto bands = error_bands(rows);
    const ErrorBand* moe = band_of(bands, true, false);
    ASSERT_TRUE(moe);
    EXPECT_NEAR(moe->high, 0.1 * std::sqrt(1.5), 1e-12);
    EXPECT_NEAR(moe->low, -0.1 * std::sqrt(1.5), 1e-12);
}

}  // namespace
}  // namespace moeplan
