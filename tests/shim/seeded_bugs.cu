// Kernels with the mistakes that are made most, and one without: the shim must tell them apart. shim_test.cpp runs them.

#include "tests/shim/seeded_bugs.hpp"

#include <chrono>
#include <thread>

#include "kernels/cuda/launch.hpp"

namespace moeplan::test {
namespace {

using cuda::cuda_failure;

/// Histogram in shared memory; kBarrier = false leaves out the barrier between counting and reading.
template <bool kBarrier>
__global__ void histogram_kernel(const std::int32_t* values, std::int32_t* counts, int count, int bins) {
    MOEPLAN_DYNAMIC_SHARED(std::int32_t, histogram);
    for (int i = threadIdx.x; i < bins; i += blockDim.x) histogram[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += blockDim.x) atomicAdd(&histogram[values[i]], 1);
    if (kBarrier) __syncthreads();
    for (int i = threadIdx.x; i < bins; i += blockDim.x) counts[i] = histogram[i];
}

/// One lane updates what all lanes have read; kBarrier = false leaves out the __syncwarp between.
template <bool kBarrier>
__global__ void warp_update_kernel(const std::int32_t* values, std::int32_t* ranks, int rounds) {
    MOEPLAN_SHARED(std::int32_t, next, 32);
    next[threadIdx.x] = 0;
    __syncwarp();
    for (int r = 0; r < rounds; ++r) {
        const int v = values[r * 32 + threadIdx.x];
        const unsigned same = __match_any_sync(0xffffffffu, v);
        ranks[r * 32 + threadIdx.x] = next[v] + __popc(same & ((1u << threadIdx.x) - 1));
        if (kBarrier) __syncwarp();
        if (static_cast<int>(threadIdx.x) == __ffs(static_cast<int>(same)) - 1) next[v] += __popc(same);
        if (kBarrier) __syncwarp();
    }
}

/// All blocks add to one value; kAtomic = false adds without an atomic.
template <bool kAtomic>
__global__ void add_blocks_kernel(float* sum) {
    if (threadIdx.x != 0) return;
    if (kAtomic)
        atomicAdd(sum, 1.0f);
    else
        *sum += 1.0f;
}

__global__ void divergent_barrier_kernel(std::int32_t* out) {
    if (threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
    out[threadIdx.x] = 1;
}
__global__ void barrier_after_exit_kernel(std::int32_t* out) {
    if (threadIdx.x >= 40) return;
    __syncthreads();
    out[threadIdx.x] = 1;
}
__global__ void shuffle_outside_mask_kernel(std::int32_t* out) {
    out[threadIdx.x] = threadIdx.x < 16 ? __shfl_sync(0x0000ffffu, static_cast<int>(threadIdx.x), 20) : 0;
}
__global__ void overrun_kernel(std::int32_t* out, int past) {
    MOEPLAN_DYNAMIC_SHARED(std::int32_t, shared);
    shared[threadIdx.x + past] = 1;
    __syncthreads();
    out[threadIdx.x] = shared[threadIdx.x];
}
__global__ void unwritten_static_kernel(float* out) {
    MOEPLAN_SHARED(float, shared, 32);
    const float before = shared[31];                          // of this block: no other's value
    __syncwarp();
    if (threadIdx.x < 31) shared[threadIdx.x] = 1;
    __syncwarp();
    out[blockIdx.x * 32 + threadIdx.x] = threadIdx.x < 31 ? shared[threadIdx.x] : before;
    __syncwarp();
    shared[threadIdx.x] = 2;                                  // for the next block to find, if it could
}
__global__ void unwritten_dynamic_kernel(float* out) {
    MOEPLAN_DYNAMIC_SHARED(float, shared);
    const float before = shared[31];
    __syncwarp();
    if (threadIdx.x < 31) shared[threadIdx.x] = 1;
    __syncwarp();
    out[blockIdx.x * 32 + threadIdx.x] = threadIdx.x < 31 ? shared[threadIdx.x] : before;
    __syncwarp();
    shared[threadIdx.x] = 2;
}
__global__ void turns_kernel(std::int32_t* turn, std::int32_t* next) { turn[threadIdx.x] = atomicAdd(next, 1); }
__global__ void meet_kernel(std::int32_t* arrived, std::int32_t* met, int milliseconds) {
    atomicExch(&arrived[blockIdx.x], 1);
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(milliseconds);
    while (!atomicOr(&arrived[1 - blockIdx.x], 0) && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    met[blockIdx.x] = atomicOr(&arrived[1 - blockIdx.x], 0);
}
__global__ void static_beside_dynamic_kernel(float* out) {
    MOEPLAN_SHARED(float, fixed, 128);
    MOEPLAN_DYNAMIC_SHARED(float, shared);
    fixed[0] = 1, shared[0] = 2;
    out[0] = fixed[0], out[1] = shared[0];
}
__global__ void do_nothing_kernel(int) {}
__global__ void do_nothing_in_more_kernel(int) {}

}  // namespace

Status histogram(bool correct, const std::int32_t* values, std::int32_t* counts, int count, int bins) {
    if (correct)
        MOEPLAN_LAUNCH((histogram_kernel<true>), dim3(1), dim3(128), sizeof(std::int32_t) * bins, nullptr, values, counts, count, bins);
    else
        MOEPLAN_LAUNCH((histogram_kernel<false>), dim3(1), dim3(128), sizeof(std::int32_t) * bins, nullptr, values, counts, count, bins);
    return {};
}
Status warp_update(bool correct, const std::int32_t* values, std::int32_t* ranks, int rounds) {
    if (correct)
        MOEPLAN_LAUNCH((warp_update_kernel<true>), dim3(1), dim3(32), 0, nullptr, values, ranks, rounds);
    else
        MOEPLAN_LAUNCH((warp_update_kernel<false>), dim3(1), dim3(32), 0, nullptr, values, ranks, rounds);
    return {};
}
Status add_blocks(bool correct, float* sum, int blocks) {
    if (correct)
        MOEPLAN_LAUNCH((add_blocks_kernel<true>), dim3(blocks), dim3(32), 0, nullptr, sum);
    else
        MOEPLAN_LAUNCH((add_blocks_kernel<false>), dim3(blocks), dim3(32), 0, nullptr, sum);
    return {};
}
Status divergent_barrier(std::int32_t* out) {
    MOEPLAN_LAUNCH(divergent_barrier_kernel, dim3(1), dim3(64), 0, nullptr, out);
    return {};
}
Status barrier_after_exit(std::int32_t* out) {
    MOEPLAN_LAUNCH(barrier_after_exit_kernel, dim3(1), dim3(64), 0, nullptr, out);
    return {};
}
Status shuffle_outside_mask(std::int32_t* out) {
    MOEPLAN_LAUNCH(shuffle_outside_mask_kernel, dim3(1), dim3(32), 0, nullptr, out);
    return {};
}
Status shared_overrun(std::int32_t* out, int past) {
    MOEPLAN_LAUNCH(overrun_kernel, dim3(1), dim3(32), 32 * sizeof(std::int32_t), nullptr, out, past);
    return {};
}
Status unwritten_static(float* out, unsigned blocks) {
    MOEPLAN_LAUNCH(unwritten_static_kernel, dim3(blocks), dim3(32), 0, nullptr, out);
    return {};
}
Status unwritten_dynamic(float* out, unsigned blocks) {
    MOEPLAN_LAUNCH(unwritten_dynamic_kernel, dim3(blocks), dim3(32), 32 * sizeof(float), nullptr, out);
    return {};
}
Status turns(std::int32_t* turn) {
    std::int32_t next = 0;
    MOEPLAN_LAUNCH(turns_kernel, dim3(1), dim3(64), 0, nullptr, turn, &next);
    return {};
}
Status meet(std::int32_t* arrived, std::int32_t* met, int milliseconds) {
    MOEPLAN_LAUNCH(meet_kernel, dim3(2), dim3(1), 0, nullptr, arrived, met, milliseconds);
    return {};
}
Status launch_of(dim3 grid, dim3 block) {
    MOEPLAN_LAUNCH(do_nothing_kernel, grid, block, 0, nullptr, 0);
    return {};
}
Status launch_of_more_shared(std::size_t bytes) {
    MOEPLAN_TRY(cuda::allow_shared(do_nothing_in_more_kernel, bytes));
    MOEPLAN_LAUNCH(do_nothing_in_more_kernel, dim3(1), dim3(32), bytes, nullptr, 0);
    return {};
}
Status static_beside_dynamic(float* out, std::size_t dynamic_bytes) {
    MOEPLAN_TRY(cuda::allow_shared(static_beside_dynamic_kernel, dynamic_bytes));
    MOEPLAN_LAUNCH(static_beside_dynamic_kernel, dim3(1), dim3(1), dynamic_bytes, nullptr, out);
    return {};
}
Status launch_of(unsigned blocks, unsigned threads, std::size_t shared_bytes) {
    MOEPLAN_LAUNCH(do_nothing_kernel, dim3(blocks), dim3(threads), shared_bytes, nullptr, 0);
    return {};
}

}  // namespace moeplan::test
