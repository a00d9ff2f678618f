/// Whole runs: they repeat and resume bit for bit, losses fall, odd loads give zeros
/// and no hang.

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <nlohmann/json.hpp>

#include "core/errors.hpp"
#include "tests/model/layers/small_models.hpp"
#include "traces/routing_trace.hpp"

namespace moeplan {
namespace {

using namespace testing;
namespace fs = std::filesystem;

struct Folder {
    fs::path path = fs::temp_directory_path() /
                    ("moeplan-train-" + std::to_string(::getpid()) + "-" +
                     ::testing::UnitTest::GetInstance()->current_test_info()->name());
    Folder() { fs::create_directories(path); }
    ~Folder() { fs::remove_all(path); }
};

std::vector<double> losses(const TrainResult& result) {
    std::vector<double> out;
    for (const StepRecord& step : result.steps) out.push_back(step.loss);
    return out;
}

TrainResult run(const TrainOptions& options) {
    Communicator alone;
    return train(options, alone);
}

const std::vector<std::string> kKinds = {"top_k",  "mh_moe", "emo",           "switch",
                                         "gshard", "x_moe",  "sigmoid_top_k", "domain"};

class EveryRouting : public ::testing::TestWithParam<std::string> {};

TEST_P(EveryRouting, LearnsAndRepeatsBitForBit) {
    TrainOptions options = small_run(named_model(GetParam(), 1), 120);
    options.optimizer.learning_rate = 2e-2;
    const TrainResult first = run(options);
    TrainOptions again = options;
    again.steps = 20;
    const std::vector<double> straight = losses(run(again));
    EXPECT_EQ(straight, losses(run(again)));
    // It begins at ln V = 4.16 and the text has structure to learn.
    EXPECT_NEAR(first.steps.front().loss, std::log(64.0), 0.15);
    EXPECT_LT(first.steps.back().loss, first.steps.front().loss - 0.5) << "of " << GetParam();
    for (const StepRecord& step : first.steps) {
        EXPECT_TRUE(std::isfinite(step.gradient_norm));
        EXPECT_EQ(step.tokens, 2 * 2 * 32);
    }
}

INSTANTIATE_TEST_SUITE_P(Training, EveryRouting, ::testing::ValuesIn(kKinds),
                         [](const auto& info) { return info.param; });

TEST(MultiHead, WithOneHeadIsPlainMoeBitForBit) {
    ModelSpec plain = named_model("top_k"), one = plain;
    for (LayerSpec& layer : one.layers)
        std::get<MoeFeedForward>(layer.feed_forward).head_bias = true;  // no head, no bias of it
    EXPECT_EQ(losses(run(small_run(plain))), losses(run(small_run(one))));
}

TEST(DocumentPool, AsLargeAsTheExpertsIsTheStandardRouterBitForBit) {
    ModelSpec pooled = named_model("emo"), standard = pooled;
    for (LayerSpec& layer : pooled.layers)
        std::get<MoeFeedForward>(layer.feed_forward).pool = DocumentPool{8, 8};
    for (LayerSpec& layer : standard.layers) {
        auto& moe = std::get<MoeFeedForward>(layer.feed_forward);
        moe.routing = "softmax_top_k";
        moe.pool.reset();
    }
    EXPECT_EQ(losses(run(small_run(pooled))), losses(run(small_run(standard))));
}

TEST(Checkpoint, ResumesBitForBit) {
    Folder folder;
    for (const std::string kind : {"emo", "sigmoid_top_k"}) {
        TrainOptions options = small_run(named_model(kind), 12);
        const std::vector<double> straight = losses(run(options));
        options.checkpoint = folder.path / kind;
        options.checkpoint_every = 5;
        int done = 0;
        Communicator alone;
        TrainCallbacks stop_after_seven;
        stop_after_seven.stop = [&] { return ++done >= 7; };
        const TrainResult first = train(options, alone, stop_after_seven);
        EXPECT_TRUE(first.stopped);
        options.resume = true;
        const TrainResult rest = train(options, alone);
        EXPECT_EQ(rest.first_step, 7);
        std::vector<double> joined = losses(first), tail = losses(rest);
        joined.insert(joined.end(), tail.begin(), tail.end());
        EXPECT_EQ(joined, straight) << kind;
    }
}

/// Asked once before the first step and once after each; a step's is the mean of both sides: with
/// answers 1, 2, 3 … s, 1.5, 2.5 and 3.5 s. What the steps compute does not change.
TEST(Train, TheMachinesPaceStandsInEachRecordIfItIsAskedFor) {
    TrainOptions options = small_run(named_model("top_k"), 3);
    int asked = 0;
    TrainCallbacks with_pace;
    with_pace.machine_pace = [&] { return Seconds{static_cast<double>(++asked)}; };
    Communicator alone;
    const TrainResult paced = train(options, alone, with_pace), plain = train(options, alone);
    ASSERT_EQ(paced.steps.size(), 3u);
    for (int i = 0; i < 3; ++i) {
        ASSERT_TRUE(paced.steps[i].machine_pace);
        EXPECT_DOUBLE_EQ(paced.steps[i].machine_pace->value, i + 1.5);
        EXPECT_EQ(to_json(paced.steps[i])["machine_pace_s"], i + 1.5);
        EXPECT_FALSE(to_json(plain.steps[i]).contains("machine_pace_s"));
    }
    EXPECT_EQ(losses(paced), losses(plain));
}

TEST(Checkpoint, TruncatedAndForeignOnesAreRefused) {
    Folder folder;
    TrainOptions options = small_run(named_model("top_k"), 2);
    options.checkpoint = folder.path;
    run(options);
    options.resume = true;
    options.steps = 3;
    const fs::path shard = folder.path / "step-000002" / "shard-00000.bin";
    ASSERT_TRUE(fs::exists(shard));
    std::stringstream whole;
    whole << std::ifstream(shard, std::ios::binary).rdbuf();
    const std::string content = whole.str();
    for (const std::size_t size : {content.size() - 1, content.size() / 2, std::size_t(30),
                                   std::size_t(5), std::size_t(0)}) {
        std::ofstream(shard, std::ios::binary) << content.substr(0, size);
        EXPECT_THROW(run(options), InputError) << size;
    }
    std::string damaged = content;
    damaged[content.size() / 2] = char(damaged[content.size() / 2] ^ 1);
    std::ofstream(shard, std::ios::binary) << damaged;
    EXPECT_THROW(run(options), InputError);
    std::ofstream(shard, std::ios::binary) << content;
    options.model = named_model("mh_moe");
    EXPECT_THROW(run(options), InputError);
}

TEST(Trace, HoldsEveryChoiceOfEveryStep) {
    Folder folder;
    TrainOptions options = small_run(named_model("mh_moe"), 4);
    options.trace = folder.path / "trace.h5";
    options.trace_first = 1;
    run(options);
    const TraceReader reader(options.trace);
    EXPECT_EQ(reader.header().num_steps, 3);
    EXPECT_EQ(reader.header().num_moe_layers, 2);
    EXPECT_EQ(reader.header().num_moe_heads, 2);
    for (int step = 0; step < 3; ++step)
        for (int layer = 0; layer < 2; ++layer) {
            std::uint64_t rows = 0;
            for (int m = 0; m < 2; ++m)
                for (const std::uint32_t count : reader.loads(step, layer, m).sub_tokens)
                    rows += count;
            // Dropless: tokens · h · k.
            EXPECT_EQ(rows, 128u * 2 * 2);
        }
}

TEST(Loads, ExpertsWithoutTokensGiveZeros) {
    // 64 experts, k = 1, 4 tokens a micro-batch: most experts are empty in every step.
    MoeFeedForward moe = small_moe();
    moe.num_experts = 64;
    moe.top_k = 1;
    const TrainResult result = run(small_run(with_moe(small_model(2, 16, 64), moe), 10, 4, 1, 1));
    for (const StepRecord& step : result.steps)
        EXPECT_TRUE(std::isfinite(step.loss) && std::isfinite(step.gradient_norm));
}

TEST(Divergence, StopsAndNamesTheLayer) {
    TrainOptions options = small_run(named_model("top_k"), 50);
    options.optimizer.learning_rate = 1e30;
    options.optimizer.warmup_steps = 0;
    options.optimizer.schedule = LearningRate::constant;
    try {
        run(options);
        FAIL() << "a learning rate of 1e30 did no harm";
    } catch (const Diverged& error) {
        EXPECT_NE(std::string(error.what()).find("step "), std::string::npos) << error.what();
    }
}

TEST(LearningRates, FollowTheirCurves) {
    OptimizerOptions options;
    options.learning_rate = 1;
    options.warmup_steps = 10;
    EXPECT_DOUBLE_EQ(learning_rate_at(options, 0, 110), 0.1);
    EXPECT_DOUBLE_EQ(learning_rate_at(options, 9, 110), 1.0);
    // Half way through the cosine: low + (peak − low)/2 = 0.1 + 0.45.
    EXPECT_NEAR(learning_rate_at(options, 60, 110), 0.55, 1e-12);
    options.schedule = LearningRate::wsd;
    EXPECT_DOUBLE_EQ(learning_rate_at(options, 60, 110), 1.0);
    EXPECT_NEAR(learning_rate_at(options, 100, 110), 1 - 0.9 * 0.5, 1e-12);
}

}  // namespace
}  // namespace moeplan
