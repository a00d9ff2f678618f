/// scripts/gpu-run without a GPU: what it says, and that every stage works at tiny sizes on kernels that run on the CPU.

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "core/child_process.hpp"
#include "profiler/profile.hpp"

namespace moeplan {
namespace {

namespace fs = std::filesystem;
const std::string kScript = MOEPLAN_SOURCE_DIR "/scripts/gpu-run";

std::string text_of(const fs::path& file) {
    std::ifstream in(file);
    return {std::istreambuf_iterator<char>(in), {}};
}
std::set<std::string> files_in(const fs::path& folder) {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename());
    return names;
}
bool has(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

class GpuRun : public ::testing::Test {
  protected:
    GpuRun() { fs::create_directories(out); }
    ~GpuRun() override { fs::remove_all(out); }
    ChildResult run(std::vector<std::string> words, std::function<bool()> poll = {}) const {
        words.insert(words.begin(), {kScript, "--out", out.string()});
        ChildOptions options;
        options.environment = {{"MOEPLAN_GPU_BUILD", MOEPLAN_GPU_RUN_BUILD}};
        options.poll = std::move(poll);
        return run_child(words, options);
    }
    const fs::path out =
        fs::temp_directory_path() / ("moeplan-gpu-run-" + std::to_string(::getpid()));
};

TEST_F(GpuRun, WithoutAGpuItSaysSoAndExits3) {
    if (fs::exists("/dev/nvidia0")) GTEST_SKIP() << "there is a GPU";
    const ChildResult result = run({});
    EXPECT_EQ(result.status, 3) << result.output << result.error;
    EXPECT_TRUE(has(result.error, "no GPU")) << result.error;
}

TEST_F(GpuRun, WordsThatItDoesNotKnowAreNamedAndExit2) {
    for (const std::vector<std::string>& words :
         {std::vector<std::string>{"--tokns", "x"}, {"--minutes", "0"}, {"--tokens", "no-such-file"}}) {
        const ChildResult result = run(words);
        EXPECT_EQ(result.status, 2) << result.output << result.error;
        EXPECT_TRUE(has(result.error, words[0])) << result.error;
    }
}

TEST_F(GpuRun, TheComparisonWithPyTorchIsPython) {
    if (!find_program("python3")) GTEST_SKIP() << "no python3 here";
    const ChildResult result =
        run_child({"python3", "-c", "import ast, sys; ast.parse(open(sys.argv[1]).read())",
                   MOEPLAN_SOURCE_DIR "/scripts/gpu-run-pytorch.py"});
    EXPECT_EQ(result.status, 0) << result.error;
}

/// One test: its parts share one build.
TEST_F(GpuRun, OnTheCpuEveryStageRunsAndWhatWasCutShortIsKept) {
    const ChildResult whole = run({"--on-cpu", "--minutes", "20"});  // a busy machine builds slowly
    ASSERT_EQ(whole.status, 0) << whole.output << whole.error;
    EXPECT_EQ(files_in(out), (std::set<std::string>{"log.txt", "tests.txt", "profile.txt", "profile.json",
                                                    "figures.json", "train.txt"}));
    EXPECT_TRUE(has(text_of(out / "tests.txt"), ", 0 failed")) << text_of(out / "tests.txt");
    EXPECT_FALSE(has(text_of(out / "log.txt"), "cut off")) << text_of(out / "log.txt");

    // What it leaves is what `moeplan … --profile` reads, with every kernel at two sizes and the way that experts' products took.
    const Profile profile = load_profile((out / "profile.json").string());
    EXPECT_GE(profile.kernels.size(), 20u);
    EXPECT_TRUE(has(profile.conditions.at("choice_1"), "grouped_gemm"));
    const auto figures = nlohmann::json::parse(text_of(out / "figures.json"));
    EXPECT_TRUE(figures.at("tiny").get<bool>());
    EXPECT_GT(figures.at("layer").at("forward_and_backward_s").get<double>(), 0);

    // 50 steps of both models, unless the time for them ran out on a busy machine; the loss falls, as far as 64 tokens a step tell:
    // the mean of a model's last fifth of steps lies under that of its first.
    std::map<std::string, std::vector<double>> losses;
    std::istringstream lines(text_of(out / "train.txt"));
    for (std::string line; std::getline(lines, line);)
        if (line.starts_with("{")) {
            const auto step = nlohmann::json::parse(line);
            losses[step.at("model")].push_back(step.at("loss"));
        }
    for (const char* model : {"mh-moe", "emo"}) {
        const std::vector<double>& of = losses[model];
        ASSERT_GE(of.size(), 10u) << model << text_of(out / "train.txt");
        for (const double loss : of) EXPECT_TRUE(std::isfinite(loss)) << model;
        if (of.size() < 50) continue;
        EXPECT_LT(std::accumulate(of.begin() + 40, of.begin() + 50, 0.0) / 10,
                  std::accumulate(of.begin(), of.begin() + 10, 0.0) / 10 - 0.05)
            << model;
    }

    // Nothing but the toolchain and what the shim takes: no header of a library that GPU machines lack.
    std::size_t looked_at = 0;
    for (const auto& entry : fs::recursive_directory_iterator(MOEPLAN_GPU_RUN_BUILD)) {
        if (entry.path().extension() != ".d") continue;
        ++looked_at;
        const std::string needs = text_of(entry.path());
        for (const char* library : {"/nlohmann/", "/oneapi/", "/mpi", "hdf5", "/simgrid", "/CLI/", "/fmt/",
                                    "/gtest/gtest.h", "sentencepiece"})
            for (std::size_t at = needs.find(library); at != std::string::npos; at = needs.find(library, at + 1)) {
                const std::size_t begin = needs.find_last_of(" \n", at) + 1;
                const std::string header = needs.substr(begin, needs.find_first_of(" \n", at) - begin);
                // a compiler cache may name it as seen from the build folder
                const std::string place = fs::weakly_canonical(fs::path(MOEPLAN_GPU_RUN_BUILD) / header);
                EXPECT_TRUE(place.starts_with(MOEPLAN_SOURCE_DIR)) << entry.path() << " needs " << header;
            }
    }
    EXPECT_GT(looked_at, 50u);

    // Told to stop after so many seconds: the log says so, what is there is whole.
    for (const int seconds : {1, 4, 9}) {
        fs::remove_all(out);
        fs::create_directories(out);
        const auto begin = std::chrono::steady_clock::now();
        const ChildResult cut = run({"--on-cpu"}, [&] {
            return std::chrono::steady_clock::now() - begin < std::chrono::seconds(seconds);
        });
        EXPECT_NE(cut.status, 0) << "it was done within " << seconds << " s";
        EXPECT_TRUE(has(text_of(out / "log.txt"), "cut short")) << seconds << " s: " << text_of(out / "log.txt");
        for (const std::string& file : files_in(out)) {
            EXPECT_FALSE(file.ends_with(".part")) << file;
            if (file == "profile.json") {
                EXPECT_NO_THROW(load_profile((out / file).string())) << seconds;
            }
            if (file == "figures.json") {
                EXPECT_TRUE(nlohmann::json::accept(text_of(out / file))) << seconds;
            }
        }
    }
}

}  // namespace
}  // namespace moeplan
