// Element-wise kernels: residual add, scale, conversion, activations and their gradients.
//
// Shapes     as in kernels/kernel_set.hpp: flat, or [rows, width] with [rows, 2·width] for swiglu's gate and up
// Mapping    a thread 16 bytes (one value where alignment or width forbids it)
// Result     deterministic: every value is computed by one thread
// Moves      each tensor once: swiglu 3 values forward and 5 backward an inner element

#include "kernels/cuda/activations.hpp"
#include "kernels/cuda/kernels.hpp"

namespace moeplan::cuda {
namespace {

constexpr int kThreads = 256;

/// out[i] = f(i-th values of a and b); b may be null.
template <typename F, typename T, int N>
__global__ void __launch_bounds__(kThreads) map_kernel(F f, const T* a, const T* b, T* out, std::int64_t count) {
    const std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * N;
    if (i >= count) return;
    const Pack<T, N> va = load_pack<N>(a + i);
    Pack<T, N> vb{}, result;
    if (b) vb = load_pack<N>(b + i);
#pragma unroll
    for (int j = 0; j < N; ++j) result.value[j] = from_float<T>(f(to_float(va.value[j]), to_float(vb.value[j])));
    store_pack(out + i, result);
}

template <typename T, int N>
__global__ void __launch_bounds__(kThreads) swiglu_forward_kernel(const T* __restrict__ x, T* __restrict__ y, std::int64_t count, std::int64_t width) {
    const std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * N;
    if (i >= count) return;
    const std::int64_t row = i / width, gate_at = i + row * width;
    const Pack<T, N> gate = load_pack<N>(x + gate_at), up = load_pack<N>(x + gate_at + width);
    Pack<T, N> out;
#pragma unroll
    for (int j = 0; j < N; ++j) out.value[j] = from_float<T>(swiglu(to_float(gate.value[j]), to_float(up.value[j])));
    store_pack(y + i, out);
}

/// dx may be x.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads) swiglu_backward_kernel(const T* x, const T* __restrict__ dy, T* dx, std::int64_t count, std::int64_t width) {
    const std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * N;
    if (i >= count) return;
    const std::int64_t row = i / width, gate_at = i + row * width;
    const Pack<T, N> gate = load_pack<N>(x + gate_at), up = load_pack<N>(x + gate_at + width), d = load_pack<N>(dy + i);
    Pack<T, N> dgate, dup;
#pragma unroll
    for (int j = 0; j < N; ++j) {
        const SwigluGradient g = swiglu_gradient(to_float(gate.value[j]), to_float(up.value[j]), to_float(d.value[j]));
        dgate.value[j] = from_float<T>(g.dgate);
        dup.value[j] = from_float<T>(g.dup);
    }
    store_pack(dx + gate_at, dgate);
    store_pack(dx + gate_at + width, dup);
}

struct Add { __device__ float operator()(float a, float b) const { return a + b; } };
struct AlphaBeta {                    ///< alpha·x + beta·y
    float alpha, beta;
    __device__ float operator()(float x, float y) const { return alpha * x + beta * y; }
};
struct Alpha {                        ///< y is not read: it may hold anything, a NaN too
    float alpha;
    __device__ float operator()(float x, float) const { return alpha * x; }
};

template <typename F>
Status map(const char* kernel, F f, const void* a, const void* b, void* out, std::int64_t count, NumberFormat format, Stream_* stream) {
    if (count == 0) return {};
    // Flat: what is left over after whole packs is done by a second launch of single values.
    return with_format(kernel, format, [&](auto* type) -> Status {
        using T = std::remove_pointer_t<decltype(type)>;
        constexpr int N = kWide<T>;
        const bool wide = aligned_to_16(a) && aligned_to_16(b) && aligned_to_16(out);
        const std::int64_t packed = wide ? count / N * N : 0, rest = count - packed;
        const std::int64_t packs = packed / N;
        if (!fits_grid(ceil_div(std::max(packs, rest), kThreads))) return unsupported(kernel, "a tensor larger than a grid");
        const T *ta = static_cast<const T*>(a), *tb = static_cast<const T*>(b);
        T* to = static_cast<T*>(out);
        if (packs) MOEPLAN_LAUNCH((map_kernel<F, T, N>), dim3(ceil_div(packs, kThreads)), dim3(kThreads), 0, as_stream(stream), f, ta, tb, to, packed);
        if (rest)
            MOEPLAN_LAUNCH((map_kernel<F, T, 1>), dim3(ceil_div(rest, kThreads)), dim3(kThreads), 0, as_stream(stream), f, ta + packed,
                           tb ? tb + packed : nullptr, to + packed, rest);
        return {};
    });
}

template <typename In, typename Out>
__global__ void __launch_bounds__(kThreads) convert_kernel(const In* __restrict__ in, Out* __restrict__ out, std::int64_t count) {
    const std::int64_t begin = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * 4;
    for (std::int64_t i = begin; i < begin + 4 && i < count; ++i) {
        if constexpr (std::is_same_v<In, Out>)
            out[i] = in[i];
        else if constexpr (std::is_same_v<In, double> || std::is_same_v<Out, double>)
            out[i] = static_cast<Out>(in[i]);
        else
            out[i] = from_float<Out>(to_float(in[i]));
    }
}

template <typename In, typename Out>
Status convert_to(const Convert* a, cudaStream_t stream) {
    MOEPLAN_LAUNCH((convert_kernel<In, Out>), dim3(ceil_div(a->count, 4 * kThreads)), dim3(kThreads), 0, stream, static_cast<const In*>(a->in),
                   static_cast<Out*>(a->out), a->count);
    return {};
}

}  // namespace

Status supports_this_device() {
    cudaFuncAttributes attributes{};
    const cudaError_t error = cudaFuncGetAttributes(&attributes, map_kernel<Add, float, 1>);
    (void)cudaGetLastError();         // answered here
    return error == cudaSuccess ? Status{} : cuda_failure(error, "cudaFuncGetAttributes", __FILE__, __LINE__);
}

Status residual_add(const ResidualAdd* a, Stream_* stream) { return map("residual_add", Add{}, a->a, a->b, a->out, a->count, a->format, stream); }

Status scale(const Scale* a, Stream_* stream) {
    const float alpha = static_cast<float>(a->alpha), beta = static_cast<float>(a->beta);
    if (beta == 0) return map("scale", Alpha{alpha}, a->x, nullptr, a->y, a->count, a->format, stream);
    return map("scale", AlphaBeta{alpha, beta}, a->x, a->y, a->y, a->count, a->format, stream);
}

Status gelu_forward(const ActivationForward* a, Stream_* stream) {
    return map("gelu_forward", Gelu{}, a->x, nullptr, a->y, a->rows * a->width, a->format, stream);
}
Status gelu_backward(const ActivationBackward* a, Stream_* stream) {
    return map("gelu_backward", GeluGradient{}, a->x, a->dy, a->dx, a->rows * a->width, a->format, stream);
}
Status relu_forward(const ActivationForward* a, Stream_* stream) {
    return map("relu_forward", Relu{}, a->x, nullptr, a->y, a->rows * a->width, a->format, stream);
}
Status relu_backward(const ActivationBackward* a, Stream_* stream) {
    return map("relu_backward", ReluGradient{}, a->x, a->dy, a->dx, a->rows * a->width, a->format, stream);
}

Status swiglu_forward(const ActivationForward* a, Stream_* stream) {
    const std::int64_t count = a->rows * a->width;
    if (count == 0) return {};
    return with_packs("swiglu_forward", a->format, a->width, aligned_to_16(a->x) && aligned_to_16(a->y), [&](auto* type, auto pack) -> Status {
        using T = std::remove_pointer_t<decltype(type)>;
        constexpr int N = decltype(pack)::value;
        const std::int64_t blocks = ceil_div(count, N * kThreads);
        if (!fits_grid(blocks)) return unsupported("swiglu_forward", "a tensor larger than a grid");
        MOEPLAN_LAUNCH((swiglu_forward_kernel<T, N>), dim3(blocks), dim3(kThreads), 0, as_stream(stream), static_cast<const T*>(a->x),
                       static_cast<T*>(a->y), count, a->width);
        return {};
    });
}

Status swiglu_backward(const ActivationBackward* a, Stream_* stream) {
    const std::int64_t count = a->rows * a->width;
    if (count == 0) return {};
    const bool aligned = aligned_to_16(a->x) && aligned_to_16(a->dy) && aligned_to_16(a->dx);
    return with_packs("swiglu_backward", a->format, a->width, aligned, [&](auto* type, auto pack) -> Status {
        using T = std::remove_pointer_t<decltype(type)>;
        constexpr int N = decltype(pack)::value;
        const std::int64_t blocks = ceil_div(count, N * kThreads);
        if (!fits_grid(blocks)) return unsupported("swiglu_backward", "a tensor larger than a grid");
        MOEPLAN_LAUNCH((swiglu_backward_kernel<T, N>), dim3(blocks), dim3(kThreads), 0, as_stream(stream), static_cast<const T*>(a->x),
                       static_cast<const T*>(a->dy), static_cast<T*>(a->dx), count, a->width);
        return {};
    });
}

Status convert(const Convert* a, Stream_* stream_) {
    const cudaStream_t stream = as_stream(stream_);
    if (a->count == 0) return {};
    if (!fits_grid(ceil_div(a->count, 4 * kThreads))) return unsupported("convert", "a tensor larger than a grid");
    using enum NumberFormat;
    const auto is = [&](NumberFormat in, NumberFormat out) { return a->in_format == in && a->out_format == out; };
    if (is(f32, f32)) return convert_to<float, float>(a, stream);
    if (is(f32, bf16)) return convert_to<float, __nv_bfloat16>(a, stream);
    if (is(bf16, f32)) return convert_to<__nv_bfloat16, float>(a, stream);
    if (is(bf16, bf16)) return convert_to<__nv_bfloat16, __nv_bfloat16>(a, stream);
    if (is(f32, f64)) return convert_to<float, double>(a, stream);
    if (is(f64, f32)) return convert_to<double, float>(a, stream);
    return unsupported("convert", "between f32, bf16 and f64 (bf16 and f64 by way of f32)");
}

}  // namespace moeplan::cuda
