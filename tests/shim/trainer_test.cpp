// The whole trainer on the CUDA module, whose kernels run on fibers, against the trainer on the CPU.

#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/model/layers/small_models.hpp"
#include "tests/tolerance.hpp"

namespace moeplan::testing {
namespace {

class TrainerOnCudaKernels : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(, TrainerOnCudaKernels, ::testing::Values("top_k", "mh_moe", "emo", "switch", "gshard", "x_moe", "sigmoid_top_k", "domain"),
                         [](const auto& info) { return info.param; });

TEST_P(TrainerOnCudaKernels, LossesAreThoseOfTheCpuToRounding) {
    // The module found first is the one whose kernels run on fibers: it stands in the folder named here.
    ASSERT_EQ(setenv("MOEPLAN_MODULES", MOEPLAN_SHIM_MODULES, 1), 0);
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

}  // namespace
}  // namespace moeplan::testing
