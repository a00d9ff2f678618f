/// Every call of CUDA's libraries is looked at: none stands as a statement of its own.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <string>

namespace moeplan {
namespace {

namespace fs = std::filesystem;

/// A statement that throws a library's answer away, or a launch that no macro checks.
bool throws_away(const std::string& line) {
    static const std::regex call(R"(^\s*(else\s+|if \([^;]*\)\s+)?(cuda|cublas|cublasLt|nccl)[A-Z]\w*\(.*)"),
        launch(R"(<<<)");
    return std::regex_search(line, call) || std::regex_search(line, launch);
}

TEST(CheckedCalls, ThisTestSeesACallWhoseAnswerNobodyReads) {
    EXPECT_TRUE(throws_away("    cudaFree(p);"));
    EXPECT_TRUE(throws_away("    if (data) cudaFree(data);"));
    EXPECT_TRUE(throws_away("    kernel<<<1, 32>>>(x);"));
    EXPECT_FALSE(throws_away("    MOEPLAN_CUDA(cudaFree(p));"));
    EXPECT_FALSE(throws_away("    const cudaError_t error = cudaMalloc(out, bytes);"));
    EXPECT_FALSE(throws_away("    (void)cudaGetLastError();"));  // said aloud
}

TEST(CheckedCalls, NoAnswerOfCudaCublasOrNcclIsThrownAway) {
    int lines = 0;
    for (const char* folder : {"kernels/cuda", "kernels/nccl"})
        for (const auto& entry : fs::directory_iterator(fs::path(MOEPLAN_SOURCE_DIR) / folder)) {
            const std::string name = entry.path().filename();
            if (name == "CMakeLists.txt") continue;
            std::ifstream in(entry.path());
            std::string before;
            int number = 0;
            for (std::string line; std::getline(in, line); before = line) {
                ++number, ++lines;
                if (name == "launch.hpp" && line.find("<<<") != std::string::npos) continue;  // the macro that checks
                // The second line of a call: what stands before it belongs to it.
                const std::size_t end = before.find_last_not_of(" \\");
                if (end != std::string::npos && (before[end] == '(' || before[end] == ',' || before[end] == '=')) continue;
                EXPECT_FALSE(throws_away(line)) << folder << "/" << name << ":" << number << ": " << line;
            }
        }
    EXPECT_GT(lines, 2000);
}

}  // namespace
}  // namespace moeplan
