/// Host and device as two queues: the matrix of any run of kernels against a walk kernel by kernel.

#include "simulator/two_queues.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "core/seed.hpp"

namespace moeplan {
namespace {

struct Kernel {
    double launch = 0, time = 0;
};

/// The oracle: the host launches one after another, the device runs what was launched.
std::pair<double, double> walked(const std::vector<Kernel>& kernels, double host, double device) {
    for (const Kernel& kernel : kernels) {
        host += kernel.launch;
        device = std::max(device, host) + kernel.time;
    }
    return {host, device};
}

TwoQueues matrix(const std::vector<Kernel>& kernels, std::size_t first, std::size_t last) {
    TwoQueues all;
    for (std::size_t i = first; i < last; ++i)
        all = then(all, one_kernel(kernels[i].launch, kernels[i].time));
    return all;
}

/// Whole numbers below 2^53 add without rounding, so that answers are equal and not only near.
std::vector<Kernel> random_kernels(std::uint64_t seed) {
    const std::size_t count = draw(Seed{seed}, "count", 0) % 60;
    std::vector<Kernel> kernels;
    for (std::size_t i = 0; i < count; ++i)
        kernels.push_back({static_cast<double>(draw(Seed{seed}, "launch", i) % 2000),
                           static_cast<double>(draw(Seed{seed}, "time", i) % 3000)});
    return kernels;
}

TEST(TwoQueues, OfRandomKernelsEndExactlyWhereAWalkOfThemEnds) {
    for (std::uint64_t seed = 0; seed < 500; ++seed) {
        const auto kernels = random_kernels(seed);
        const TwoQueues all = matrix(kernels, 0, kernels.size());
        for (const auto& [host, device] :
             {std::pair{0.0, 0.0}, {5000.0, 0.0}, {0.0, 20000.0}, {700.0, 900.0}}) {
            const auto [h, d] = walked(kernels, host, device);
            EXPECT_EQ(host + all.host, h) << seed;
            EXPECT_EQ(std::max(device + all.device, host + all.mixed), d) << seed;
        }
    }
}

TEST(TwoQueues, MultiplyInAnyGrouping) {
    for (std::uint64_t seed = 0; seed < 200; ++seed) {
        const auto kernels = random_kernels(seed);
        const std::size_t n = kernels.size(), cut = n / 3;
        EXPECT_EQ(then(matrix(kernels, 0, cut), matrix(kernels, cut, n)), matrix(kernels, 0, n));
    }
}

TEST(TwoQueues, AreBoundByTheSlowerOfTheTwo) {
    // 10 launches of 20 us before kernels of 5 us: 200 us and the last kernel; the other way
    // round: one launch, then 10 · 20 us.
    std::vector<Kernel> host_bound(10, {20, 5}), device_bound(10, {5, 20});
    EXPECT_EQ(matrix(host_bound, 0, 10).mixed, 205);
    EXPECT_EQ(matrix(device_bound, 0, 10).mixed, 205);
    EXPECT_EQ(matrix(host_bound, 0, 10).device, 50);
    EXPECT_EQ(matrix(device_bound, 0, 10).host, 50);
}

}  // namespace
}  // namespace moeplan
