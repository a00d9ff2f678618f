#include "kernels/machine_pace.hpp"

#include <algorithm>
#include <array>
#include <chrono>

namespace moeplan {
namespace {

// Far more than a core's own caches, walked over in turn: memory and what ranks share of it are at
// work as they are in a step.
constexpr std::size_t kArena = std::size_t{32} << 20, kCopied = std::size_t{256} << 10;
constexpr int kPieces = 9;  // odd, so that the median is one of them

KernelProblem product_of_256() {
    KernelProblem problem;
    problem.m = problem.n = problem.k = 256;
    return problem;
}

}  // namespace

MachinePace::MachinePace(const Backend& backend, const Communicator& ranks, Seed seed)
    : backend_(backend), ranks_(ranks), product_(backend, "gemm", product_of_256(), seed) {
    for (auto* arena : {&from_, &to_}) {
        void* memory = nullptr;
        check(backend.allocate(kArena, &memory), "allocate");
        *arena = {static_cast<char*>(memory), [&backend](char* at) { backend.release(at); }};
        check(backend.set_zero(memory, kArena, nullptr), "set_zero");
    }
    for (int warm_up = 0; warm_up < kPieces; ++warm_up) piece();
}

void MachinePace::piece() {
    check(product_.run(nullptr), "gemm");
    check(backend_.copy(to_.get() + at_, from_.get() + at_, kCopied, nullptr), "copy");
    at_ = (at_ + kCopied) % kArena;
}

Seconds MachinePace::now() {
    if (ranks_.size() > 1) ranks_.barrier();
    std::array<double, kPieces> seconds{};
    for (double& one : seconds) {
        const auto begin = std::chrono::steady_clock::now();
        piece();
        one = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    }
    std::nth_element(seconds.begin(), seconds.begin() + kPieces / 2, seconds.end());
    const double median = seconds[kPieces / 2];
    return {ranks_.size() == 1 ? median : ranks_.all_reduce_sum(median) / ranks_.size()};
}

}  // namespace moeplan
