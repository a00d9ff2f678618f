#pragma once
/// The part of CUDA C++ and of the CUDA runtime that our kernels use, for a C++ compiler. Found in place of
/// <cuda_runtime.h> and <cuda_bf16.h> when the kernels are compiled for the CPU; see docs/cuda-shim.md.

#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

#include "tests/shim/scheduler.hpp"

#define MOEPLAN_CUDA_SHIM 1

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

// --- types ----------------------------------------------------------------------------------------------------------------
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) uint4 { unsigned x, y, z, w; };

#define threadIdx (::shim::here->thread)
#define blockIdx (::shim::here->block)
#define blockDim (::shim::here->block_dim)
#define gridDim (::shim::here->grid_dim)
inline constexpr int warpSize = 32;

/// bfloat16, rounded to nearest even, so that the tests also build where there is no CUDA toolkit.
struct __nv_bfloat16 { std::uint16_t bits; };
inline float __bfloat162float(__nv_bfloat16 b) {
    const std::uint32_t wide = std::uint32_t{b.bits} << 16;
    float f;
    std::memcpy(&f, &wide, 4);
    return f;
}
inline __nv_bfloat16 __float2bfloat16(float f) {
    std::uint32_t u;
    std::memcpy(&u, &f, 4);
    if ((u & 0x7fffffffu) > 0x7f800000u) return {0x7fff};   // NaN, as the hardware's canonical one
    u += 0x7fffu + ((u >> 16) & 1u);
    return {static_cast<std::uint16_t>(u >> 16)};
}

// --- barriers and warp collectives ------------------------------------------------------------------------------------------
inline void __syncthreads(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { ::shim::sync_threads({file, line}); }
inline void __syncwarp(unsigned mask = 0xffffffffu, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    ::shim::warp_collective(::shim::Collective::sync, mask, 0, 0, {file, line});
}
namespace shim {
template <typename T>
std::uint64_t to_bits(T v) {
    static_assert(sizeof(T) <= 8 && std::is_trivially_copyable_v<T>);
    std::uint64_t bits = 0;
    std::memcpy(&bits, &v, sizeof(T));
    return bits;
}
template <typename T>
T from_bits(std::uint64_t bits) {
    T v;
    std::memcpy(&v, &bits, sizeof(T));
    return v;
}
/// Lanes are grouped in segments of `width`; a lane that would read outside its segment reads itself, as on the device.
inline int segment_source(int target, int width, bool down) {
    const int own = lane(), first = own / width * width, last = first + width - 1;
    return down ? (target > last ? -1 : target) : (target < first ? -1 : target);
}
}  // namespace shim
template <typename T>
T __shfl_sync(unsigned mask, T v, int source, int width = 32, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    const int from = ::shim::lane() / width * width + (source & (width - 1));
    return ::shim::from_bits<T>(::shim::warp_collective(::shim::Collective::shuffle, mask, ::shim::to_bits(v), from, {file, line}));
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T v, int bits, int width = 32, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    const int from = ::shim::segment_source(::shim::lane() ^ bits, width, true);
    return ::shim::from_bits<T>(::shim::warp_collective(::shim::Collective::shuffle, mask, ::shim::to_bits(v), from, {file, line}));
}
template <typename T>
T __shfl_down_sync(unsigned mask, T v, unsigned delta, int width = 32, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    const int from = ::shim::segment_source(::shim::lane() + static_cast<int>(delta), width, true);
    return ::shim::from_bits<T>(::shim::warp_collective(::shim::Collective::shuffle, mask, ::shim::to_bits(v), from, {file, line}));
}
template <typename T>
T __shfl_up_sync(unsigned mask, T v, unsigned delta, int width = 32, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    const int from = ::shim::segment_source(::shim::lane() - static_cast<int>(delta), width, false);
    return ::shim::from_bits<T>(::shim::warp_collective(::shim::Collective::shuffle, mask, ::shim::to_bits(v), from, {file, line}));
}
inline unsigned __ballot_sync(unsigned mask, int predicate, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return static_cast<unsigned>(::shim::warp_collective(::shim::Collective::ballot, mask, predicate != 0, 0, {file, line}));
}
inline int __any_sync(unsigned mask, int predicate, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return __ballot_sync(mask, predicate, file, line) != 0;
}
inline int __all_sync(unsigned mask, int predicate, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return __ballot_sync(mask, predicate, file, line) == mask;
}
template <typename T>
unsigned __match_any_sync(unsigned mask, T v, const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return static_cast<unsigned>(::shim::warp_collective(::shim::Collective::match, mask, ::shim::to_bits(v), 0, {file, line}));
}

// --- atomics: relaxed, as on the device, so that ThreadSanitizer sees no order where there is none ------------------------------
template <typename T>
T atomicAdd(T* p, std::type_identity_t<T> v) {
    if constexpr (std::is_integral_v<T>) {
        return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
    } else {
        T seen = __extension__({ T t; __atomic_load(p, &t, __ATOMIC_RELAXED); t; }), next;
        do next = seen + v;
        while (!__atomic_compare_exchange(p, &seen, &next, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
        return seen;
    }
}
template <typename T>
T atomicMax(T* p, std::type_identity_t<T> v) {
    T seen = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (seen < v && !__atomic_compare_exchange_n(p, &seen, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
    return seen;
}
template <typename T>
T atomicOr(T* p, std::type_identity_t<T> v) { return __atomic_fetch_or(p, v, __ATOMIC_RELAXED); }
template <typename T>
T atomicExch(T* p, std::type_identity_t<T> v) { return __atomic_exchange_n(p, v, __ATOMIC_RELAXED); }
template <typename T>
T atomicCAS(T* p, std::type_identity_t<T> compare, std::type_identity_t<T> v) {
    __atomic_compare_exchange_n(p, &compare, v, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return compare;
}
inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }

// --- arithmetic -----------------------------------------------------------------------------------------------------------------
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline int __clz(int v) { return v == 0 ? 32 : __builtin_clz(static_cast<unsigned>(v)); }
inline float rsqrtf(float v) { return 1.0f / std::sqrt(v); }
inline void sincospif(float v, float* sine, float* cosine) {
    *sine = static_cast<float>(std::sin(3.14159265358979323846 * v)), *cosine = static_cast<float>(std::cos(3.14159265358979323846 * v));
}
inline float __expf(float v) { return std::exp(v); }
inline float __logf(float v) { return std::log(v); }
inline float __fdividef(float a, float b) { return a / b; }
inline unsigned __float_as_uint(float f) { return ::shim::from_bits<unsigned>(::shim::to_bits(f)); }
inline float __uint_as_float(unsigned u) { return ::shim::from_bits<float>(::shim::to_bits(u)); }
inline int __float_as_int(float f) { return ::shim::from_bits<int>(::shim::to_bits(f)); }
inline float __int_as_float(int i) { return ::shim::from_bits<float>(::shim::to_bits(i)); }
template <typename T>
T __ldg(const T* p) { return *p; }

// --- the runtime: memory is the heap's, a stream runs at once ---------------------------------------------------------------------
enum cudaError_t : int {
    cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorMemoryAllocation = 2, cudaErrorInvalidConfiguration = 9,
    cudaErrorInsufficientDriver = 35, cudaErrorNoDevice = 100, cudaErrorInvalidDevice = 101, cudaErrorNoKernelImageForDevice = 209,
    cudaErrorNotReady = 600, cudaErrorLaunchFailure = 719, cudaErrorStreamCaptureUnsupported = 900, cudaErrorStreamCaptureInvalidated = 901,
};
enum cudaMemcpyKind { cudaMemcpyDefault = 4 };
enum cudaDeviceAttr { cudaDevAttrClockRate = 13, cudaDevAttrMemoryClockRate = 36 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
inline constexpr unsigned cudaStreamNonBlocking = 1, cudaEventDefault = 0, cudaEventDisableTiming = 2;
struct CUstream_st;
using cudaStream_t = CUstream_st*;
struct CUevent_st { double seconds; };
using cudaEvent_t = CUevent_st*;
struct cudaDeviceProp {
    char name[256];
    std::size_t totalGlobalMem, sharedMemPerBlockOptin;
    int major, minor, multiProcessorCount, l2CacheSize;
};
struct cudaFuncAttributes { int numRegs; };
enum cudaMemoryType { cudaMemoryTypeUnregistered = 0, cudaMemoryTypeHost = 1, cudaMemoryTypeDevice = 2, cudaMemoryTypeManaged = 3 };
struct cudaPointerAttributes { cudaMemoryType type; };
namespace shim {
bool has_kernels_for_this_device();
}
template <typename K>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, K*) {
    return ::shim::has_kernels_for_this_device() ? cudaSuccess : cudaErrorNoKernelImageForDevice;
}
const char* cudaGetErrorString(cudaError_t);
cudaError_t cudaGetLastError();
cudaError_t cudaGetDeviceCount(int*);
cudaError_t cudaSetDevice(int);
cudaError_t cudaGetDevice(int*);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp*, int);
cudaError_t cudaDeviceGetAttribute(int*, cudaDeviceAttr, int);
cudaError_t cudaDriverGetVersion(int*);
cudaError_t cudaRuntimeGetVersion(int*);
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total);
cudaError_t cudaMalloc(void**, std::size_t);
cudaError_t cudaFree(void*);
cudaError_t cudaMallocHost(void**, std::size_t);
cudaError_t cudaFreeHost(void*);
cudaError_t cudaMemcpyAsync(void*, const void*, std::size_t, cudaMemcpyKind, cudaStream_t);
cudaError_t cudaMemcpy(void*, const void*, std::size_t, cudaMemcpyKind);
cudaError_t cudaMemsetAsync(void*, int, std::size_t, cudaStream_t);
cudaError_t cudaMemset2DAsync(void*, std::size_t pitch, int, std::size_t width, std::size_t height, cudaStream_t);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t*, unsigned);
cudaError_t cudaStreamDestroy(cudaStream_t);
cudaError_t cudaStreamSynchronize(cudaStream_t);
cudaError_t cudaStreamQuery(cudaStream_t);
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes*, const void*);
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned = 0);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaEventCreateWithFlags(cudaEvent_t*, unsigned);
cudaError_t cudaEventDestroy(cudaEvent_t);
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t);
cudaError_t cudaEventSynchronize(cudaEvent_t);
cudaError_t cudaEventElapsedTime(float*, cudaEvent_t, cudaEvent_t);

// Graphs: what a stream is given while it records is kept and run later, with the arguments of then.
struct CUgraph_st;
using cudaGraph_t = CUgraph_st*;
using cudaGraphExec_t = CUgraph_st*;
enum cudaStreamCaptureMode { cudaStreamCaptureModeRelaxed = 2 };
cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode);
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t*);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t*, cudaGraph_t, unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t);
cudaError_t cudaGraphDestroy(cudaGraph_t);

namespace shim {
void note_error(int error);
void raise_dynamic_limit(const void* kernel, int bytes);
std::size_t dynamic_limit(const void* kernel);

bool records(cudaStream_t stream);
/// Keeps work of a stream that records: it runs with the graph.
void record(cudaStream_t stream, std::function<void()> work);

/// A launch: arguments are converted to the kernel's parameter types and copied now, as on the device.
template <typename... P, typename... A>
void launch_kernel(const char* name, void (*kernel)(P...), dim3 grid, dim3 block, std::size_t shared, cudaStream_t stream, A&&... arguments) {
    const std::tuple<std::decay_t<P>...> copies(static_cast<std::decay_t<P>>(arguments)...);
    const auto work = [=] {
        const int error = launch(name, {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, shared,
                                 dynamic_limit(reinterpret_cast<const void*>(kernel)),
                                 [&] { std::apply([&](const auto&... a) { kernel(a...); }, copies); });
        if (error) note_error(error);
    };
    if (records(stream))
        record(stream, work);
    else
        work();
}
}  // namespace shim
template <typename K>
cudaError_t cudaFuncSetAttribute(K* kernel, cudaFuncAttribute, int bytes) {
    ::shim::raise_dynamic_limit(reinterpret_cast<const void*>(kernel), bytes);
    return cudaSuccess;
}
