#include "traces/routing_law.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <set>

#include "tests/tolerance.hpp"
#include "tests/traces/some_trace.hpp"
#include "traces/fit.hpp"
#include "traces/routing_loads.hpp"
#include "traces/statistics.hpp"

namespace moeplan {
namespace {

RoutingLaw law_named(const std::string& kind) {
    RoutingLaw law;
    law.kind = kind;
    if (kind == "zipf") law.exponent = 1;
    if (kind == "hot") law.exponent = 4;
    if (kind.starts_with("document")) law.document_dispersion = 0.8;
    if (kind == "token_drop") law.exponent = 0.5;
    if (kind == "fitted") {
        TraceFit fit;
        fit.num_experts = 16;
        fit.top_k = 2;
        for (int layer = 0; layer < 2; ++layer)
            fit.layers.push_back({std::vector<double>(16, 1.0 / 16), 0.05});
        law.fit = fit;
    }
    return law;
}

SynthesisShape some_shape() {
    SynthesisShape s;
    s.num_moe_layers = 2;
    s.num_experts = 16;
    s.top_k = 2;
    s.num_moe_heads = 2;
    s.num_ranks = 2;
    s.num_micro_batches = 2;
    s.sequences_per_micro_batch = 2;
    s.sequence_length = 128;
    s.document_lengths = {40, 100, 300};
    return s;
}

class EveryLaw : public ::testing::TestWithParam<std::string> {};

TEST_P(EveryLaw, SharesSumToOneAndNoneIsAboveOneInK) {
    const RoutingLaw law = law_named(GetParam());
    for (std::uint64_t document = 0; document < 50; ++document) {
        const auto shares = routing_laws().at(law.kind)(law, {16, 2, 1, {3}}, document);
        EXPECT_NEAR(std::accumulate(shares.begin(), shares.end(), 0.0), 1.0, 1e-9);
        for (const double s : shares) {
            EXPECT_GE(s, 0);
            EXPECT_LE(s, 0.5 + 1e-9);
        }
    }
}

TEST_P(EveryLaw, EverySubTokenVisitsKDistinctExpertsOrIsDropped) {
    const RoutingLaw law = law_named(GetParam());
    const SynthesisShape shape = some_shape();
    const TraceStep step = synthetic_step(law, shape, {5}, 0);
    ASSERT_EQ(step.expert_ids.size(), 2u);
    std::uint64_t dropped = 0;
    for (const auto& ids : step.expert_ids) {
        // T·h·k choices: 2 micro-batches × 2 ranks × 2 sequences × 128 tokens × 2 heads × 2.
        ASSERT_EQ(ids.size(), 2u * 2 * 2 * 128 * 2 * 2);
        for (std::size_t row = 0; row < ids.size(); row += 2) {
            dropped += ids[row] == kNotRouted;
            dropped += ids[row + 1] == kNotRouted;
            if (ids[row] != kNotRouted && ids[row + 1] != kNotRouted) {
                EXPECT_NE(ids[row], ids[row + 1]);
            }
        }
    }
    EXPECT_EQ(dropped > 0, law.kind == "token_drop");
}

TEST_P(EveryLaw, LoadsHoldEveryChoice) {
    const RoutingLaw law = law_named(GetParam());
    const SynthesisShape shape = some_shape();
    const RoutingLoads loads = synthetic_loads(law, shape, {5}, 1, 1, 1);
    for (int rank = 0; rank < 2; ++rank) {
        const auto begin = loads.sub_tokens.begin() + rank * 16;
        const auto sum = std::accumulate(begin, begin + 16, 0u);
        if (law.kind == "token_drop")
            EXPECT_LE(sum, 2u * 128 * 2 * 2);
        else
            EXPECT_EQ(sum, 2u * 128 * 2 * 2);  // sequences × tokens × h × k of one rank
    }
}

TEST_P(EveryLaw, SameSeedSameTraceAnotherSeedAnother) {
    const RoutingLaw law = law_named(GetParam());
    const auto a = synthetic_step(law, some_shape(), {5}, 3),
               b = synthetic_step(law, some_shape(), {5}, 3),
               c = synthetic_step(law, some_shape(), {6}, 3);
    EXPECT_EQ(a.expert_ids, b.expert_ids);
    if (law.kind != "balanced") {
        EXPECT_NE(a.expert_ids, c.expert_ids);
    }
}

std::vector<std::string> every_law() {
    std::vector<std::string> out;
    for (const auto& [name, shares] : routing_laws()) out.push_back(name);
    return out;
}
INSTANTIATE_TEST_SUITE_P(Routing, EveryLaw, ::testing::ValuesIn(every_law()),
                         [](const auto& info) { return info.param; });

TEST(Balanced, CountsDifferByOneAtMost) {
    const TraceStep step = synthetic_step(law_named("balanced"), some_shape(), {1}, 0);
    std::vector<int> counts(16, 0);
    for (const auto id : step.expert_ids[0]) ++counts[id];
    EXPECT_LE(*std::max_element(counts.begin(), counts.end()) -
                  *std::min_element(counts.begin(), counts.end()),
              1);
}

TEST(Hot, TheHotExpertHasItsFactorTimesTheMean) {
    const auto shares = hot_shares(law_named("hot"), {16, 2, 0, {9}}, 0);
    EXPECT_NEAR(*std::max_element(shares.begin(), shares.end()), 4.0 / 16, kArithmetic);
}

TEST(TokenDrop, NoExpertHasMoreThanItsCapacityInAnExchange) {
    const SynthesisShape shape = some_shape();
    const TraceStep step = synthetic_step(law_named("token_drop"), shape, {5}, 0);
    // ⌈1 · (2 ranks · 2 sequences · 128 · 2 heads) · 2 / 16⌉ = 128 choices an expert and
    // micro-batch.
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
        std::vector<int> counts(16, 0);
        for (std::size_t slot = 0; slot < step.expert_ids[0].size(); ++slot)
            if (step.token_micro_batch[slot / 4] == micro_batch &&
                step.expert_ids[0][slot] != kNotRouted)
                ++counts[step.expert_ids[0][slot]];
        EXPECT_LE(*std::max_element(counts.begin(), counts.end()), 128);
        EXPECT_EQ(*std::max_element(counts.begin(), counts.end()),
                  128);  // and Zipf fills the first
    }
}

TEST(Multinomial, CountsHaveTheMeanAndVarianceOfTheBinomial) {
    // n = 1000 draws, p = 0.3 and 0.7: mean 300, variance 210; and n = 20, where it is drawn
    // exactly: mean 6, variance 4.2.
    for (const auto& [n, mean, variance] :
         {std::tuple{1000, 300.0, 210.0}, std::tuple{20, 6.0, 4.2}}) {
        double sum = 0, squares = 0;
        constexpr int kDraws = 20000;
        for (int i = 0; i < kDraws; ++i) {
            DrawStream draws(derive({1}, "test", static_cast<std::uint64_t>(i)));
            std::uint32_t counts[2] = {};
            add_multinomial(static_cast<std::uint64_t>(n), {0.3, 0.7}, draws, counts);
            EXPECT_EQ(counts[0] + counts[1], static_cast<std::uint32_t>(n));
            sum += counts[0];
            squares += static_cast<double>(counts[0]) * counts[0];
        }
        const double m = sum / kDraws, v = squares / kDraws - m * m;
        EXPECT_NEAR(m, mean, 4 * std::sqrt(variance / kDraws));  // four standard errors
        EXPECT_NEAR(v / variance, 1, 4 * std::sqrt(2.0 / kDraws));
    }
}

TEST(Multinomial, QuickDecisionsChangeNoDraw) {
    // The hash is of draws that were all decided by the whole formula: from a few trials to more
    // than the quick ones are made for, from ten expected successes to half.
    std::uint64_t hash = 0;
    for (const double p : {1e-4, 0.004, 1.0 / 64, 0.05, 0.3, 0.4999, 0.77, 0.9995})
        for (const std::uint64_t n :
             {21u, 64u, 333u, 1'024u, 8'192u, 32'768u, 131'072u, 5'000'000u, 1'000'000'000u}) {
            if (static_cast<double>(n) * std::min(p, 1 - p) < 10) continue;
            DrawStream draws{derive(Seed{3}, "binomial", n)};
            for (int i = 0; i < 4'000; ++i) {
                std::uint32_t counts[2] = {0, 0};
                add_multinomial(n, {p, 1 - p}, draws, counts);
                hash = mix(hash ^ counts[0]);
            }
        }
    EXPECT_EQ(hash, 0x186853bcb2f4fb37u);
}

TEST(Multinomial, NoExpertGetsMoreThanATokenCanGiveAndNothingIsLost) {
    // 100 tokens, top-2: 200 draws, at most 100 an expert; an expert of share 0 gets nothing while
    // the others have room, and three experts of cap 70 must share 200 as 70 + 70 + 60 at worst.
    for (int i = 0; i < 200; ++i) {
        DrawStream draws(derive({2}, "test", static_cast<std::uint64_t>(i)));
        std::uint32_t counts[4] = {};
        add_multinomial(200, {0.5, 0.3, 0.2, 0.0}, draws, counts, 100);
        EXPECT_LE(counts[0], 100u);
        EXPECT_EQ(counts[3], 0u);
        EXPECT_EQ(counts[0] + counts[1] + counts[2], 200u);
        std::uint32_t tight[3] = {};
        add_multinomial(200, {0.9, 0.05, 0.05}, draws, tight, 70);
        for (const std::uint32_t c : tight) {
            EXPECT_LE(c, 70u);
            EXPECT_GE(c, 60u);
        }
        EXPECT_EQ(tight[0] + tight[1] + tight[2], 200u);
    }
}

TEST_P(EveryLaw, PlacedLoadsHoldEveryChoiceToo) {
    // 4 sources in blocks of 2, 16 experts on 4 places: what a block's sources send to a place is
    // what its 4 experts get.
    const RoutingLaw law = law_named(GetParam());
    SynthesisShape shape = some_shape();
    shape.num_ranks = 4;
    const PlacedLoads loads = synthetic_placed_loads(law, shape, {5}, 1, 1, 1, 4, 2);
    ASSERT_EQ(loads.traffic.size(), 4u * 4);
    ASSERT_EQ(loads.rows.size(), 2u * 16);
    for (int block = 0; block < 2; ++block)
        for (int place = 0; place < 4; ++place) {
            const auto sent =
                loads.traffic[(2 * block) * 4 + place] + loads.traffic[(2 * block + 1) * 4 + place];
            const auto first = loads.rows.begin() + block * 16 + place * 4;
            EXPECT_EQ(std::accumulate(first, first + 4, 0u), sent);
        }
    if (law.kind == "token_drop") return;
    for (int source = 0; source < 4; ++source) {
        const auto first = loads.traffic.begin() + source * 4;
        EXPECT_EQ(std::accumulate(first, first + 4, 0u), 2u * 128 * 2 * 2);
    }
}

TEST(PlacedLoads, AreTheSameLawAsLoads) {
    // Zipf over 8 experts on 4 places: mean and variance of a source's rows to a place, and of an
    // expert's rows from a block of two, over 4,000 exchanges; binomials both.
    RoutingLaw law = law_named("zipf");
    SynthesisShape shape;
    shape.num_ranks = 2;
    shape.num_micro_batches = 4000;
    shape.sequence_length = 500;
    const ExpertShares p = zipf_shares(law, LawLayer{8, 2, 0, {3}}, 0);
    std::array<double, 12> sum{}, squares{};
    for (int m = 0; m < shape.num_micro_batches; ++m) {
        const PlacedLoads loads = synthetic_placed_loads(law, shape, {3}, 0, 0, m, 4, 2);
        for (std::size_t i = 0; i < 12; ++i) {
            const double x = i < 4 ? loads.traffic[4 + i] : loads.rows[i - 4];
            sum[i] += x;
            squares[i] += x * x;
        }
    }
    const double count = shape.num_micro_batches;
    for (std::size_t i = 0; i < 12; ++i) {
        const double share = i < 4 ? p[2 * i] + p[2 * i + 1] : p[i - 4],
                     draws = i < 4 ? 1000 : 2000;
        const double mean = sum[i] / count, variance = draws * share * (1 - share);
        EXPECT_NEAR(mean, draws * share, 4 * std::sqrt(variance / count));
        EXPECT_NEAR((squares[i] / count - mean * mean) / variance, 1, 5 * std::sqrt(2 / count));
    }
}

class Fit : public TraceFolder {
  protected:
    TraceFit fit_of(const RoutingLaw& law, const SynthesisShape& shape,
                    const std::string& name = "t.h5") {
        TraceWriter writer(file(name), synthetic_header(law, shape, {17}));
        for (int step = 0; step < shape.num_steps; ++step)
            writer.add(synthetic_step(law, shape, {17}, step));
        writer.finish();
        return fit_trace(TraceReader(file(name)));
    }
};

SynthesisShape long_shape(int experts, int top_k) {
    SynthesisShape s;
    s.num_steps = 40;
    s.num_experts = experts;
    s.top_k = top_k;
    s.sequences_per_micro_batch = 8;
    s.sequence_length = 512;
    return s;
}

TEST_F(Fit, FindsTheDispersionThatATraceWasMadeWith) {
    RoutingLaw law;
    law.kind = "document_dirichlet";
    law.document_dispersion = 0.8;
    const TraceFit fit = fit_of(law, long_shape(32, 1));
    EXPECT_EQ(fit.basis, "documents");
    // 320 documents of 512 choices: the estimate's standard error is about ρ·√(2/(31·320)) + what
    // finite n adds, some 2 %.
    EXPECT_NEAR(fit.layers[0].over_dispersion * 32, 0.8, 0.08);
}

TEST_F(Fit, IndependentChoicesHaveNoDispersion) {
    RoutingLaw law;
    law.kind = "multinomial";
    EXPECT_LT(fit_of(law, long_shape(32, 1)).layers[0].over_dispersion * 32, 0.02);
}

TEST_F(Fit, OneExpertADocumentIsDispersionOne) {
    // Σ[(c−np)² − np(1−p)] / Σ n(n−1)p(1−p) with c = n or 0: (n²p(1−p) − np(1−p)) / (n(n−1)p(1−p))
    // = 1 for equal p.
    TraceHeader h;
    h.num_moe_layers = 1;
    h.num_experts = 2;
    h.top_k = 1;
    h.tokens_per_step = 40;
    TraceWriter writer(file("one.h5"), h);
    TraceStep s;
    s.expert_ids.emplace_back();
    for (std::uint32_t token = 0; token < 40; ++token) {
        s.document_ids.push_back(token / 10);
        s.expert_ids[0].push_back(static_cast<std::uint16_t>(token / 10 % 2));
    }
    writer.add(s);
    writer.finish();
    const TraceFit fit = fit_trace(TraceReader(file("one.h5")));
    EXPECT_NEAR(fit.layers[0].over_dispersion, 1.0, kArithmetic);
    EXPECT_EQ(fit.document_lengths, (std::vector<std::uint32_t>{10, 10, 10, 10}));
}

TEST_F(Fit, MoreExpertsKeepDispersionTimesExpertsAndShares) {
    TraceFit fit;
    fit.num_experts = 2;
    fit.layers = {{{0.75, 0.25}, 0.1}};
    const TraceFit four = with_experts(fit, 4), three = with_experts(fit, 3),
                   again = with_experts(four, 2);
    EXPECT_EQ(four.layers[0].popularity, (std::vector<double>{0.375, 0.375, 0.125, 0.125}));
    EXPECT_NEAR(four.layers[0].over_dispersion * 4, 0.1 * 2, kArithmetic);
    EXPECT_EQ(again.layers[0].popularity, fit.layers[0].popularity);
    // Thirds of [0, 1): 2/3 of expert 0; the rest of it and as much of expert 1; 2/3 of expert 1.
    EXPECT_NEAR(three.layers[0].popularity[0], 0.5, kArithmetic);
    EXPECT_NEAR(three.layers[0].popularity[1], 0.25 + 0.25 / 3, kArithmetic);
    EXPECT_NEAR(three.layers[0].popularity[2], 0.5 / 3, kArithmetic);
}

TEST_F(Fit, PredictsTheImbalanceOfLargerMicroBatchesOnMoreRanks) {
    // Fitted on exchanges of 2 sequences; asked about 16 sequences on 4, 8 and 16 ranks, which are
    // drawn for comparison.
    RoutingLaw law;
    law.kind = "document_dirichlet";
    law.document_dispersion = 1.5;
    SynthesisShape shape = long_shape(32, 2);
    shape.num_steps = 200;
    shape.sequences_per_micro_batch = 2;
    const TraceFit fit = fit_of(law, shape);
    shape.sequences_per_micro_batch = 16;
    for (const int ranks : {4, 8, 16}) {
        double drawn = 0;
        for (int step = 0; step < 200; ++step)
            drawn +=
                load_imbalance(synthetic_loads(law, shape, {17}, 1000 + step, 0, 0), ranks) / 200;
        const double predicted = expected_imbalance(fit, 0, ranks, 16);
        // docs/routing-traces.md: ≤ 4 % for 8 sequences or more; 200 draws add ≤ 1 %.
        EXPECT_NEAR(predicted / drawn, 1, 0.05)
            << ranks << " ranks: " << predicted << " predicted, " << drawn << " drawn";
        TraceFit without = fit;
        without.layers[0].over_dispersion = 0;
        EXPECT_GT(std::abs(expected_imbalance(without, 0, ranks, 16) / drawn - 1),
                  std::abs(predicted / drawn - 1))
            << "documents matter";
    }
}

TEST(Statistics, OfCountsByHand) {
    const std::vector<std::uint64_t> counts = {12, 4, 2, 14};
    EXPECT_NEAR(max_over_mean(counts), 14 / 8.0, kArithmetic);
    // G = Σᵢⱼ|xᵢ − xⱼ| / (2n²·mean): pairs 8 10 2 2 10 12 = 44, twice, over 2·16·8 = 256.
    EXPECT_NEAR(gini(counts), 88.0 / 256, kArithmetic);
    EXPECT_NEAR(relative_entropy_of_uniform(std::vector<std::uint64_t>{1, 1, 1, 1}), 1,
                kArithmetic);
    EXPECT_NEAR(relative_entropy_of_uniform(std::vector<std::uint64_t>{1, 1, 0, 0}), 0.5,
                kArithmetic);
    EXPECT_EQ(by_rank(counts, 2), (std::vector<std::uint64_t>{16, 16}));
    EXPECT_EQ(by_rank(std::vector<std::uint64_t>{1, 2, 3}, 2),
              (std::vector<std::uint64_t>{3, 3}));  // ⌊e·2/3⌋ = 0 0 1
}

class TraceStats : public TraceFolder {};

TEST_F(TraceStats, MicroBatchesAndTheWholeAreToldApart) {
    // Two micro-batches, [4, 0] and [0, 4]: each twice its mean, together even.
    TraceHeader h;
    h.num_moe_layers = 1;
    h.num_experts = 2;
    h.top_k = 1;
    h.num_micro_batches = 2;
    h.counts_only = true;
    TraceWriter writer(file("c.h5"), h);
    TraceStep s;
    s.counts = {{4, 0, 0, 4}};
    writer.add(s);
    writer.finish();
    const TraceStatistics statistics = trace_statistics(TraceReader(file("c.h5")));
    EXPECT_EQ(statistics.layers[0].exchange.mean, 2.0);
    EXPECT_EQ(statistics.layers[0].max_over_mean, 1.0);
    EXPECT_EQ(statistics.layers[0].by_ranks.at(2), 1.0);
    EXPECT_EQ(statistics.layers[0].exchange_by_ranks.at(2).mean, 2.0);
}

TEST_F(TraceStats, PairsRanksDocumentsAndRepeatsByHand) {
    // 4 experts, top 2. Tokens: {0,1} {0,1} {2,3} | {0,2}; a document is three tokens, then one.
    TraceHeader h;
    h.num_moe_layers = 1;
    h.num_experts = 4;
    h.top_k = 2;
    h.tokens_per_step = 4;
    TraceWriter writer(file("p.h5"), h);
    TraceStep s;
    s.expert_ids = {{0, 1, 0, 1, 2, 3, 0, 2}};
    s.document_ids = {1, 1, 1, 2};
    s.domain_ids = {0, 0, 0, 1};
    writer.add(s);
    writer.finish();
    const LayerStatistics l = trace_statistics(TraceReader(file("p.h5"))).layers[0];
    EXPECT_EQ(l.tokens_per_expert, (std::vector<std::uint64_t>{3, 2, 2, 1}));
    EXPECT_NEAR(*l.top_pairs, 2.0 / 4,
                kArithmetic);  // a tenth of 6 pairs is one: (0,1), twice of four
    EXPECT_EQ(l.most_frequent_pairs[0].first, (std::pair<int, int>{0, 1}));
    EXPECT_NEAR(l.ranks_per_token.at(2), (1 + 1 + 1 + 2) / 4.0, kArithmetic);  // ranks {0,1} {2,3}
    EXPECT_NEAR(*l.repeats, 1.0 / 3, kArithmetic);
    // Domain shares (2,2,1,1) and (1,0,1,0): cosine 3/√(10·2).
    EXPECT_NEAR(*l.domain_cosine, 3 / std::sqrt(20.0), kArithmetic);
    EXPECT_FALSE(l.experts_per_document.has_value());  // none has 200 tokens
}

}  // namespace
}  // namespace moeplan
