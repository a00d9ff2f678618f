#pragma once
/// How our CUDA code launches, checks and shares memory. Three macros hide what only nvcc can parse, so that a C++
/// compiler can build the same sources for the CPU (docs/cuda-shim.md); everything else is plain CUDA C++.

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <algorithm>
#include <cstdio>
#include <limits>
#include <type_traits>

#include "kernels/kernel_set.hpp"

/// MOEPLAN_LAUNCH((kernel<T, 4>), grid, block, dynamic shared bytes, stream, arguments…): launches and returns from the
/// surrounding function, with the runtime's own words, if the launch was refused.
/// MOEPLAN_SHARED(float, sums, 32): `sums` is a float* to 32 values that the block shares.
/// MOEPLAN_DYNAMIC_SHARED(float, cache): `cache` is a float* to the launch's dynamic shared memory.
#if defined(MOEPLAN_CUDA_SHIM)
#define MOEPLAN_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                             \
    do {                                                                                           \
        ::shim::launch_kernel(#kernel, kernel, grid, block, shared_bytes, stream, __VA_ARGS__);    \
        MOEPLAN_CUDA(cudaGetLastError());                                                          \
    } while (0)
#define MOEPLAN_SHARED(T, name, count)                                                             \
    static const char name##_place = 0;                                                            \
    T* const name = static_cast<T*>(::shim::shared_array(&name##_place, sizeof(T) * (count)))
#define MOEPLAN_DYNAMIC_SHARED(T, name) T* const name = static_cast<T*>(::shim::dynamic_shared())
#else
#define MOEPLAN_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                             \
    do {                                                                                           \
        kernel<<<grid, block, shared_bytes, stream>>>(__VA_ARGS__);                                \
        MOEPLAN_CUDA(cudaGetLastError());                                                          \
    } while (0)
#define MOEPLAN_SHARED(T, name, count)     \
    __shared__ T name##_storage[(count)];  \
    T* const name = name##_storage
#define MOEPLAN_DYNAMIC_SHARED(T, name)                         \
    extern __shared__ __align__(16) unsigned char name##_raw[]; \
    T* const name = reinterpret_cast<T*>(name##_raw)
#endif

/// Leaves the surrounding function, which returns a Status, if a call of the CUDA runtime failed.
#define MOEPLAN_CUDA(call)                                                                         \
    do {                                                                                           \
        const cudaError_t moeplan_error = (call);                                                  \
        if (moeplan_error != cudaSuccess)                                                          \
            return ::moeplan::cuda::cuda_failure(moeplan_error, #call, __FILE__, __LINE__);        \
    } while (0)
/// The same for a function of ours.
#define MOEPLAN_TRY(call)                                                                          \
    do {                                                                                           \
        if (::moeplan::Status moeplan_status = (call); moeplan_status.code != ::moeplan::kOk)      \
            return moeplan_status;                                                                 \
    } while (0)

namespace moeplan::cuda {

/// The runtime's words for an error, with the call and its place.
Status cuda_failure(cudaError_t error, const char* call, const char* file, int line);

inline cudaStream_t as_stream(Stream_* stream) { return reinterpret_cast<cudaStream_t>(stream); }

inline Status unsupported(const char* kernel, const char* why) {
    char text[256];
    std::snprintf(text, sizeof text, "cuda %s: %s", kernel, why);
    return status_of(kUnsupported, text);
}

/// Device memory, or kOutOfMemory with how much was free, how much was asked for and for what.
Status device_memory(std::size_t bytes, const char* purpose, void** out);

/// As the driver says it.
const char* device_name();

/// Whose scratch memory and workspace a stream uses: its own, or, while a graph is recorded, those of the stream that will run it.
cudaStream_t owner_of(cudaStream_t stream);

/// Scratch memory of a stream, grown when needed and kept: work on one stream is in order, so that one buffer a stream
/// serves all its kernels. The content of an earlier call is lost.
Status scratch(cudaStream_t stream, std::size_t bytes, void** out);
void release_scratch(cudaStream_t stream);

/// More dynamic shared memory than 48 KiB has to be asked for, kernel by kernel.
template <typename K>
Status allow_shared(K* kernel, std::size_t bytes) {
    if (bytes > 48 * 1024) MOEPLAN_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
    return {};
}

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
/// Blocks that cover `count` items, as a grid's x dimension takes them.
inline bool fits_grid(std::int64_t blocks) { return blocks <= std::numeric_limits<std::int32_t>::max(); }

/// Calls f with a null pointer of the storage type of a format: f32 or bf16, else kUnsupported.
template <typename F>
Status with_format(const char* kernel, NumberFormat format, F f) {
    if (format == NumberFormat::f32) return f(static_cast<float*>(nullptr));
    if (format == NumberFormat::bf16) return f(static_cast<__nv_bfloat16*>(nullptr));
    return unsupported(kernel, "stores f32 or bf16");
}
inline bool aligned_to_16(const void* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; }

}  // namespace moeplan::cuda
