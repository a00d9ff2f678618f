// The modules that are opened at run time: what they say where there is no GPU, and one rank's exchange with itself where there is.

#include <gtest/gtest.h>

#include <numeric>

#include "core/errors.hpp"
#include "kernels/backend.hpp"
#include "kernels/nccl/nccl_communicator.hpp"

namespace moeplan {
namespace {

TEST(CudaModule, WithoutAGpuItSaysWhatIsMissingAndWhatToDo) {
    const std::string why = why_missing(Device::cuda);
    if (why.empty()) GTEST_SKIP() << "there is a GPU";
    EXPECT_NE(why.find("--device cpu"), std::string::npos) << why;
    EXPECT_TRUE(why.find("NVIDIA") != std::string::npos || why.find("no CUDA module") != std::string::npos) << why;
    EXPECT_THROW(backend_for(Device::cuda), EnvironmentError);
}

TEST(NcclModule, WithoutAGpuRanksStayWithTheHosts) {
    if (why_missing(Device::cuda).empty()) GTEST_SKIP() << "there is a GPU";
    std::string why;
    const Communicator alone;
    EXPECT_FALSE(nccl_communicator(alone, 0, &why));
    EXPECT_FALSE(why.empty());
}

TEST(NcclModule, OneRankExchangesWithItself) {
    const std::string missing = why_missing(Device::cuda);
    if (!missing.empty()) GTEST_SKIP() << missing;
    const Backend& gpu = backend_for(Device::cuda);
    std::string why;
    const Communicator alone;
    const auto ranks = nccl_communicator(alone, gpu.ordinal, &why);
    if (!ranks) GTEST_SKIP() << why;
    std::vector<float> host(1000);
    std::iota(host.begin(), host.end(), 0.0f);
    const std::int64_t bytes = static_cast<std::int64_t>(host.size() * sizeof(float));
    void *from = nullptr, *to = nullptr;
    check(gpu.allocate(bytes, &from), "allocate");
    check(gpu.allocate(bytes, &to), "allocate");
    check(gpu.copy(from, host.data(), bytes, nullptr), "copy");
    ranks->all_to_all_v(from, std::vector<std::int64_t>{bytes}, to, std::vector<std::int64_t>{bytes});
    ranks->all_reduce(to, 1000, NumberFormat::f32);
    std::vector<float> back(host.size());
    check(gpu.copy(back.data(), to, bytes, nullptr), "copy");
    check(gpu.synchronise(nullptr), "synchronise");
    EXPECT_EQ(back, host);
    // Host buffers go over the hosts.
    std::int64_t count = 7, received = 0;
    ranks->all_to_all_v(&count, std::vector<std::int64_t>{8}, &received, std::vector<std::int64_t>{8});
    EXPECT_EQ(received, 7);
    const Communicator part = ranks->split(0, 0);
    part.all_reduce(to, 1000, NumberFormat::f32);
    check(gpu.synchronise(nullptr), "synchronise");
    check(gpu.release(from), "release");
    check(gpu.release(to), "release");
}

}  // namespace
}  // namespace moeplan
