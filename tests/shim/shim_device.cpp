// The device under test is the CUDA module compiled for the CPU.

#include <cstdio>

#include "tests/cuda/two_sides.hpp"
#include "tests/shim/scheduler.hpp"

extern "C" moeplan::Status moeplan_backend(std::uint32_t abi, int ordinal, moeplan::Backend* out);

namespace moeplan::test {
namespace {

/// For barriers_test.cpp: a barrier that no law reaches would seem to be needless.
class SayWhatWasLeftOut : public ::testing::Environment {
    void TearDown() override {
        if (const auto times = shim::times_left_out()) std::printf("left out %llu times\n", static_cast<unsigned long long>(*times));
    }
};
[[maybe_unused]] const auto* const say = ::testing::AddGlobalTestEnvironment(new SayWhatWasLeftOut);

}  // namespace

const Backend* device_under_test(std::string* why) {
    static Backend backend;
    static const Status status = moeplan_backend(kBackendAbi, 0, &backend);
    *why = status.message;
    return status.code == kOk ? &backend : nullptr;
}

void under_every_schedule(const std::function<void()>& body) {
    using shim::Order;
#if defined(SHIM_SANITIZED)
    const shim::Schedule schedules[] = {{Order::reverse, 1, 2}, {Order::random, 7, 2}};
#else
    const shim::Schedule schedules[] = {{Order::forward, 1, 1}, {Order::reverse, 1, 2}, {Order::random, 7, 2}};
#endif
    for (const auto& schedule : schedules) {
        shim::set_schedule(schedule);
        body();
        if (::testing::Test::HasFailure()) {
            ADD_FAILURE() << "under schedule " << static_cast<int>(schedule.order) << " with " << schedule.workers << " workers";
            break;
        }
    }
    shim::set_schedule({});
}

bool small_shapes_only() {
#if defined(SHIM_SANITIZED)
    return true;
#else
    return false;
#endif
}

}  // namespace moeplan::test
