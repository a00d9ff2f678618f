#pragma once
/// Kernels with seeded mistakes; `correct` runs the same kernel without them.

#include <cstddef>
#include <cstdint>

#include <cuda_runtime.h>

#include "kernels/backend.hpp"

namespace moeplan::test {

Status histogram(bool correct, const std::int32_t* values, std::int32_t* counts, int count, int bins);   ///< a missing __syncthreads
Status warp_update(bool correct, const std::int32_t* values, std::int32_t* ranks, int rounds);           ///< a missing __syncwarp
Status add_blocks(bool correct, float* sum, int blocks);                                                 ///< += across blocks
Status divergent_barrier(std::int32_t* out);
Status barrier_after_exit(std::int32_t* out);
Status shuffle_outside_mask(std::int32_t* out);
Status shared_overrun(std::int32_t* out, int past);
Status unwritten_static(float* out, unsigned blocks);    ///< [blocks, 32]
Status unwritten_dynamic(float* out, unsigned blocks);   ///< the same in dynamic shared memory
Status turns(std::int32_t* turn);                        ///< [64] the order in which threads come
Status meet(std::int32_t* arrived, std::int32_t* met, int milliseconds);     ///< [2] do two blocks see each other?
Status launch_of(unsigned blocks, unsigned threads, std::size_t shared_bytes);
Status launch_of(dim3 grid, dim3 block);
Status launch_of_more_shared(std::size_t bytes);         ///< asked for first
Status static_beside_dynamic(float* out, std::size_t dynamic_bytes);         ///< 512 static bytes

}  // namespace moeplan::test
