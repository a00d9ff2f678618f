// The shim itself: it must pass correct kernels and catch the mistakes that are made most.

#include "tests/shim/scheduler.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "tests/shim/seeded_bugs.hpp"

#if defined(SHIM_TSAN)
#include <sanitizer/tsan_interface.h>
#include <unistd.h>
namespace {
int reports = 0, unexpected = 0;
bool seeded = false;
/// A race that no test asked for fails the test it was found in.
class Races : public ::testing::EmptyTestEventListener {
    void OnTestEnd(const ::testing::TestInfo&) override {
        alarm(0);
        EXPECT_EQ(std::exchange(unexpected, 0), 0) << "ThreadSanitizer's reports stand above";
    }
};
const bool watched = [] {
    ::testing::UnitTest::GetInstance()->listeners().Append(new Races);
    return true;
}();
}  // namespace
/// A report counts also where the address had one before (shared memory often lies at the same place).
extern "C" const char* __tsan_default_options() { return "suppress_equal_addresses=0:report_thread_leaks=0:exitcode=0"; }
/// Called by ThreadSanitizer before every report; a test that seeds a race counts instead of failing. Reports from two workers
/// at once have been seen to wait for each other for ever: an unexpected one ends the program soon.
extern "C" void __tsan_on_report(void*) {
    if (shim::times_left_out()) {                              // barriers_test.cpp waits for this
        std::fputs("a race was reported\n", stderr);
        _exit(66);
    }
    ++reports;
    if (!seeded) ++unexpected, alarm(10);
}
#endif

namespace moeplan::test {
namespace {

/// Reports of races while the body ran (0 in builds without ThreadSanitizer).
template <typename F>
int races_of(F body) {
#if defined(SHIM_TSAN)
    reports = 0;
    seeded = true;
    body();
    seeded = false;
    return reports;
#else
    body();
    return 0;
#endif
}

class Shim : public ::testing::Test {
  protected:
    void TearDown() override {
        shim::set_schedule({});
        shim::clear_failure();
    }
    static constexpr int kCount = 512, kBins = 8;
    std::vector<std::int32_t> values = [] {
        std::vector<std::int32_t> v(kCount);
        for (int i = 0; i < kCount; ++i) v[i] = i * 7 % kBins;
        return v;
    }();
};

const shim::Schedule kSchedules[] = {{shim::Order::forward, 1, 1}, {shim::Order::reverse, 1, 2}, {shim::Order::random, 3, 2}, {shim::Order::random, 4, 2}};

TEST_F(Shim, CorrectKernelsPassUnderEverySchedule) {
    for (const auto& schedule : kSchedules) {
        shim::set_schedule(schedule);
        std::vector<std::int32_t> counts(kBins), ranks(kCount);
        float sum = 0;
        EXPECT_EQ(races_of([&] {
                      EXPECT_EQ(histogram(true, values.data(), counts.data(), kCount, kBins).code, kOk);
                      EXPECT_EQ(warp_update(true, values.data(), ranks.data(), kCount / 32).code, kOk);
                      EXPECT_EQ(add_blocks(true, &sum, 20).code, kOk);
                  }), 0);
        EXPECT_EQ(counts, std::vector<std::int32_t>(kBins, kCount / kBins));
        EXPECT_EQ(sum, 20.0f);
        std::vector<std::int32_t> seen(kBins);                 // a stable rank within equal values
        for (int i = 0; i < kCount; ++i) EXPECT_EQ(ranks[i], seen[values[i]]++);
    }
}

TEST_F(Shim, AMissingBlockBarrierIsCaught) {
    bool wrong = false;
    int races = 0;
    for (const auto& schedule : kSchedules) {
        shim::set_schedule(schedule);
        std::vector<std::int32_t> counts(kBins);
        races += races_of([&] { (void)histogram(false, values.data(), counts.data(), kCount, kBins); });
        wrong |= counts != std::vector<std::int32_t>(kBins, kCount / kBins);
    }
    EXPECT_TRUE(wrong);
#if defined(SHIM_TSAN)
    EXPECT_GT(races, 0);
#endif
}

TEST_F(Shim, AMissingWarpBarrierIsCaught) {
    bool wrong = false;
    int races = 0;
    for (const auto& schedule : kSchedules) {
        shim::set_schedule(schedule);
        std::vector<std::int32_t> ranks(kCount), seen(kBins);
        races += races_of([&] { (void)warp_update(false, values.data(), ranks.data(), kCount / 32); });
        for (int i = 0; i < kCount; ++i) wrong |= ranks[i] != seen[values[i]]++;
    }
    EXPECT_TRUE(wrong);
#if defined(SHIM_TSAN)
    EXPECT_GT(races, 0);
#endif
}

TEST_F(Shim, AddingAcrossBlocksWithoutAnAtomicIsCaught) {
#if defined(SHIM_TSAN)
    shim::set_schedule({shim::Order::forward, 1, 2});
    float sum = 0;
    EXPECT_GT(races_of([&] { (void)add_blocks(false, &sum, 20); }), 0);
#else
    GTEST_SKIP() << "seen by ThreadSanitizer alone: shim_tsan runs it";
#endif
}

TEST_F(Shim, ABarrierReachedAtTwoPlacesIsRefused) {
    std::vector<std::int32_t> out(64);
    const Status status = divergent_barrier(out.data());
    EXPECT_EQ(status.code, kFailed);
    EXPECT_NE(std::string(status.message).find("divergent barrier"), std::string::npos) << status.message;
}

TEST_F(Shim, ThreadsThatEndBeforeABarrierAreNamed) {
    std::vector<std::int32_t> out(64);
    const Status status = barrier_after_exit(out.data());
    EXPECT_EQ(status.code, kFailed);
    EXPECT_NE(std::string(status.message).find("threads 0…39 wait at the barrier seeded_bugs.cu"), std::string::npos) << status.message;
    EXPECT_NE(std::string(status.message).find("40…63 have ended"), std::string::npos) << status.message;
    // The next launch is not affected.
    EXPECT_EQ(launch_of(1, 32, 0).code, kOk);
}

TEST_F(Shim, AShuffleFromOutsideItsMaskIsRefused) {
    std::vector<std::int32_t> out(32);
    const Status status = shuffle_outside_mask(out.data());
    EXPECT_EQ(status.code, kFailed);
    EXPECT_NE(std::string(status.message).find("reads lane 20, which is outside its mask"), std::string::npos) << status.message;
}

TEST_F(Shim, LaunchesThatAGpuRefusesAreRefused) {
    EXPECT_EQ(launch_of(1, 1024, 0).code, kOk);
    EXPECT_EQ(launch_of(1, 1025, 0).code, kFailed);
    EXPECT_EQ(launch_of(0, 32, 0).code, kFailed);
    EXPECT_EQ(launch_of(1, 32, 48 * 1024).code, kOk);
    EXPECT_EQ(launch_of(1, 32, 48 * 1024 + 1).code, kFailed);  // more has to be asked for
}

TEST_F(Shim, NoMoreThanABlocksSharedMemoryCanBeAskedFor) {
    EXPECT_EQ(launch_of_more_shared(227 * 1024).code, kOk);
    EXPECT_EQ(launch_of_more_shared(227 * 1024 + 1).code, kFailed);
    // Static and dynamic together: 512 bytes of one, the rest of the other.
    std::vector<float> out(2);
    EXPECT_EQ(static_beside_dynamic(out.data(), 227 * 1024 - 512).code, kOk);
    const Status status = static_beside_dynamic(out.data(), 227 * 1024 - 511);
    EXPECT_EQ(status.code, kFailed);
    EXPECT_NE(std::string(status.message).find("more shared memory than a block may have"), std::string::npos) << status.message;
}

TEST_F(Shim, GridsThatAGpuRefusesAreRefused) {
    EXPECT_EQ(launch_of(dim3(1, 65535), dim3(1)).code, kOk);
    EXPECT_EQ(launch_of(dim3(1, 65536), dim3(1)).code, kFailed);
    EXPECT_EQ(launch_of(dim3(1, 1, 65536), dim3(1)).code, kFailed);
    EXPECT_EQ(launch_of(dim3(1), dim3(1, 1, 64)).code, kOk);
    EXPECT_EQ(launch_of(dim3(1), dim3(1, 1, 65)).code, kFailed);
}

TEST_F(Shim, SharedMemoryStartsAsNotANumberInEveryBlock) {
    // 3 blocks on one worker, which has one piece of memory for all: each writes 31 of 32 values and hands all of them out.
    for (const auto kernel : {unwritten_static, unwritten_dynamic}) {
        std::vector<float> out(96);
        EXPECT_EQ(kernel(out.data(), 3).code, kOk);
        for (int i = 0; i < 96; ++i) EXPECT_TRUE(i % 32 == 31 ? std::isnan(out[i]) : out[i] == 1.0f) << i;
    }
}

TEST_F(Shim, SchedulesRunThreadsInTheirOrder) {
    const auto order_under = [](shim::Schedule schedule) {
        shim::set_schedule(schedule);
        std::vector<std::int32_t> turn(64);                    // turn[t]: how many came before thread t
        EXPECT_EQ(turns(turn.data()).code, kOk);
        return turn;
    };
    std::vector<std::int32_t> ascending(64), descending(64);
    for (int i = 0; i < 64; ++i) ascending[i] = i, descending[i] = 63 - i;
    EXPECT_EQ(order_under({shim::Order::forward, 1, 1}), ascending);
    EXPECT_EQ(order_under({shim::Order::reverse, 1, 1}), descending);
    const auto third = order_under({shim::Order::random, 3, 1}), fourth = order_under({shim::Order::random, 4, 1});
    EXPECT_NE(third, ascending);
    EXPECT_NE(third, fourth);
    EXPECT_EQ(third, order_under({shim::Order::random, 3, 1}));
}

TEST_F(Shim, TwoWorkersRunTwoBlocksAtOnce) {
    // Each of two blocks waits, for a second at most, until the other is there as well.
    for (const int workers : {1, 2}) {
        shim::set_schedule({shim::Order::forward, 1, workers});
        std::vector<std::int32_t> arrived(2), met(2);
        EXPECT_EQ(meet(arrived.data(), met.data(), workers == 2 ? 1000 : 5).code, kOk);
        EXPECT_EQ(met[0] + met[1], workers == 2 ? 2 : 1);      // with one worker the second block finds the first gone
    }
}

#if defined(__SANITIZE_ADDRESS__)
TEST(ShimDeathTest, AnOverrunOfDynamicSharedMemoryIsSeen) {
    std::vector<std::int32_t> out(32);
    EXPECT_EQ(shared_overrun(out.data(), 0).code, kOk);
    EXPECT_DEATH((void)shared_overrun(out.data(), 1), "heap-buffer-overflow");
}
#endif

}  // namespace
}  // namespace moeplan::test
