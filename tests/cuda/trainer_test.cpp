// The whole trainer on the CUDA module against the trainer on the CPU: on a GPU, or with kernels that run on fibers (tests/shim).

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <utility>

#include "tests/model/layers/small_models.hpp"
#include "tests/tolerance.hpp"

namespace moeplan::testing {
namespace {

using namespace std::string_literals;

/// In the shim the module found first is the one whose kernels run on fibers: it stands in the folder named here.
std::string why_no_gpu() {
#ifdef MOEPLAN_SHIM_MODULES
    if (setenv("MOEPLAN_MODULES", MOEPLAN_SHIM_MODULES, 1) != 0) return "no room for a variable";
#endif
    return why_missing(Device::cuda);
}

class TrainerOnCudaKernels : public ::testing::TestWithParam<std::string> {};
std::string name_of_kind(const ::testing::TestParamInfo<std::string>& info) { return info.param; }
INSTANTIATE_TEST_SUITE_P(, TrainerOnCudaKernels, ::testing::Values("top_k"s, "mh_moe"s, "emo"s, "switch"s, "gshard"s, "x_moe"s, "sigmoid_top_k"s, "domain"s),
                         name_of_kind);

TEST_P(TrainerOnCudaKernels, LossesAreThoseOfTheCpuToRounding) {
    const std::string why = why_no_gpu();
    if (!why.empty()) GTEST_SKIP() << why;
    const auto losses_on = [&](Device device) {
        TrainOptions options = small_run(named_model(GetParam(), 1), 3, 16, 1, 2);
        options.device = device;
        Communicator alone;
        std::vector<double> losses, norms;
        for (const StepRecord& step : train(options, alone).steps) losses.push_back(step.loss), norms.push_back(step.gradient_norm);
        return std::pair{losses, norms};
    };
    const auto [expected, expected_norms] = losses_on(Device::cpu);
    const auto [got, got_norms] = losses_on(Device::cuda);
    ASSERT_EQ(got.size(), expected.size());
    // Before the first update both compute the same function in f32.
    EXPECT_TRUE(close(got[0], expected[0], kTrainerStep)) << got[0] << " and " << expected[0];
    EXPECT_TRUE(close(got_norms[0], expected_norms[0], 10 * kTrainerStep)) << got_norms[0] << " and " << expected_norms[0];
    for (std::size_t i = 1; i < got.size(); ++i) EXPECT_TRUE(close(got[i], expected[i], kTrainerAfterUpdates)) << i << ": " << got[i] << " and " << expected[i];
}

TEST(Bf16OnCudaKernels, FirstLossIsThatOfTheCpuToTheRoundingOfBf16) {
    const std::string why = why_no_gpu();
    if (!why.empty()) GTEST_SKIP() << why;
    for (const char* kind : {"top_k", "mh_moe", "emo", "x_moe", "sigmoid_top_k"}) {
        const auto losses_on = [&](Device device) {
            TrainOptions options = small_run(named_model(kind, 1), 3, 16, 1, 2);
            options.device = device;
            options.format = NumberFormat::bf16;
            Communicator alone;
            std::vector<double> losses;
            for (const StepRecord& step : train(options, alone).steps) losses.push_back(step.loss);
            return losses;
        };
        const auto cpu = losses_on(Device::cpu), gpu = losses_on(Device::cuda);
        ASSERT_EQ(gpu.size(), 3u);
        for (std::size_t i = 0; i < gpu.size(); ++i)
            EXPECT_TRUE(close(gpu[i], cpu[i], i ? 3 * kTrainerBf16 : kTrainerBf16)) << kind << " step " << i << ": " << gpu[i] << " and " << cpu[i];
    }
}

TEST(GraphsOfTheTrainer, GiveTheLossesOfItsKernelsOneByOneToTheLastBit) {
    const std::string why = why_no_gpu();
    if (!why.empty()) GTEST_SKIP() << why;
    ModelSpec mixed = named_model("mh_moe", 2);               // a dense block and one with experts
    mixed.layers[0].feed_forward = DenseFeedForward{.dense_hidden_size = 24, .activation = Activation::swiglu};
    for (const auto& [model, format] : {std::pair{mixed, NumberFormat::f32}, std::pair{named_model("emo", 2), NumberFormat::bf16}}) {
        const auto run = [&, &model = model, &format = format](bool graphs) {
            if (graphs)
                unsetenv("MOEPLAN_CUDA_GRAPHS");
            else
                setenv("MOEPLAN_CUDA_GRAPHS", "0", 1);
            TrainOptions options = small_run(model, 5, 16, 1, 2);
            options.device = Device::cuda;
            options.format = format;
            Communicator alone;
            const TrainResult result = train(options, alone);
            unsetenv("MOEPLAN_CUDA_GRAPHS");
            return result;
        };
        const TrainResult with = run(true), without = run(false);
        ASSERT_EQ(with.steps.size(), without.steps.size());
        for (std::size_t i = 0; i < with.steps.size(); ++i) {
            EXPECT_EQ(with.steps[i].loss, without.steps[i].loss) << model.name << " step " << i;
            EXPECT_EQ(with.steps[i].gradient_norm, without.steps[i].gradient_norm) << model.name << " step " << i;
        }
        EXPECT_EQ(without.stretches.one_by_one + without.stretches.recorded + without.stretches.replayed, std::uint64_t{0});
        // A step has zeroing, and two blocks forward and backward of each of two micro-batches: 9 stretches, seen twice before they are
        // replayed. Tensors of the first step may lie elsewhere than later ones': at least the last two steps are replays.
        EXPECT_GE(with.stretches.replayed, std::uint64_t{18}) << model.name << ": " << with.stretches.recorded << " recorded";
    }
}

}  // namespace
}  // namespace moeplan::testing
