#pragma once
/// Kernels with seeded mistakes; `correct` runs the same kernel without them.

#include <cstddef>
#include <cstdint>

#include "kernels/backend.hpp"

namespace moeplan::test {

Status histogram(bool correct, const std::int32_t* values, std::int32_t* counts, int count, int bins);   ///< a missing __syncthreads
Status warp_update(bool correct, const std::int32_t* values, std::int32_t* ranks, int rounds);           ///< a missing __syncwarp
Status add_blocks(bool correct, float* sum, int blocks);                                                 ///< += across blocks
Status divergent_barrier(std::int32_t* out);
Status barrier_after_exit(std::int32_t* out);
Status shuffle_outside_mask(std::int32_t* out);
Status shared_overrun(std::int32_t* out, int past);
Status unwritten_shared(float* out);
Status launch_of(unsigned blocks, unsigned threads, std::size_t shared_bytes);

}  // namespace moeplan::test
