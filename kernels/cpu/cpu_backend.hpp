#pragma once
/// The CPU as a device: the definition of every kernel. One thread a rank.

#include "kernels/backend.hpp"

namespace moeplan {

const Backend& cpu_backend();

/// Bytes now and at most allocated through the CPU backend since the last reset: what a memory
/// model is compared with.
struct AllocatorUse {
    std::uint64_t now = 0, peak = 0;
};
AllocatorUse cpu_allocator_use();
void reset_cpu_allocator_peak();

}  // namespace moeplan
