// AdamW and the norm of a gradient.
//
// Shapes     flat; weight in its format, master, m, v, gradient f32
// Mapping    AdamW: 4 parameters a thread. Norm: 1024 blocks sum squares in f64, one block adds them in order
// Result     deterministic
// Moves      AdamW 28 bytes a parameter in f32, 30 with a bf16 weight and its master; norm 4 bytes

#include "kernels/cuda/device_math.hpp"
#include "kernels/cuda/kernels.hpp"

#include <cmath>

namespace moeplan::cuda {
namespace {

constexpr int kThreads = 256, kNormBlocks = 1024;

struct Step { float beta1, beta2, epsilon, gradient_scale, unbias1, unbias2, rate, decay; };

template <typename T, int N>
__global__ void __launch_bounds__(kThreads) adamw_kernel(T* __restrict__ weight, float* __restrict__ master, float* __restrict__ m,
                                                         float* __restrict__ v, const float* __restrict__ gradient, std::int64_t count, Step step) {
    const std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * N;
    if (i >= count) return;
    Pack<T, N> w = load_pack<N>(weight + i);
    Pack<float, N> full, mean = load_pack<N>(m + i), square = load_pack<N>(v + i);
    const Pack<float, N> g = load_pack<N>(gradient + i);
    if (master) {
        full = load_pack<N>(master + i);
    } else {
#pragma unroll
        for (int j = 0; j < N; ++j) full.value[j] = to_float(w.value[j]);
    }
#pragma unroll
    for (int j = 0; j < N; ++j) {
        const float d = g.value[j] * step.gradient_scale;
        mean.value[j] = step.beta1 * mean.value[j] + (1.0f - step.beta1) * d;
        square.value[j] = step.beta2 * square.value[j] + (1.0f - step.beta2) * d * d;
        full.value[j] = full.value[j] * step.decay -
                        step.rate * (mean.value[j] * step.unbias1) / (sqrtf(square.value[j] * step.unbias2) + step.epsilon);
        w.value[j] = from_float<T>(full.value[j]);
    }
    store_pack(m + i, mean);
    store_pack(v + i, square);
    store_pack(weight + i, w);
    if (master) store_pack(master + i, full);
}

/// Sum over the block of f64 values, on thread 0.
__device__ double block_sum_f64(double v, double* per_thread) {
    per_thread[threadIdx.x] = v;
    for (int half = kThreads / 2; half > 0; half /= 2) {
        __syncthreads();
        if (static_cast<int>(threadIdx.x) < half) per_thread[threadIdx.x] += per_thread[threadIdx.x + half];
    }
    return threadIdx.x == 0 ? per_thread[0] : 0.0;            // the others would read while it is written
}

__global__ void __launch_bounds__(kThreads) sum_squares_kernel(const float* __restrict__ gradient, double* __restrict__ partial, std::int64_t count) {
    MOEPLAN_SHARED(double, per_thread, kThreads);
    double sum = 0;
    for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
         i += static_cast<std::int64_t>(gridDim.x) * kThreads)
        sum += static_cast<double>(gradient[i]) * static_cast<double>(gradient[i]);
    sum = block_sum_f64(sum, per_thread);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads) add_squares_kernel(const double* __restrict__ partial, double* __restrict__ sum, int blocks) {
    MOEPLAN_SHARED(double, per_thread, kThreads);
    double mine = 0;
    for (int b = threadIdx.x; b < blocks; b += kThreads) mine += partial[b];
    mine = block_sum_f64(mine, per_thread);
    if (threadIdx.x == 0) sum[0] += mine;
}

}  // namespace

Status adamw(const AdamW* a, Stream_* stream) {
    if (a->count == 0) return {};
    return with_format("adamw", a->format, [&](auto* type) -> Status {
        using T = std::remove_pointer_t<decltype(type)>;
        const Step step{.beta1 = static_cast<float>(a->beta1),
                        .beta2 = static_cast<float>(a->beta2),
                        .epsilon = static_cast<float>(a->epsilon),
                        .gradient_scale = static_cast<float>(a->gradient_scale),
                        .unbias1 = static_cast<float>(1.0 / (1.0 - std::pow(a->beta1, static_cast<double>(a->step)))),
                        .unbias2 = static_cast<float>(1.0 / (1.0 - std::pow(a->beta2, static_cast<double>(a->step)))),
                        .rate = static_cast<float>(a->learning_rate),
                        .decay = static_cast<float>(1.0 - a->learning_rate * a->weight_decay)};
        T* const weight = static_cast<T*>(a->weight);
        float *const master = static_cast<float*>(a->master), *const m = static_cast<float*>(a->m), *const v = static_cast<float*>(a->v);
        const float* const gradient = static_cast<const float*>(a->gradient);
        const bool wide = aligned_to_16(weight) && aligned_to_16(master) && aligned_to_16(m) && aligned_to_16(v) && aligned_to_16(gradient);
        const std::int64_t packed = wide ? a->count / 4 * 4 : 0, rest = a->count - packed;
        if (!fits_grid(ceil_div(std::max(packed / 4, rest), kThreads))) return unsupported("adamw", "a tensor larger than a grid");
        if (packed)
            MOEPLAN_LAUNCH((adamw_kernel<T, 4>), dim3(ceil_div(packed, 4 * kThreads)), dim3(kThreads), 0, as_stream(stream), weight, master, m, v,
                           gradient, packed, step);
        if (rest)
            MOEPLAN_LAUNCH((adamw_kernel<T, 1>), dim3(ceil_div(rest, kThreads)), dim3(kThreads), 0, as_stream(stream), weight + packed,
                           master ? master + packed : nullptr, m + packed, v + packed, gradient + packed, rest, step);
        return {};
    });
}

Status gradient_norm(const GradientNorm* a, Stream_* stream_) {
    const cudaStream_t stream = as_stream(stream_);
    if (stat_format(a->format) != NumberFormat::f32) return unsupported("gradient_norm", "gradients are f32");
    if (a->count == 0) return {};
    const int blocks = static_cast<int>(std::min<std::int64_t>(kNormBlocks, ceil_div(a->count, kThreads)));
    void* partial = nullptr;
    MOEPLAN_TRY(scratch(stream, sizeof(double) * blocks, &partial));
    MOEPLAN_LAUNCH(sum_squares_kernel, dim3(blocks), dim3(kThreads), 0, stream, static_cast<const float*>(a->gradient), static_cast<double*>(partial),
                   a->count);
    MOEPLAN_LAUNCH(add_squares_kernel, dim3(1), dim3(kThreads), 0, stream, static_cast<const double*>(partial), a->sum, blocks);
    return {};
}

}  // namespace moeplan::cuda
