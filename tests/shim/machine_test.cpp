// Training on devices: several GPUs by NCCL, bf16, and machines that lack something, all on the module whose kernels run on fibers.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <sstream>

#include "core/child_process.hpp"
#include "model/checkpoint.hpp"
#include "model/model_spec.hpp"
#include "model/layers/transformer.hpp"
#include "tests/model/layers/small_models.hpp"
#include "tests/tolerance.hpp"

namespace moeplan::testing {
namespace {

ChildOptions on_the_shim(std::map<std::string, std::string> machine = {}) {
    ChildOptions options;
    options.environment = mpirun_environment();
    options.environment["MOEPLAN_MODULES"] = MOEPLAN_SHIM_MODULES;
    for (const auto& [name, value] : machine) options.environment[name] = value;
    return options;
}

struct Curve {
    std::vector<double> losses, norms;
    std::string exchange;
};
/// (kind, expert-parallel size, device) → what its run gave.
std::map<std::tuple<std::string, int, std::string>, Curve> curves_of(const std::string& output) {
    std::map<std::tuple<std::string, int, std::string>, Curve> out;
    std::istringstream lines(output);
    std::string kind, device, exchange;
    int ep = 0;
    for (double loss, norm; lines >> kind >> ep >> device >> exchange >> loss >> norm;) {
        Curve& curve = out[{kind, ep, device}];
        curve.losses.push_back(loss), curve.norms.push_back(norm), curve.exchange = exchange;
    }
    return out;
}

TEST(RanksOnGpus, ExchangeByNcclAndGiveTheLossesOfRanksOnTheCpu) {
    if (!built_with_mpi() || !find_program("mpirun")) GTEST_SKIP() << "no mpirun here";
    struct Format { const char* name; double first, later; };
    // f32: sums in another order. bf16: both round the same tensors to the same grid but not the same sums before it; later steps start
    // from weights that an update has moved by its own rounding.
    for (const Format f : {Format{"f32", kTrainerStep, kTrainerAfterUpdates}, Format{"bf16", kTrainerBf16, 3 * kTrainerBf16}}) {
        const ChildResult child = run_child(mpirun_words(2, {MOEPLAN_TRAIN_ON_TWO_DEVICES, f.name, "3", "mh_moe", "emo"}),
                                            on_the_shim({{"MOEPLAN_SHIM_GPUS", "2"}}));
        ASSERT_EQ(child.status, 0) << child.error;
        auto curves = curves_of(child.output);
        ASSERT_EQ(curves.size(), 8u) << child.output;
        for (const char* kind : {"mh_moe", "emo"})
            for (const int ep : {1, 2}) {
                const Curve &cpu = curves[{kind, ep, "cpu"}], &gpu = curves[{kind, ep, "cuda"}];
                EXPECT_EQ(cpu.exchange, "hosts");
                EXPECT_EQ(gpu.exchange, "nccl");
                ASSERT_EQ(cpu.losses.size(), 3u);
                ASSERT_EQ(gpu.losses.size(), 3u);
                for (std::size_t i = 0; i < 3; ++i)
                    EXPECT_TRUE(close(gpu.losses[i], cpu.losses[i], i ? f.later : f.first))
                        << f.name << " " << kind << " ep " << ep << " step " << i << ": " << gpu.losses[i] << " and " << cpu.losses[i];
            }
    }
}

TEST(RanksOnGpus, APeerThatIsGoneEndsTheRunWithNcclsWordsInsteadOfAWaitWithoutEnd) {
    if (!built_with_mpi() || !find_program("mpirun")) GTEST_SKIP() << "no mpirun here";
    const ChildResult child = run_child(mpirun_words(2, {MOEPLAN_TRAIN_ON_TWO_DEVICES, "f32", "3", "mh_moe"}),
                                        on_the_shim({{"MOEPLAN_SHIM_GPUS", "2"}, {"MOEPLAN_SHIM_NCCL_FAILS_AT", "40"}}));
    EXPECT_EQ(child.status, 3) << child.output << child.error;
    EXPECT_NE(child.error.find("remote process exited or there was a network error"), std::string::npos) << child.error;
}

/// A checkpoint of one step of `moeplan train`, in whose router of layer 1 no number is one.
void spoil_router(const std::filesystem::path& folder, const ModelSpec& spec) {
    const auto newest = latest_checkpoint(folder);
    ASSERT_TRUE(newest);
    Runtime rt(backend_for(Device::cpu), NumberFormat::f32);
    RankGroups groups;
    Transformer model(rt, spec, groups, Seed{3});
    load_checkpoint(*newest, rt, model);
    Parameter& router = model.parameters().at("layers.1.moe.router");
    const std::vector<double> values(std::size_t(router.count()), std::numeric_limits<double>::quiet_NaN());
    rt.upload(router.value.data(), values, rt.stat);
    save_checkpoint(folder, read_checkpoint_state(*newest), rt, model, groups, Communicator());
}

TEST(Diverged, ARouterThatGivesNoNumbersIsNamedAndEndsTheRunWithStatus3OnEveryDevice) {
    const ModelSpec spec = load_model("tiny-top-k");
    for (const char* device : {"cpu", "cuda:0"}) {
        const auto folder = std::filesystem::temp_directory_path() / ("moeplan-router-" + std::to_string(::getpid()));
        const auto run = [&](std::vector<std::string> more) {
            std::vector<std::string> words = {MOEPLAN_BINARY, "train", "--model", "tiny-top-k", "--data", "synthetic", "--seq", "8", "--micro-batch",
                                              "1", "--global-batch", "1", "--held-out", "0", "--checkpoint", folder.string()};
            words.insert(words.end(), more.begin(), more.end());
            return run_child(words, on_the_shim());
        };
        const ChildResult first = run({"--steps", "1"});
        ASSERT_EQ(first.status, 0) << first.error;
        spoil_router(folder, spec);
        const ChildResult child = run({"--steps", "2", "--continue", "--device", device});
        EXPECT_EQ(child.status, 3) << device << ": " << child.output << child.error;
        EXPECT_NE(child.error.find("layers.1.moe.router"), std::string::npos) << device << ": " << child.error;
        EXPECT_NE(child.error.find("not a number"), std::string::npos) << device << ": " << child.error;
        std::filesystem::remove_all(folder);
    }
}

struct Lacking {
    const char* name;
    std::map<std::string, std::string> machine;
    std::vector<std::string> words;   ///< of `moeplan train`
    std::vector<std::string> says;
};
class MachineThatLacks : public ::testing::TestWithParam<Lacking> {};
INSTANTIATE_TEST_SUITE_P(
    , MachineThatLacks,
    ::testing::Values(
        Lacking{"ADriver", {{"MOEPLAN_SHIM_DRIVER", "0"}}, {"--device", "cuda:0"}, {"no NVIDIA GPU that CUDA can use", "nvidia-smi"}},
        Lacking{"ANewerDriver", {{"MOEPLAN_SHIM_DRIVER", "11080"}}, {"--device", "cuda:0"}, {"driver is too old", "CUDA 11.8", "12.5"}},
        Lacking{"ADevice", {{"MOEPLAN_SHIM_GPUS", "0"}}, {"--device", "cuda"}, {"no NVIDIA GPU that CUDA can use"}},
        Lacking{"KernelsForItsArchitecture", {{"MOEPLAN_SHIM_ARCHITECTURE", "70"}}, {"--device", "cuda:0"},
                {"(sm_70) is not among the architectures", "-DMOEPLAN_CUDA_ARCHITECTURES=70-real"}},
        Lacking{"ASecondDevice", {}, {"--device", "cuda:1"}, {"there is no cuda:1", "shows 1 GPU"}},
        Lacking{"MemoryForTheWeights", {{"MOEPLAN_SHIM_MEMORY", "8388608"}}, {"--device", "cuda:0"},
                {"8 MiB", "weights, gradients and moments", "--ep"}},
        Lacking{"MemoryForTheActivations", {{"MOEPLAN_SHIM_MEMORY", "150000000"}}, {"--device", "cuda:0", "--micro-batch", "64", "--global-batch", "64"},
                {"more were needed for activations of layers.", "tensors in use take", "--micro-batch"}}),
    [](const auto& info) { return info.param.name; });

TEST_P(MachineThatLacks, SaysWhatAndHowToGetItAndExits3) {
    std::vector<std::string> words = {MOEPLAN_BINARY, "train", "--model", "tiny-top-k", "--data", "synthetic", "--steps", "1"};
    words.insert(words.end(), GetParam().words.begin(), GetParam().words.end());
    const ChildResult child = run_child(words, on_the_shim(GetParam().machine));
    EXPECT_EQ(child.status, 3) << child.output << child.error;
    EXPECT_EQ(child.output, "");
    for (const std::string& part : GetParam().says) EXPECT_NE(child.error.find(part), std::string::npos) << child.error;
}

}  // namespace
}  // namespace moeplan::testing
