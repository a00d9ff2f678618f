// Every barrier of the CUDA kernels is there for a reason: with it left out, and all others in place, ThreadSanitizer reports a race,
// a law fails, or threads no longer meet. A barrier that nothing misses is taken out of the kernel.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "core/child_process.hpp"

namespace moeplan::test {
namespace {

/// A barrier's place in kernels/cuda, and how many stand there.
struct Barrier {
    std::string file;
    int line = 0, count = 0;
};
std::vector<Barrier> barriers() {
    std::vector<Barrier> out;
    for (const auto& entry : std::filesystem::directory_iterator(MOEPLAN_SOURCE_DIR "/kernels/cuda")) {
        std::ifstream in(entry.path());
        std::string line;
        for (int number = 1; std::getline(in, line); ++number) {
            line = line.substr(0, line.find("//"));
            Barrier here{entry.path().filename(), number, 0};
            for (const std::string word : {"__syncthreads", "__syncwarp"})
                for (std::size_t at = line.find(word); at != std::string::npos; at = line.find(word, at + 1)) ++here.count;
            if (here.count) out.push_back(here);
        }
    }
    std::sort(out.begin(), out.end(), [](const Barrier& a, const Barrier& b) { return std::tie(a.file, a.line) < std::tie(b.file, b.line); });
    return out;
}

/// The laws that run a file's kernels, quickest first.
const std::map<std::string, std::string> kLaws = {
    {"device_math.hpp", "*.RmsNorm*:*.CrossEntropy*"},
    {"document_pool.cu", "*.APool*"},
    {"embedding.cu", "*.Embedding*"},
    {"expert_activation.cu", "*.BiasedActivations*"},
    {"optimizer.cu", "*.TheNormOfAGradient*"},
    {"permutation.cu", "*.RowsAreSorted*"},
    {"router.cu", "*.Router*:*.Route*"},
};

/// The laws under ThreadSanitizer, every schedule of shim_device.cpp, in f32 (what a barrier orders does not depend on the format).
ChildResult laws_without(const std::string& place, const std::string& laws) {
    ChildOptions options;
    options.environment["MOEPLAN_SHIM_LEAVE_OUT"] = place;
    options.environment["TSAN_OPTIONS"] = "symbolize=0";      // that there is a race is enough; naming its place takes seconds
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    options.poll = [end] { return std::chrono::steady_clock::now() < end; };        // a kernel that never ends
    std::string filter;
    for (std::size_t begin = 0; begin < laws.size();) {
        const std::size_t colon = std::min(laws.find(':', begin), laws.size());
        filter += (filter.empty() ? "" : ":") + laws.substr(begin, colon - begin) + "/f32";
        begin = colon + 1;
    }
    return run_child({MOEPLAN_SHIM_TSAN, "--gtest_fail_fast", "--gtest_filter=" + filter}, options);
}

class BarrierLeftOut : public ::testing::TestWithParam<Barrier> {};
INSTANTIATE_TEST_SUITE_P(, BarrierLeftOut, ::testing::ValuesIn(barriers()), [](const auto& info) {
    std::string name = info.param.file + "_" + std::to_string(info.param.line);
    std::replace(name.begin(), name.end(), '.', '_');
    return name;
});

TEST_P(BarrierLeftOut, IsMissed) {
    const Barrier& barrier = GetParam();
    ASSERT_EQ(barrier.count, 1) << "barriers have lines of their own: a place names one";
    ASSERT_TRUE(kLaws.contains(barrier.file)) << "no laws are named for " << barrier.file;
    const std::string place = barrier.file + ":" + std::to_string(barrier.line);
    const ChildResult child = laws_without(place, kLaws.at(barrier.file));
    const bool raced = child.status == 66 && child.error.find("a race was reported") != std::string::npos;
    const bool failed = child.status == 1 && child.output.find("FAILED TEST") != std::string::npos;
    EXPECT_TRUE(raced || failed) << "the laws pass without the barrier at " << place << " (status " << child.status << "): "
                                 << child.output.substr(child.output.rfind("left out") == std::string::npos ? 0 : child.output.rfind("left out"))
                                 << child.error;
}

TEST(BarriersInPlace, TheSameLawsPass) {
    // A place that no kernel has: what is different above is the barrier alone.
    for (const auto& [file, laws] : kLaws) {
        const ChildResult child = laws_without("nowhere.cu:1", laws);
        EXPECT_EQ(child.status, 0) << file << "\n" << child.output << child.error;
        EXPECT_NE(child.output.find("left out 0 times"), std::string::npos) << file << "\n" << child.output;
        EXPECT_NE(child.output.find("[  PASSED  ]"), std::string::npos) << file << "\n" << child.output;
    }
}

}  // namespace
}  // namespace moeplan::test
