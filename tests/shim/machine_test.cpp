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

TEST(Diverged, NamesTheRouterThatGivesNoNumbers) {
    ASSERT_EQ(setenv("MOEPLAN_MODULES", MOEPLAN_SHIM_MODULES, 1), 0);
    const auto folder = std::filesystem::temp_directory_path() / ("moeplan-router-" + std::to_string(::getpid()));
    for (const Device device : {Device::cpu, Device::cuda}) {
        TrainOptions options = small_run(named_model("mh_moe"), 1, 16, 1, 1);
        options.device = device;
        options.checkpoint = folder;
        Communicator alone;
        train(options, alone);
        {
            Runtime rt(backend_for(device), NumberFormat::f32);
            RankGroups groups;
            Transformer model(rt, options.model, groups, Seed{3});
            load_checkpoint(*latest_checkpoint(folder), rt, model);
            Parameter& router = model.parameters().at("layers.1.moe.router");
            std::vector<double> values(std::size_t(router.count()), std::numeric_limits<double>::quiet_NaN());
            rt.upload(router.value.data(), values, rt.stat);
            save_checkpoint(folder, read_checkpoint_state(*latest_checkpoint(folder)), rt, model, groups, alone);
        }
        options.resume = true;
        options.steps = 2;
        try {
            train(options, alone);
            ADD_FAILURE() << "trained with a router of NaN on " << name_of(device);
        } catch (const Diverged& error) {
            EXPECT_NE(std::string(error.what()).find("layers.1.moe.router"), std::string::npos) << error.what();
        }
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
        Lacking{"ASecondDevice", {}, {"--device", "cuda:1"}, {"there is no cuda:1", "shows 1 GPU"}},
        Lacking{"MemoryForTheWeights", {{"MOEPLAN_SHIM_MEMORY", "8388608"}}, {"--device", "cuda:0"},
                {"8 MiB", "weights, gradients and moments", "--ep"}},
        Lacking{"MemoryForTheActivations", {{"MOEPLAN_SHIM_MEMORY", "150000000"}}, {"--device", "cuda:0", "--micro-batch", "64", "--global-batch", "64"},
                {"more were needed", "for a tensor of", "--micro-batch"}}),
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
