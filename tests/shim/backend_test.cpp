// What the CUDA backend decides for itself: how experts' products are launched, which algorithm a product gets, what becomes a graph.

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "core/errors.hpp"
#include "kernels/graphed_calls.hpp"
#include "tests/cuda/two_sides.hpp"
#include "tests/shim/scheduler.hpp"

namespace moeplan::test {
namespace {

const Backend& shim_device() {
    std::string why;
    return *device_under_test(&why);
}

/// Device memory with numbers in it.
class Buffer {
  public:
    explicit Buffer(const std::vector<float>& values) : count_(values.size()) {
        check(shim_device().allocate(values.size() * sizeof(float), &data_), "allocate");
        std::memcpy(data_, values.data(), values.size() * sizeof(float));
    }
    Buffer(std::size_t count, float value) : Buffer(std::vector<float>(count, value)) {}
    ~Buffer() { shim_device().release(data_); }
    Buffer(const Buffer&) = delete;
    float* data() const { return static_cast<float*>(data_); }
    std::vector<float> values() const { return {data(), data() + count_}; }

  private:
    void* data_ = nullptr;
    std::size_t count_ = 0;
};
std::vector<float> drawn(std::size_t count, std::uint64_t seed) {
    DrawStream draws({seed});
    std::vector<float> out(count);
    for (float& v : out) v = float(2 * draws.uniform() - 1);
    return out;
}

class CudaBackend : public ::testing::Test {
  protected:
    void SetUp() override { shim::blas() = {}; }
    void TearDown() override {
        shim::blas() = {};
        shim::graphs_fail = false;
        unsetenv("MOEPLAN_GROUPED_GEMM_FILE");
        unsetenv("MOEPLAN_CUDA_GRAPHS");
    }
};

// --- how experts' products are launched -------------------------------------------------------------------------------------

/// A layer of experts in f32 whose n and k name it: what is measured is kept as long as the process.
struct Experts {
    std::int64_t n, k;
    std::vector<std::int32_t> offsets;
    Buffer x, w, y, device_offsets;

    Experts(std::int64_t n_of, std::int64_t k_of, const std::vector<std::int32_t>& begins)
        : n(n_of), k(k_of), offsets(begins), x(drawn(std::size_t(begins.back() * k_of), 1)), w(drawn((begins.size() - 1) * n_of * k_of, 2)),
          y(drawn(std::size_t(begins.back() * n_of), 3)), device_offsets(begins.size(), 0) {
        std::memcpy(device_offsets.data(), begins.data(), begins.size() * sizeof(std::int32_t));
    }
    Status run(GroupedProduct product = GroupedProduct::forward, NumberFormat format = NumberFormat::f32) const {
        const GroupedGemmCall call{x.data(), w.data(), y.data(), reinterpret_cast<const std::int32_t*>(device_offsets.data()), offsets.data(),
                                   std::int64_t(offsets.size()) - 1, offsets.back(), n, k, product, format};
        return shim_device().kernels->grouped_gemm(&call, nullptr);
    }
    /// The line that tells of the choice, or empty.
    std::string choice(const char* product = "forward", const char* format = "f32") const {
        const std::string begin = "grouped_gemm " + std::string(product) + " " + format + " experts " + std::to_string(offsets.size() - 1) + " n " +
                                  std::to_string(n) + " k " + std::to_string(k) + " ";
        for (const std::string& line : choices_of(shim_device()))
            if (line.rfind(begin, 0) == 0) return line.substr(begin.size());
        return "";
    }
};

TEST_F(CudaBackend, ExpertsProductsAreLaunchedInTheWayThatWasFasterHere) {
    shim::blas().lt_seconds = 0.5;                            // a second or more for the loop over two experts
    const Experts slow_loop(3, 5, {0, 2, 4});
    ASSERT_EQ(slow_loop.run().code, kOk);
    EXPECT_EQ(slow_loop.choice().find("rows 2: grouped (loop 1e+06 us, grouped "), 0u) << slow_loop.choice();
    shim::blas() = {};
    shim::blas().grouped_seconds = 1;
    const Experts slow_grouped(3, 6, {0, 2, 4});
    ASSERT_EQ(slow_grouped.run().code, kOk);
    EXPECT_EQ(slow_grouped.choice().find("rows 2: loop (loop "), 0u) << slow_grouped.choice();
}

TEST_F(CudaBackend, AChoiceStaysForItsBucketWhateverTheTimesAreLater) {
    shim::blas().lt_seconds = 1;
    const Experts experts(3, 7, {0, 5, 8});                   // 4 rows on average
    ASSERT_EQ(experts.run().code, kOk);
    shim::blas() = {};
    shim::blas().grouped_seconds = 1;
    const Experts same_bucket(3, 7, {0, 1, 6});               // 3 on average: 3 … 4 are one bucket
    ASSERT_EQ(same_bucket.run().code, kOk);
    EXPECT_EQ(shim::blas().grouped_calls, 1);
    EXPECT_EQ(shim::blas().lt_calls, 0);
    const Experts next_bucket(3, 7, {0, 5, 10});              // 5 on average: measured anew, both ways four times, and then one
    ASSERT_EQ(next_bucket.run().code, kOk);
    EXPECT_EQ(shim::blas().grouped_calls, 1 + 4);
    EXPECT_EQ(shim::blas().lt_calls, 2 * (4 + 1));
}

TEST_F(CudaBackend, TheFirstResultIsThatOfAllLaterOnes) {
    for (const auto product : {GroupedProduct::forward, GroupedProduct::data_gradient, GroupedProduct::weight_gradient}) {
        const Experts experts(4, 9, {0, 7, 7, 12});
        const std::vector<float> before = experts.w.values();
        const auto result = [&] {
            std::memcpy(experts.w.data(), before.data(), before.size() * sizeof(float));
            EXPECT_EQ(experts.run(product).code, kOk);
            return product == GroupedProduct::forward ? experts.y.values() : product == GroupedProduct::data_gradient ? experts.x.values() : experts.w.values();
        };
        const std::vector<float> first = result();
        EXPECT_EQ(first, result());
        // An expert without rows has no gradient; the measurement has added nothing.
        if (product == GroupedProduct::weight_gradient) {
            EXPECT_TRUE(std::equal(before.begin() + 36, before.begin() + 72, first.begin() + 36));
            // dw[0][0][0] += Σ over 7 rows of y · x
            double sum = before[0];
            for (int r = 0; r < 7; ++r) sum += double(experts.y.values()[std::size_t(4 * r)]) * double(experts.x.values()[std::size_t(9 * r)]);
            EXPECT_NEAR(first[0], sum, 1e-5);
        }
    }
}

TEST_F(CudaBackend, Bf16WeightGradientsAreNeverGroupedAndNotMeasured) {
    const Experts experts(4, 11, {0, 3, 6});
    ASSERT_EQ(experts.run(GroupedProduct::weight_gradient, NumberFormat::bf16).code, kOk);
    EXPECT_EQ(shim::blas().grouped_calls, 0);
    EXPECT_EQ(shim::blas().lt_calls, 2);
    EXPECT_EQ(experts.choice("weight_gradient", "bf16"), "");
}

TEST_F(CudaBackend, AWayThatCublasRefusesIsNoChoice) {
    shim::blas().refuses_grouped = true;
    shim::blas().lt_seconds = 1;
    const Experts experts(4, 13, {0, 3, 6});
    ASSERT_EQ(experts.run().code, kOk);
    EXPECT_EQ(experts.choice(), "rows 4: loop (loop 2e+06 us, grouped inf us)");
}

TEST_F(CudaBackend, AFileKeepsChoicesFromRunToRun) {
    const auto file = std::filesystem::temp_directory_path() / ("moeplan-choices-" + std::to_string(::getpid()));
    std::filesystem::remove(file);
    setenv("MOEPLAN_GROUPED_GEMM_FILE", file.c_str(), 1);
    shim::blas().lt_seconds = 1;
    const Experts measured(4, 15, {0, 3, 6});
    ASSERT_EQ(measured.run().code, kOk);
    std::ifstream in(file);
    std::string line;
    std::getline(in, line);
    EXPECT_NE(line.find("experts 2 n 4 k 15 rows 4: grouped (loop 2e+06 us"), std::string::npos) << line;
    in.close();

    // Another file, as if an earlier run had written it: its choice is taken, and a line of another device is not.
    std::string other = line;
    other.replace(other.find("k 15"), 4, "k 17").replace(other.find(": grouped"), 9, ": loop");
    const auto second = file.string() + "-2";
    std::ofstream(second) << "another GPU | " << other.substr(other.find("| ") + 2) << "\n" << other << "\nnot a line of ours\n";
    setenv("MOEPLAN_GROUPED_GEMM_FILE", second.c_str(), 1);
    const Experts read(4, 17, {0, 3, 6});
    ASSERT_EQ(read.run().code, kOk);
    EXPECT_EQ(shim::blas().grouped_calls, 4 + 1);             // those of the first, none of the second
    EXPECT_EQ(read.choice().find("rows 4: loop"), 0u) << read.choice();
    std::filesystem::remove(file);
    std::filesystem::remove(second);
}

// --- which algorithm a product gets -----------------------------------------------------------------------------------------

Status product(std::int64_t m, std::int64_t n, std::int64_t k, const Buffer& a, const Buffer& b, const Buffer& c, std::int64_t skip = 0) {
    const GemmCall call{a.data() + skip, b.data(), c.data(), m, n, k, k, n, n, false, false, 1, 0, NumberFormat::f32, NumberFormat::f32};
    return shim_device().kernels->gemm(&call, nullptr);
}

TEST_F(CudaBackend, AProductsAlgorithmIsAskedForOnce) {
    const Buffer a(drawn(21 * 19 + 1, 4)), b(drawn(19 * 23, 5)), c(21 * 23, 0);
    ASSERT_EQ(product(21, 23, 19, a, b, c).code, kOk);
    ASSERT_EQ(product(21, 23, 19, a, b, c).code, kOk);
    EXPECT_EQ(shim::blas().heuristics, 1);
    // One element further on it is aligned to 4 bytes alone: that is another algorithm.
    ASSERT_EQ(product(21, 23, 19, a, b, c, 1).code, kOk);
    EXPECT_EQ(shim::blas().heuristics, 2);
    EXPECT_EQ(shim::blas().lt_calls, 3);
    EXPECT_EQ(shim::blas().plain_calls, 0);
}

TEST_F(CudaBackend, ExpertsWithAboutAsManyRowsShareAnAlgorithm) {
    setenv("MOEPLAN_GROUPED_GEMM", "loop", 1);
    Experts experts(3, 19, {0, 160});
    const auto asked_at = [&](std::int32_t rows) {
        experts.offsets = {0, rows};
        EXPECT_EQ(experts.run().code, kOk);
        return shim::blas().heuristics;
    };
    EXPECT_EQ(asked_at(121), 1);                              // 121 … 128: steps of 8 between 64 and 128
    EXPECT_EQ(asked_at(128), 1);
    EXPECT_EQ(asked_at(129), 2);                              // 129 … 144
    EXPECT_EQ(asked_at(144), 2);
    unsetenv("MOEPLAN_GROUPED_GEMM");
    EXPECT_EQ(shim::blas().lt_calls, 4);
    EXPECT_EQ(shim::blas().plain_calls, 0);
}

TEST_F(CudaBackend, WhatCublasLtRefusesCublasMultiplies) {
    const Buffer a(drawn(5 * 31, 6)), b(drawn(31 * 3, 7)), c(15, 0);
    shim::blas().knows_no_algorithm = true;
    ASSERT_EQ(product(5, 3, 31, a, b, c).code, kOk);
    EXPECT_EQ(shim::blas().lt_calls, 0);
    EXPECT_EQ(shim::blas().plain_calls, 1);
    double sum = 0;
    for (std::size_t l = 0; l < 31; ++l) sum += double(a.values()[l]) * double(b.values()[3 * l]);
    EXPECT_NEAR(c.values()[0], sum, 1e-5);
}

TEST_F(CudaBackend, AnAlgorithmThatRefusesFewerRowsIsReplacedByOneForTheirNumber) {
    setenv("MOEPLAN_GROUPED_GEMM", "loop", 1);
    shim::blas().refuses_smaller_shapes = true;
    const Experts experts(33, 35, {0, 33});                   // 33 rows are rounded up to 36
    ASSERT_EQ(experts.run().code, kOk);
    unsetenv("MOEPLAN_GROUPED_GEMM");
    EXPECT_EQ(shim::blas().heuristics, 2);
    EXPECT_EQ(shim::blas().lt_calls, 1);
    EXPECT_EQ(shim::blas().plain_calls, 0);
}

// --- graphs -----------------------------------------------------------------------------------------------------------------

/// A stretch of the kind that training has: zeros, a norm in two kernels with scratch memory, products, a sum.
struct Work {
    Buffer x{drawn(40 * 16, 8)}, w{drawn(16 * 16, 9)}, y{40 * 16, 0}, scale{40, 0}, z{40 * 16, 0};
    Buffer sum{2, 0};
    void collect(GraphedCalls& calls, std::int64_t rows = 40) const {
        const KernelSet& kernels = *shim_device().kernels;
        calls.add(SetZero{sum.data(), sizeof(double)});
        calls.add(kernels.rms_norm_forward, RmsNormForward{x.data(), w.data(), y.data(), scale.data(), rows, 16, 1e-6, NumberFormat::f32},
                  "rms_norm_forward");
        calls.add(kernels.gemm, GemmCall{y.data(), w.data(), z.data(), rows, 16, 16, 16, 16, 16, false, true, 1, 0, NumberFormat::f32, NumberFormat::f32},
                  "gemm");
        calls.add(kernels.residual_add, ResidualAdd{x.data(), z.data(), z.data(), rows * 16, NumberFormat::f32}, "residual_add");
        calls.add(kernels.gradient_norm, GradientNorm{z.data(), reinterpret_cast<double*>(sum.data()), rows * 16, NumberFormat::f32}, "gradient_norm");
    }
    void run(GraphedCalls& calls, std::int64_t rows = 40) const {
        calls.begin("work");
        collect(calls, rows);
        calls.end(nullptr);
    }
    double norm() const {
        double out = 0;
        std::memcpy(&out, sum.data(), sizeof out);
        return out;
    }
};

TEST_F(CudaBackend, AReplayGivesTheBytesOfTheKernelsOneByOne) {
    CachingAllocator memory(shim_device());
    GraphedCalls calls(memory);
    ASSERT_TRUE(calls.on());
    const Work work;
    work.run(calls);
    const std::vector<float> eager = work.z.values();
    const double norm = work.norm();
    EXPECT_GT(norm, 0);
    EXPECT_EQ(calls.counts(), (GraphedCalls::Counts{1, 0, 0}));
    for (int i = 1; i <= 3; ++i) {
        std::fill_n(work.z.data(), 40 * 16, -1.0f);
        work.run(calls);
        EXPECT_EQ(work.z.values(), eager) << i;
        EXPECT_EQ(work.norm(), norm) << i;
        EXPECT_EQ(calls.counts(), (GraphedCalls::Counts{1, 1, std::uint64_t(i - 1)}));
    }
    // New numbers at the same place: a graph reads what is there now.
    const std::vector<float> other = drawn(40 * 16, 10);
    std::copy(other.begin(), other.end(), work.x.data());
    work.run(calls);
    EXPECT_EQ(calls.counts().replayed, 3u);
    const std::vector<float> replayed = work.z.values();
    EXPECT_NE(replayed, eager);
    setenv("MOEPLAN_CUDA_GRAPHS", "0", 1);
    GraphedCalls none(memory);
    EXPECT_FALSE(none.on());
    none.begin("work");
    EXPECT_FALSE(none.collecting());
    const Work again;
    std::copy(other.begin(), other.end(), again.x.data());
    unsetenv("MOEPLAN_CUDA_GRAPHS");
    GraphedCalls fresh(memory);
    again.run(fresh);                                         // one by one
    EXPECT_EQ(again.z.values(), replayed);
}

TEST_F(CudaBackend, ANewShapeOrPointerIsAnotherGraph) {
    CachingAllocator memory(shim_device());
    GraphedCalls calls(memory);
    const Work work, elsewhere;
    for (int i = 0; i < 3; ++i) work.run(calls);
    EXPECT_EQ(calls.counts(), (GraphedCalls::Counts{1, 1, 1}));
    std::fill_n(work.z.data(), 40 * 16, -1.0f);
    work.run(calls, 24);                                      // fewer rows: the others are not touched
    EXPECT_EQ(calls.counts(), (GraphedCalls::Counts{2, 1, 1}));
    EXPECT_NE(work.z.values()[23 * 16], -1.0f);
    EXPECT_EQ(work.z.values()[24 * 16], -1.0f);
    work.run(calls, 24);
    EXPECT_EQ(calls.counts(), (GraphedCalls::Counts{2, 2, 1}));
    elsewhere.run(calls);
    EXPECT_EQ(calls.counts(), (GraphedCalls::Counts{3, 2, 1}));
    work.run(calls);                                          // the first list is still known
    EXPECT_EQ(calls.counts(), (GraphedCalls::Counts{3, 2, 2}));
    EXPECT_EQ(work.z.values(), elsewhere.z.values());
}

TEST_F(CudaBackend, AStretchThatIsNewEveryTimeIsGivenUp) {
    CachingAllocator memory(shim_device());
    GraphedCalls calls(memory);
    const Work work;
    int collected = 0;
    for (std::int64_t rows = 1; rows <= 40; ++rows) {
        calls.begin("work");
        if (!calls.collecting()) break;
        ++collected;
        work.collect(calls, rows);
        calls.end(nullptr);
    }
    EXPECT_EQ(collected, 33);                                 // kMissesAtMost + 1
    EXPECT_EQ(calls.counts(), (GraphedCalls::Counts{33, 0, 0}));
}

TEST_F(CudaBackend, WhatCannotBeRecordedRunsOneByOne) {
    CachingAllocator memory(shim_device());
    GraphedCalls calls(memory);
    const Work work;
    work.run(calls);
    const std::vector<float> eager = work.z.values();
    shim::graphs_fail = true;
    std::fill_n(work.z.data(), 40 * 16, -1.0f);
    work.run(calls);
    EXPECT_EQ(work.z.values(), eager);
    EXPECT_EQ(calls.counts(), (GraphedCalls::Counts{2, 0, 0}));
    calls.begin("work");
    EXPECT_FALSE(calls.collecting());                         // and is not tried again
}

TEST_F(CudaBackend, SomethingThatWaitsRunsWhatWasCollectedFirst) {
    CachingAllocator memory(shim_device());
    GraphedCalls calls(memory);
    const Work work;
    calls.begin("work");
    work.collect(calls);
    EXPECT_EQ(work.norm(), 0);                                // nothing has run yet
    calls.give_up(nullptr);
    EXPECT_GT(work.norm(), 0);
    EXPECT_FALSE(calls.collecting());
    calls.end(nullptr);                                       // nothing is left
    EXPECT_EQ(calls.counts(), (GraphedCalls::Counts{1, 0, 0}));
}

TEST_F(CudaBackend, ScratchMemoryThatAGraphKnowsStaysWhereItIs) {
    CachingAllocator memory(shim_device());
    GraphedCalls calls(memory);
    const Work work;
    for (int i = 0; i < 2; ++i) work.run(calls);
    const double norm = work.norm();
    // A kernel that needs more scratch memory than any so far; then the graph, which still names the old one.
    const std::int64_t many = 300000;
    const Buffer large(std::size_t(many), 1), sum(2, 0);
    const GradientNorm call{large.data(), reinterpret_cast<double*>(sum.data()), many, NumberFormat::f32};
    ASSERT_EQ(shim_device().kernels->gradient_norm(&call, nullptr).code, kOk);
    work.run(calls);
    EXPECT_EQ(work.norm(), norm);
    EXPECT_EQ(calls.counts().replayed, 1u);
}

}  // namespace
}  // namespace moeplan::test
