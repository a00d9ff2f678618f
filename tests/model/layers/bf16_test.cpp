/// Training in bf16: the loss is that of f32 to rounding, routers and what learns stay in f32, runs
/// repeat and resume bit for bit.

#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "model/checkpoint.hpp"
#include "model/layers/transformer.hpp"
#include "tests/model/layers/small_models.hpp"
#include "tests/tolerance.hpp"

namespace moeplan {
namespace {

using namespace testing;

std::vector<double> losses_in(NumberFormat format, TrainOptions options) {
    options.format = format;
    Communicator alone;
    std::vector<double> out;
    for (const StepRecord& step : train(options, alone).steps) out.push_back(step.loss);
    return out;
}

class Bf16 : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(EveryRouting, Bf16,
                         ::testing::Values("top_k", "mh_moe", "emo", "switch", "gshard", "x_moe",
                                           "sigmoid_top_k", "domain"),
                         [](const auto& info) { return info.param; });

TEST_P(Bf16, FirstLossIsThatOfF32ToItsRoundingAndItLearnsAsMuch) {
    TrainOptions options = small_run(named_model(GetParam()), 60);
    options.optimizer.learning_rate = 2e-2;
    const auto full = losses_in(NumberFormat::f32, options),
               half = losses_in(NumberFormat::bf16, options);
    EXPECT_NEAR(half.front(), full.front(), kTrainerBf16 * full.front());
    EXPECT_NE(half.front(), full.front());  // it was not f32 by another name
    // The loss of one step is that of a few sequences: what was learned is seen over the last 20.
    const auto end = [](const std::vector<double>& losses) {
        return std::accumulate(losses.end() - 20, losses.end(), 0.0) / 20;
    };
    const double drop = full.front() - end(full);
    EXPECT_GT(drop, 0.1);
    // Two runs that part at the first roundings end some per cent of what they learned apart.
    EXPECT_NEAR(end(half), end(full), 0.2 * drop);
    EXPECT_EQ(half, losses_in(NumberFormat::bf16, options));  // the same bytes again
}

TEST(Bf16Parameters, RoutersAreF32AndEveryOtherOneIsItsMasterRounded) {
    Runtime rt(backend_for(Device::cpu), NumberFormat::bf16);
    RankGroups alone;
    Transformer model(rt, named_model("x_moe"), alone, Seed{3});
    int routers = 0;
    for (Parameter* parameter : model.parameters().all()) {
        const bool router = parameter->name.find(".router") != std::string::npos;
        routers += router;
        EXPECT_EQ(parameter->value.format(), router ? NumberFormat::f32 : NumberFormat::bf16)
            << parameter->name;
        EXPECT_EQ(bool(parameter->master), !router) << parameter->name;
        EXPECT_EQ(parameter->gradient.format(), NumberFormat::f32);
        const auto value =
            rt.download(parameter->value.data(), parameter->count(), parameter->value.format());
        const auto full = rt.download(parameter->full().data(), parameter->count(), rt.stat);
        for (std::size_t i = 0; i < value.size(); ++i)
            // eight bits of precision, to the nearest: half a unit in the last place
            ASSERT_NEAR(value[i], full[i], 0x1p-8 * std::abs(full[i])) << parameter->name;
    }
    EXPECT_EQ(routers, 2 * 2);  // two layers, each a reduction and a router
}

TEST(Bf16Checkpoint, ResumesBitForBitAndHoldsMastersThatF32CanRead) {
    const auto folder =
        std::filesystem::temp_directory_path() / ("moeplan-bf16-" + std::to_string(::getpid()));
    TrainOptions options = small_run(named_model("mh_moe"), 10);
    const auto straight = losses_in(NumberFormat::bf16, options);
    options.format = NumberFormat::bf16;
    options.checkpoint = folder;
    options.checkpoint_every = 6;
    int done = 0;
    Communicator alone;
    TrainCallbacks stop_after_six;
    stop_after_six.stop = [&] { return ++done >= 6; };
    const TrainResult first = train(options, alone, stop_after_six);
    options.resume = true;
    const TrainResult rest = train(options, alone);
    ASSERT_EQ(first.steps.size() + rest.steps.size(), straight.size());
    for (std::size_t i = 0; i < rest.steps.size(); ++i)
        EXPECT_EQ(rest.steps[i].loss, straight[first.steps.size() + i]);
    // A file of numbers in full precision: a model in f32 takes it up where bf16 left it.
    Runtime rt(backend_for(Device::cpu), NumberFormat::f32);
    RankGroups groups;
    Transformer model(rt, options.model, groups, Seed{3});
    load_checkpoint(*latest_checkpoint(folder), rt, model);
    bool beyond_bf16 = false;  // some number has bits that bf16 lacks
    const Parameter& up = model.parameters().at("layers.0.moe.experts.up");
    for (const double x : rt.download(up.value.data(), up.count(), rt.format))
        beyond_bf16 = beyond_bf16 || (std::bit_cast<std::uint32_t>(float(x)) & 0xffff) != 0;
    EXPECT_TRUE(beyond_bf16);
    std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace moeplan
