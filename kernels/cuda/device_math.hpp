#pragma once
/// What kernels share: conversions, 16-byte packs, reductions over a warp and a block in a fixed order.

#include "kernels/cuda/launch.hpp"

namespace moeplan::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

__device__ __forceinline__ float to_float(float v) { return v; }
__device__ __forceinline__ float to_float(__nv_bfloat16 v) { return __bfloat162float(v); }
template <typename T>
__device__ __forceinline__ T from_float(float v);
template <>
__device__ __forceinline__ float from_float<float>(float v) { return v; }
template <>
__device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float v) { return __float2bfloat16(v); }

/// N values that move in one access: 16 bytes where rows allow it, else one value.
template <typename T, int N>
struct alignas(sizeof(T) * N) Pack { T value[N]; };
template <typename T>
inline constexpr int kWide = 16 / sizeof(T);

template <int N, typename T>
__device__ __forceinline__ Pack<T, N> load_pack(const T* p) { return *reinterpret_cast<const Pack<T, N>*>(p); }
template <int N, typename T>
__device__ __forceinline__ void store_pack(T* p, const Pack<T, N>& v) { *reinterpret_cast<Pack<T, N>*>(p) = v; }

__device__ __forceinline__ float warp_sum(float v) {
    for (int offset = kWarp / 2; offset > 0; offset /= 2) v += __shfl_xor_sync(kAllLanes, v, offset);
    return v;
}
__device__ __forceinline__ float warp_max(float v) {
    for (int offset = kWarp / 2; offset > 0; offset /= 2) v = fmaxf(v, __shfl_xor_sync(kAllLanes, v, offset));
    return v;
}
/// Sum over the block, the same on every thread. @param per_warp  shared, 32 values that nothing else uses up to the next barrier
/// after this call's: a kernel gives each of its reductions values of its own
__device__ __forceinline__ float block_sum(float v, float* per_warp) {
    v = warp_sum(v);
    const int warps = static_cast<int>(blockDim.x) / kWarp;
    if (warps == 1) return v;
    if (threadIdx.x % kWarp == 0) per_warp[threadIdx.x / kWarp] = v;
    __syncthreads();
    float total = 0;
    for (int w = 0; w < warps; ++w) total += per_warp[w];
    return total;
}
__device__ __forceinline__ float block_max(float v, float* per_warp) {
    v = warp_max(v);
    const int warps = static_cast<int>(blockDim.x) / kWarp;
    if (warps == 1) return v;
    if (threadIdx.x % kWarp == 0) per_warp[threadIdx.x / kWarp] = v;
    __syncthreads();
    float most = per_warp[0];
    for (int w = 1; w < warps; ++w) most = fmaxf(most, per_warp[w]);
    return most;
}

/// Threads of a block that owns one row of `packs` packs: a power of two of 32 … 256.
inline int threads_for_row(std::int64_t packs) {
    int threads = kWarp;
    while (threads < packs && threads < 256) threads *= 2;
    return threads;
}

/// f(T*, pack width): 16-byte packs where the width and all pointers allow it.
template <typename F>
Status with_packs(const char* kernel, NumberFormat format, std::int64_t width, bool aligned, F f) {
    return with_format(kernel, format, [&](auto* type) -> Status {
        using T = std::remove_pointer_t<decltype(type)>;
        if (aligned && width % kWide<T> == 0) return f(type, std::integral_constant<int, kWide<T>>{});
        return f(type, std::integral_constant<int, 1>{});
    });
}

}  // namespace moeplan::cuda
