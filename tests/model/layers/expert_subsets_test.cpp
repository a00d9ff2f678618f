/// Which experts are kept, and what is left without the others.

#include "model/expert_subsets.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "core/errors.hpp"
#include "model/layers/transformer.hpp"
#include "model/micro_batch.hpp"
#include "tests/model/layers/small_models.hpp"

namespace moeplan {
namespace {

using namespace testing;
using ::testing::DoubleEq;
using ::testing::ElementsAre;
namespace fs = std::filesystem;

TEST(ExpertScores, RoutingScoreIsTheMeanProbability) {
    MoeObserved seen;
    seen.probabilities = {0.5, 0.3, 0.2,   // token 0
                          0.1, 0.6, 0.3};  // token 1
    // (0.5 + 0.1)/2, (0.3 + 0.6)/2, (0.2 + 0.3)/2
    const auto scores = expert_scores(SubsetSelection::routing, seen, 3, 1, 1);
    EXPECT_THAT(scores, ElementsAre(DoubleEq(0.3), DoubleEq(0.45), DoubleEq(0.25)));
    EXPECT_THAT(best_experts(scores, 2), ElementsAre(1, 1, 0));
}

TEST(ExpertScores, EasyEpWeighsGateTimesOutputByHowFarTheTokenTurns) {
    MoeObserved seen;
    seen.residual = {1, 0, 2, 0};       // h of two tokens
    seen.routed_output = {0, 1, 3, 0};  // ȟ: token 0 turns by 45°, token 1 not at all
    seen.expert_ids = {0, 2, 1, 0};
    seen.gates = {0.6, 0.4, 0.9, 0.1};
    seen.output_norms = {2, 5, 7, 7};
    // s_0 = 1 − cos 45° = 0.292893, s_1 = 0.  Expert 0: 0.6·2·s_0, expert 2: 0.4·5·s_0, expert 1:
    // 0.
    const double s = 1 - std::sqrt(0.5);
    const auto scores = expert_scores(SubsetSelection::easy_ep, seen, 3, 2, 1);
    EXPECT_NEAR(scores[0], 1.2 * s, 1e-12);
    EXPECT_NEAR(scores[1], 0, 1e-12);
    EXPECT_NEAR(scores[2], 2.0 * s, 1e-12);
}

TEST(BestExperts, EqualScoresGoToTheLowerIndex) {
    EXPECT_THAT(best_experts({1, 2, 2, 1}, 3), ElementsAre(1, 1, 1, 0));
}

/// Σ of a token's gates and the experts chosen, with some experts gone.
MoeObserved observed_with(const ModelSpec& spec, const std::vector<std::uint8_t>& kept,
                          GateScaling scaling) {
    Runtime rt(backend_for(Device::cpu), NumberFormat::f64);
    RankGroups alone;
    Transformer model(rt, spec, alone, Seed{5});
    model.moe_layers().front()->keep_experts(kept, scaling);
    MoeObserved out;
    model.evaluate(on_device(rt, read_batch(*small_text(spec.vocab_size, 24), 0, 2), 0, 1), nullptr,
                   [&](std::size_t, MoeLayer&, const MoeObserved& seen) {
                       out = seen;
                       return false;
                   });
    return out;
}

TEST(KeptExperts, GatesOverTheKeptSumToOneAndUnprunedOnesAreThoseOfTheWholeModel) {
    ModelSpec spec = named_model("top_k", 1);
    const std::vector<std::uint8_t> kept = {0, 1, 0, 0, 0, 1, 0, 0};
    const MoeObserved whole = observed_with(spec, {}, GateScaling::over_kept),
                      over_kept = observed_with(spec, kept, GateScaling::over_kept),
                      over_all = observed_with(spec, kept, GateScaling::over_all);
    for (std::size_t u = 0; u < 48; ++u) {
        // Both choices are the two experts that stay: their softmax is 1 in sum.
        EXPECT_NEAR(over_kept.gates[2 * u] + over_kept.gates[2 * u + 1], 1, 1e-12);
        for (std::size_t j = 0; j < 2; ++j) {
            const std::int32_t expert = over_all.expert_ids[2 * u + j];
            EXPECT_TRUE(expert == 1 || expert == 5);
            EXPECT_EQ(over_all.expert_ids[2 * u + j], over_kept.expert_ids[2 * u + j]);
            EXPECT_EQ(over_all.gates[2 * u + j], whole.probabilities[8 * u + std::size_t(expert)]);
        }
    }
}

TEST(KeptExperts, FewerThanTheChoicesLeaveTheOtherChoicesEmpty) {
    for (const GateScaling scaling : {GateScaling::over_kept, GateScaling::over_all}) {
        const MoeObserved one = observed_with(named_model("top_k", 1), {0, 0, 0, 1, 0, 0, 0, 0},
                                              scaling),
                          none = observed_with(named_model("top_k", 1),
                                               std::vector<std::uint8_t>(8, 0), scaling);
        for (std::size_t u = 0; u < 48; ++u) {
            EXPECT_EQ(one.expert_ids[2 * u], 3);
            EXPECT_EQ(one.expert_ids[2 * u + 1], -1);
            EXPECT_EQ(none.expert_ids[2 * u], -1);
        }
        for (const double value : none.routed_output) EXPECT_EQ(value, 0);
    }
}

TEST(ExpertSubsets, AllExpertsLoseNothingAndEverySelectionKeepsTheNumberAskedFor) {
    const fs::path folder =
        fs::temp_directory_path() / ("moeplan-subsets-" + std::to_string(::getpid()));
    TrainOptions options = small_run(named_model("emo"), 30);
    options.checkpoint = folder;
    Communicator alone;
    train(options, alone);
    const TokenData text = synthetic_tokens(options.model.vocab_size, 40000, 3, Seed{7});
    for (const SubsetSelection select :
         {SubsetSelection::routing, SubsetSelection::greedy, SubsetSelection::easy_ep}) {
        SubsetOptions subset;
        subset.kept = {8, 2};
        subset.select = select;
        subset.selection_sequences = subset.test_sequences = 3;
        const SubsetLosses losses = evaluate_subsets(options, folder, text, 0.2, subset);
        ASSERT_EQ(losses.subsets.size(), 2u);
        EXPECT_EQ(losses.subsets[0].mean, losses.whole.mean);  // the 8 of 8
        EXPECT_DOUBLE_EQ(losses.subsets[0].retained, 1);
        EXPECT_NE(losses.subsets[1].mean, losses.whole.mean);
        EXPECT_NE(losses.none.mean, losses.whole.mean);
        for (std::size_t d = 0; d < 3; ++d) EXPECT_GT(losses.test_tokens[d], 0);
        const SubsetLosses again = evaluate_subsets(options, folder, text, 0.2, subset);
        EXPECT_EQ(again.subsets[1].by_domain, losses.subsets[1].by_domain);
    }
    SubsetOptions wrong;
    wrong.kept = {9};
    EXPECT_THROW(evaluate_subsets(options, folder, text, 0.2, wrong), InputError);
    fs::remove_all(folder);
}

}  // namespace
}  // namespace moeplan
