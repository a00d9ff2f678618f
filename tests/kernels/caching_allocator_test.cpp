/// Device memory that is kept, on a device of a few kilobytes that counts what it is asked for.

#include "kernels/caching_allocator.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/errors.hpp"

namespace moeplan {
namespace {

/// One at a time: the table of a backend has no place for an object.
struct SmallDevice {
    std::size_t size = 4096, used = 0;
    std::map<void*, std::size_t> blocks;
    std::vector<std::pair<Stream_*, Stream_*>> waits;  ///< later, earlier
};
SmallDevice device;

Status allocate(std::size_t bytes, void** out) {
    *out = nullptr;
    if (device.used + bytes > device.size)
        return status_of(kOutOfMemory, std::to_string(device.size - device.used) + " bytes are free, " +
                                           std::to_string(bytes) + " more were needed");
    *out = std::malloc(bytes);
    device.blocks[*out] = bytes;
    device.used += bytes;
    return {};
}
Status release(void* block) {
    device.used -= device.blocks.at(block);
    device.blocks.erase(block);
    std::free(block);
    return {};
}
Status follow(Stream_* later, Stream_* earlier) {
    device.waits.emplace_back(later, earlier);
    return {};
}

class CachedMemory : public ::testing::Test {
  protected:
    void SetUp() override { device = {}; }
    void TearDown() override {
        EXPECT_TRUE(device.blocks.empty()) << "blocks that nobody gave back to the device";
    }
    static Stream_* stream(std::uintptr_t number) { return reinterpret_cast<Stream_*>(number); }
    const StreamSet streams = [] {
        StreamSet set{};
        set.follow = follow;
        return set;
    }();
    const Backend backend = [this] {
        Backend b;
        b.allocate = allocate;
        b.release = release;
        b.streams = &streams;
        return b;
    }();
};

TEST_F(CachedMemory, ABlockOfTheSameSizeIsTakenAgainAndTheDeviceNotAsked) {
    CachingAllocator memory(backend);
    void* const first = memory.take(1000);
    memory.give(first, 1000);
    // 1000 and 1001 bytes are one size: both round up to 1024, in steps of 64.
    EXPECT_EQ(memory.take(1001), first);
    EXPECT_EQ(memory.device_calls(), 1u);
    memory.give(first, 1001);
    void* const other = memory.take(100);
    EXPECT_NE(other, first);
    EXPECT_EQ(memory.device_calls(), 2u);
    memory.give(other, 100);
}

TEST_F(CachedMemory, AnIdleBlockOfUpToTwiceTheSizeServesWhereThereAreNoGraphs) {
    const GraphSet graphs{};
    Backend with_graphs = backend;
    with_graphs.graphs = &graphs;
    CachingAllocator plain(backend), graphed(with_graphs);
    for (CachingAllocator* memory : {&plain, &graphed}) {
        void* const large = memory->take(1024);
        memory->give(large, 1024);
        void* const half = memory->take(512);
        EXPECT_EQ(half == large, memory == &plain);
        EXPECT_EQ(memory->cached(), memory == &plain ? 0u : 1024u);
        void* const less = memory->take(256);
        memory->give(half, 512);
        EXPECT_NE(less, large);
        memory->give(less, 256);
        EXPECT_EQ(memory->cached(), memory == &plain ? 1024u + 256 : 1024u + 512 + 256);
        memory->free_cached();
    }
}

TEST_F(CachedMemory, CountsWhatIsInUseTheMostOfItAndWhatLiesIdle) {
    CachingAllocator memory(backend);
    void *const a = memory.take(512), *const b = memory.take(1024);
    EXPECT_EQ(memory.in_use(), 512u + 1024);
    EXPECT_EQ(memory.cached(), 0u);
    memory.give(a, 512);
    EXPECT_EQ(memory.in_use(), 1024u);
    EXPECT_EQ(memory.peak(), 512u + 1024);
    EXPECT_EQ(memory.cached(), 512u);
    memory.reset_peak();
    EXPECT_EQ(memory.peak(), 1024u);
    memory.give(b, 1024);
    EXPECT_EQ(memory.free_cached(), 512u + 1024);
    EXPECT_EQ(memory.cached(), 0u);
    EXPECT_EQ(device.used, 0u);
}

TEST_F(CachedMemory, AStreamTakesItsOwnBlocksFirstAndWaitsForThoseOfAnother) {
    CachingAllocator memory(backend);
    void *const of_one = memory.take(256, stream(1)), *const of_two = memory.take(256, stream(2));
    memory.give(of_one, 256, stream(1));
    memory.give(of_two, 256, stream(2));
    EXPECT_EQ(memory.take(256, stream(1)), of_one);
    EXPECT_TRUE(device.waits.empty());
    EXPECT_EQ(memory.take(256, stream(1)), of_two);
    EXPECT_EQ(device.waits, (std::vector<std::pair<Stream_*, Stream_*>>{{stream(1), stream(2)}}));
    memory.give(of_one, 256, stream(1));
    memory.give(of_two, 256, stream(1));
}

TEST_F(CachedMemory, WhereThereAreGraphsTheSameStepTakesTheSamePlaces) {
    const GraphSet graphs{};
    Backend with_graphs = backend;
    with_graphs.graphs = &graphs;
    for (const Backend* device : {&backend, &std::as_const(with_graphs)}) {
        CachingAllocator memory(*device);
        // A step whose first tensor outlives its second: given back last, it would be taken first.
        const auto step = [&] {
            void *const a = memory.take(256), *const b = memory.take(256);
            memory.give(b, 256);
            void* const c = memory.take(256);
            memory.give(a, 256);
            memory.give(c, 256);
            return std::vector<void*>{a, b, c};
        };
        const std::vector<void*> first = step(), second = step(), third = step();
        if (device->graphs)
            EXPECT_EQ(third, second);
        else
            EXPECT_NE(third, second);
    }
}

TEST_F(CachedMemory, AFullDeviceGetsIdleBlocksBackBeforeItIsCalledFull) {
    CachingAllocator memory(backend);
    void* const idle = memory.take(2048);
    memory.give(idle, 2048);
    void* const large = memory.take(3072);  // 2048 + 3072 > 4096
    EXPECT_EQ(memory.device_calls(), 3u);   // once for each, and once more after the idle one went back
    EXPECT_EQ(device.used, 3072u);
    memory.give(large, 3072);
}

TEST_F(CachedMemory, AFullDeviceSaysHowMuchWasNeededForWhatAndHowMuchWasFree) {
    CachingAllocator memory(backend);
    void* const kept = memory.take(3072);
    void* const idle = memory.take(512);
    memory.give(idle, 512);
    const std::string name = "layers.3.moe.experts.up";
    try {
        const CachingAllocator::Purpose purpose(memory, "the gradient", name);
        memory.take(2048);
        ADD_FAILURE() << "2048 of 1024 bytes were given";
    } catch (const EnvironmentError& error) {
        const std::string text = error.what();
        for (const char* part : {"1024 bytes are free", "2048 more were needed",
                                 "for the gradient of layers.3.moe.experts.up", "in use take 3.00 KiB",
                                 "512 B that lay idle were given back"})
            EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
    }
    EXPECT_EQ(memory.in_use(), 3072u);  // what failed is not counted
    EXPECT_EQ(memory.purpose(), "a tensor");
    memory.give(kept, 3072);
}

TEST_F(CachedMemory, BlocksThatCallsStillNameAreTakenAgainButDoNotGoBack) {
    CachingAllocator memory(backend);
    void* const before = memory.take(512);
    memory.give(before, 512);
    memory.hold();
    void* const named = memory.take(1024);
    memory.give(named, 1024);
    EXPECT_EQ(memory.free_cached(), 512u);  // given back before the hold
    EXPECT_EQ(memory.take(1024), named);
    memory.give(named, 1024);
    memory.let_go();
    EXPECT_EQ(memory.free_cached(), 1024u);
}

TEST_F(CachedMemory, ACallThatLacksMemoryOfItsOwnIsMadeOnceMoreWhenIdleBlocksWentBack) {
    CachingAllocator memory(backend);
    void* const idle = memory.take(2048);
    memory.give(idle, 2048);
    int calls = 0;
    const auto needs = [&](std::size_t bytes) {
        return memory.with_memory([&] {
            ++calls;
            void* scratch = nullptr;
            const Status status = allocate(bytes, &scratch);
            if (scratch) release(scratch);
            return status;
        });
    };
    EXPECT_EQ(needs(3072).code, kOk);
    EXPECT_EQ(calls, 2);
    EXPECT_EQ(needs(8192).code, kOutOfMemory);  // nothing lies idle: not tried again
    EXPECT_EQ(calls, 3);
}

}  // namespace
}  // namespace moeplan
