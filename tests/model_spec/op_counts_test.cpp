/// Parameter and flop counts against what the models' makers published, to the last digit.
#include "model/op_counts.hpp"

#include <gtest/gtest.h>

#include "model/model_spec.hpp"
#include "tests/tolerance.hpp"

namespace moeplan {
namespace {

struct Published {
    const char* model;
    long long total, with_embeddings, without_input, without_both;  ///< 0: not stated
};

class PublishedCounts : public testing::TestWithParam<Published> {};

TEST_P(PublishedCounts, AreReproducedToTheLastDigit) {
    const Published& want = GetParam();
    const ParameterCounts got = count_parameters(load_model(want.model));
    EXPECT_EQ(got.total, want.total);
    if (want.with_embeddings) {
        EXPECT_EQ(got.active_with_embeddings, want.with_embeddings);
    }
    if (want.without_input) {
        EXPECT_EQ(got.active_without_input_embedding, want.without_input);
    }
    if (want.without_both) {
        EXPECT_EQ(got.active_without_embeddings, want.without_both);
    }
    long long sum = 0;
    for (const auto& [part, count] : got.parts) sum += count;
    EXPECT_EQ(sum, got.total);
}

// Totals of the released checkpoints and model cards; active counts in the convention each source
// uses.
INSTANTIATE_TEST_SUITE_P(
    Shipped, PublishedCounts,
    testing::Values(
        Published{"mixtral-8x7b", 46'702'792'704, 12'879'925'248, 0, 0},
        Published{"mixtral-8x22b", 140'630'071'296, 39'161'468'928, 0, 0},
        Published{"olmoe-1b-7b", 6'919'161'856, 1'282'017'280, 0, 0},
        Published{"qwen3-30b-a3b", 30'532'122'624, 3'353'032'704, 0, 0},
        Published{"qwen3-235b-a22b", 235'093'634'560, 22'190'763'520, 0, 0},
        Published{"gpt-oss-120b", 116'829'156'672, 5'711'982'912, 5'132'849'472, 0},
        Published{"gpt-oss-20b", 20'914'757'184, 4'187'440'704, 3'608'307'264, 0},
        Published{"deepseek-v3", 671'026'419'200, 37'552'297'472, 36'625'618'432, 0},
        Published{"emo-1b14b", 13'568'641'024, 1'489'045'504, 1'283'524'608, 1'078'003'712},
        Published{"emo-std-1b14b", 13'568'641'024, 1'489'045'504, 1'283'524'608, 1'078'003'712},
        Published{"emo-std-1b4b", 3'901'818'880, 1'485'899'776, 0, 0},
        Published{"emo-dense-1b", 1'484'851'200, 1'484'851'200, 0, 0}),
    [](const auto& info) {
        std::string name = info.param.model;
        for (char& c : name)
            if (c == '-') c = '_';
        return name;
    });

}  // namespace
}  // namespace moeplan
