/// The quality laws against the numbers their papers print (docs/quality-laws.md).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "planner/quality/quality_law.hpp"
#include "tests/tolerance.hpp"

namespace moeplan {
namespace {

/// What a printed number of this many decimals can hide.
constexpr double half_digit(int decimals) {
    double out = 0.5;
    for (int i = 0; i < decimals; ++i) out /= 10;
    return out;
}

TEST(Krajewski, ReproducesItsTableOfLossesWithinCoefficientRounding) {
    // L = c + (g/G^γ + a)/N^α + b/D^β with N = 43 N_act (d²(8E+4) over 12d² at E = 64). Table 2 of
    // the paper: N_act, D, G → loss.
    struct Row {
        double active, tokens, granularity, printed, formula;
    };
    for (const Row& row :
         {Row{100e6, 4.37e9, 8, 3.133, 3.110}, Row{1e9, 28.94e9, 16, 2.491, 2.471},
          Row{7e9, 137.60e9, 32, 2.076, 2.060}, Row{1e12, 7.94e12, 64, 1.367, 1.356}}) {
        const double loss =
            krajewski_loss(kKrajewskiE64, 43 * row.active, row.tokens, row.granularity);
        EXPECT_NEAR(loss, row.formula, half_digit(3) + 1e-4);
        EXPECT_NEAR(loss, row.printed, 0.024);
    }
}

TEST(Krajewski, PredictsTheGranularityGainsOfMhMoe) {
    // ΔL = g (G^-γ − 1) / N^α at N = 283e6: −0.074 −0.124 −0.161 (E = 64), −0.052 −0.079 −0.094 (E
    // = 16)
    const auto gain = [](const GranularityFit& fit, double granularity) {
        return krajewski_loss(fit, 283e6, 1e9, granularity) - krajewski_loss(fit, 283e6, 1e9, 1);
    };
    EXPECT_NEAR(gain(kKrajewskiE64, 2), -0.074, half_digit(3));
    EXPECT_NEAR(gain(kKrajewskiE64, 4), -0.124, half_digit(3));
    EXPECT_NEAR(gain(kKrajewskiE64, 9), -0.161, half_digit(3));
    EXPECT_NEAR(gain(kKrajewskiE16, 2), -0.052, half_digit(3));
    EXPECT_NEAR(gain(kKrajewskiE16, 4), -0.079, half_digit(3));
    EXPECT_NEAR(gain(kKrajewskiE16, 9), -0.094, half_digit(3));
}

TEST(Ludziejewski, ReducedCoefficientsAreThoseOfItsTable4) {
    // E = 8: m = a Ê^δ = 21.84, μ = α + γ ln Ê = −0.1676, n = b Ê^ω = 119.8, ν = β + ζ ln Ê =
    // −0.2339
    const JointFit fit = ludziejewski_fit(8);
    EXPECT_NEAR(fit.m, 21.84, half_digit(2));
    EXPECT_NEAR(fit.mu, -0.1676, half_digit(4));
    EXPECT_NEAR(fit.n, 119.8, half_digit(1) + 0.05);  // three to four digits
    EXPECT_NEAR(fit.nu, -0.2339, half_digit(4) + 5e-5);
}

TEST(Ludziejewski, OptimalAllocationIsThatOfItsTable1) {
    // 1e20 flops, E = 8: 0.990 G active parameters, 16.8 G tokens, to about 1 %
    const Allocation at = ludziejewski_optimum(1e20, 8);
    EXPECT_NEAR(at.active_parameters, 0.990e9, 0.015 * 0.990e9);
    EXPECT_NEAR(at.tokens, 16.8e9, 0.015 * 16.8e9);
    EXPECT_TRUE(close(6 * at.active_parameters * at.tokens, 1e20));
}

TEST(Ludziejewski, OptimumIsTheLeastLossOnItsIsoFlopCurve) {
    const Allocation at = ludziejewski_optimum(1e21, 4);
    const double least = ludziejewski_loss(at.active_parameters, at.tokens, 4);
    for (const double times : {0.9, 0.99, 1.01, 1.1})
        EXPECT_GT(ludziejewski_loss(at.active_parameters * times, at.tokens / times, 4), least);
}

TEST(Saturation, StartsAtEsAndEndsAtEm) {
    // 1/Ê = 1/(E − 1 + (1/E_s − 1/E_m)^-1) + 1/E_m: at E = 1 the sum is 1/E_s.
    EXPECT_TRUE(close(saturated(1, 1.847, 314.478), 1.847));
    EXPECT_NEAR(saturated(1e12, 1.847, 314.478), 314.478, 1e-6);
}

TEST(Clark, LogarithmsAreToBaseTen) {
    // S-BASE, N = 1.3e9, E = 1: L = 2.237
    EXPECT_NEAR(clark_loss(kClarkSBase, 1.3e9, 1), 2.237, half_digit(3));
}

TEST(Clark, ExpertsStopHelpingNearAThousandBillionParameters) {
    // d log L / d log Ê = b + c log10 N = 0 at N = 10^(−b/c) = 1e12 (rounded constants; paper
    // 937e9).
    EXPECT_LT(clark_loss(kClarkSBase, 0.9e12, 64), clark_loss(kClarkSBase, 0.9e12, 1));
    EXPECT_GT(clark_loss(kClarkSBase, 1.1e12, 64), clark_loss(kClarkSBase, 1.1e12, 1));
}

TEST(EfficiencyLeverage, FitsThePapersText) {
    // EL(3.1 %, 12, 1e22) = 7.24 (paper: > 7); EL(A = 1) = 0.99 at G = 12; optimum G = 2^(−β/2γ)
    // = 11.3
    EXPECT_NEAR(efficiency_leverage(0.031, 12, 1e22), 7.24, half_digit(2) + 1e-4);
    EXPECT_NEAR(efficiency_leverage(1, 12, 1e22), 0.99, half_digit(2));
    const double optimum = std::pow(2, 1.17e-1 / (2 * 1.67e-2));
    EXPECT_NEAR(optimum, 11.3, 0.05);
    const double most = efficiency_leverage(0.05, optimum, 1e21);
    EXPECT_GT(most, efficiency_leverage(0.05, optimum * 1.2, 1e21));
    EXPECT_GT(most, efficiency_leverage(0.05, optimum / 1.2, 1e21));
}

TEST(Abnar, SparsityMovesLossAsItsTermsSay) {
    // L(N, D, S) − L(N, D, 0) = c ((1−S)^-λ − 1) + d ((1−S)^-δ − 1) / N^γ, λ = −.1666, δ = .1603
    const double s = 0.75, n = 1e9;
    const double expected = .4598 * (std::pow(0.25, .1666) - 1) +
                            17.26 * (std::pow(0.25, -.1603) - 1) / std::pow(n, .1595);
    EXPECT_NEAR(abnar_loss(n, 1e10, s) - abnar_loss(n, 1e10, 0), expected, 1e-12);
}

TEST(MhMoeCalibration, ObservedGainsAreAQuarterToThreeFifthsOfThePredicted) {
    // ln(10.74/10.90) = −0.0148 … ln(13.63/14.35) = −0.0515 over −0.052 … −0.094: 0.24 … 0.6
    const GranularityCalibration seen = mh_moe_calibration();
    EXPECT_NEAR(seen.low, 0.24, 0.01);
    EXPECT_NEAR(seen.high, 0.6, 0.01);
    EXPECT_GT(seen.mean, seen.low);
    EXPECT_LT(seen.mean, seen.high);
}

/// MH2's models: d = 768, half of 12 layers MoE, SwiGLU.
QualityCase mh2(int heads, int experts, int top_k, int width, double total) {
    QualityCase out;
    out.hidden_size = 768;
    out.num_moe_heads = heads;
    out.num_experts = experts;
    out.top_k = top_k;
    out.expert_hidden_size = width;
    out.total_parameters = total;
    out.active_parameters = 85e6;
    out.flops_per_token = 170e6;
    out.tokens = 50e9;
    return out;
}

TEST(QualityLaws, MoreSlotsAtEqualFlopsNeverRaiseTheLossOfTheCalibratedLaw) {
    // MH2 observed SMoE > fine-grained > h = 2 > h = 3 on every corpus.
    const QualityLaw& law = *find_quality_law("mh_calibrated");
    const QualityCase plain = mh2(1, 8, 1, 2048, 283e6);
    const QualityEstimate a = law.estimate(plain, plain);
    const QualityEstimate b = law.estimate(mh2(1, 16, 2, 1024, 283e6), plain);
    const QualityEstimate c = law.estimate(mh2(2, 40, 2, 768, 276e6), plain);
    const QualityEstimate d = law.estimate(mh2(3, 96, 3, 512, 290e6), plain);
    EXPECT_LT(b.loss, a.loss);
    EXPECT_LT(c.loss, b.loss);
    EXPECT_LT(d.loss, c.loss);
    // Observed h = 3 against SMoE: −0.036 … −0.053 lies in the range of the difference.
    EXPECT_LE(d.low - a.loss, -0.053);
    EXPECT_GE(d.high - a.loss, -0.053);
}

TEST(QualityLaws, EveryLawGivesARangeWithItsNameAndSaysThatSubTokensAreExtrapolated) {
    const QualityCase plain = mh2(1, 8, 1, 2048, 283e6), heads = mh2(8, 64, 2, 700, 283e6);
    ASSERT_EQ(quality_laws().size(), 6u);
    for (const QualityLaw& law : quality_laws()) {
        const QualityEstimate estimate = law.estimate(heads, plain);
        EXPECT_EQ(estimate.law, law.name);
        EXPECT_LE(estimate.low, estimate.loss) << law.name;
        EXPECT_LE(estimate.loss, estimate.high) << law.name;
        EXPECT_THAT(estimate.notes, ::testing::Contains(::testing::HasSubstr("sub-tokens")));
        // 768 / 8 = 96 < 128
        EXPECT_THAT(estimate.notes, ::testing::Contains(::testing::HasSubstr("warning")));
    }
}

TEST(QualityLaws, ExpertsAreCountedByTheSlotsThatTheyFill) {
    // 40 experts of 2 heads × top-2 are an expansion of 10, not 40.
    EXPECT_DOUBLE_EQ(mh2(2, 40, 2, 768, 276e6).expansion(), 10);
    EXPECT_DOUBLE_EQ(mh2(3, 96, 3, 512, 290e6).slots(), 9);
    EXPECT_NEAR(mh2(3, 96, 3, 512, 290e6).expansion(), 10.7, 0.05);
}

TEST(TokensToLoss, TheModelItselfNeedsItsOwnTokensAndABetterOneFewer) {
    const QualityCase plain = mh2(1, 8, 1, 2048, 283e6), better = mh2(3, 96, 3, 512, 290e6);
    for (const QualityLaw& law : quality_laws()) {
        if (law.name == "clark_2022") continue;  // fitted at one number of tokens
        const TokensToLoss same = tokens_to_base_loss(law, plain, plain);
        EXPECT_NEAR(same.central, plain.tokens, 1e-6 * plain.tokens) << law.name;
    }
    const TokensToLoss fewer =
        tokens_to_base_loss(*find_quality_law("mh_calibrated"), better, plain);
    EXPECT_LT(fewer.central, plain.tokens);
    EXPECT_LE(fewer.best, fewer.central);
    EXPECT_LE(fewer.central, fewer.worst);
}

}  // namespace
}  // namespace moeplan
