#include "core/memory_steps.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstddef>
#include <vector>

namespace moeplan {
namespace {

/// Pages that the system had to give while 80 MB were made in pieces of 16 kB.
long pages_for_a_step() {
    rusage before{}, after{};
    getrusage(RUSAGE_SELF, &before);
    std::vector<std::vector<char>> pieces;
    for (int i = 0; i < 5'000; ++i) pieces.emplace_back(std::size_t{16'000}, 'x');
    getrusage(RUSAGE_SELF, &after);
    return after.ru_minflt - before.ru_minflt;
}

TEST(MemorySteps, WhatAStepGaveBackIsThereForTheNext) {
#if !defined(__GLIBC__) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "another allocator";
#endif
    take_memory_in_large_steps();
    pages_for_a_step();
    // 80 MB are 19,500 pages of 4 kB; a few are taken by what else happens
    EXPECT_LT(pages_for_a_step(), 500);
}

}  // namespace
}  // namespace moeplan
