// AdamW and the norm of a gradient, over one tensor or all of a model at once.
//
// Shapes     flat; weight in its format, master, m, v, gradient f32
// Mapping    a block takes 16384 elements of one tensor, 4 at a time a thread; with many tensors a table in device memory says whose,
//            found by halving. Norm: a block sums squares in f64; one block then adds the blocks' sums in order
// Result     deterministic: blocks and their order depend on the counts alone
// Moves      AdamW 28 bytes a parameter in f32, 30 with a bf16 weight and its master; norm 4 bytes

#include <cmath>
#include <vector>

#include "kernels/cuda/device_math.hpp"
#include "kernels/cuda/kernels.hpp"

namespace moeplan::cuda {
namespace {

constexpr int kThreads = 256, kSums = 1024;
constexpr std::int64_t kChunk = 16384;       // elements a block, a multiple of 4 · kThreads

struct Step { float beta1, beta2, epsilon, gradient_scale, unbias1, unbias2, rate, decay; };

/// A tensor, and the first block that works on it.
struct AdamWPart {
    void* weight;
    float *master, *m, *v;
    const float* gradient;
    std::int64_t count;
    int first_block;
    bool bf16, wide;                         ///< wide: all pointers are aligned to 16 bytes
    Step step;
};
struct NormPart {
    const float* gradient;
    std::int64_t count;
    int first_block;
};

/// Parts as a kernel takes them: one by value, several in device memory.
template <typename Part>
struct Parts {
    Part only;
    const Part* table;
    int count;
};

/// The part of this block: the last whose first block is not behind it.
template <typename Part>
__device__ __forceinline__ Part part_of_block(const Parts<Part>& parts) {
    if (parts.count == 1) return parts.only;
    int low = 0, high = parts.count - 1;
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (parts.table[middle].first_block <= static_cast<int>(blockIdx.x))
            low = middle;
        else
            high = middle - 1;
    }
    return parts.table[low];
}

template <typename T, int N>
__device__ __forceinline__ void step_pack(const AdamWPart& p, std::int64_t i) {
    T* const weight = static_cast<T*>(p.weight) + i;
    Pack<T, N> w = load_pack<N>(weight);
    Pack<float, N> full, mean = load_pack<N>(p.m + i), square = load_pack<N>(p.v + i);
    const Pack<float, N> g = load_pack<N>(p.gradient + i);
    if (p.master) {
        full = load_pack<N>(p.master + i);
    } else {
#pragma unroll
        for (int j = 0; j < N; ++j) full.value[j] = to_float(w.value[j]);
    }
#pragma unroll
    for (int j = 0; j < N; ++j) {
        const float d = g.value[j] * p.step.gradient_scale;
        mean.value[j] = p.step.beta1 * mean.value[j] + (1.0f - p.step.beta1) * d;
        square.value[j] = p.step.beta2 * square.value[j] + (1.0f - p.step.beta2) * d * d;
        full.value[j] = full.value[j] * p.step.decay -
                        p.step.rate * (mean.value[j] * p.step.unbias1) / (sqrtf(square.value[j] * p.step.unbias2) + p.step.epsilon);
        w.value[j] = from_float<T>(full.value[j]);
    }
    store_pack(p.m + i, mean);
    store_pack(p.v + i, square);
    store_pack(weight, w);
    if (p.master) store_pack(p.master + i, full);
}

template <typename T>
__device__ __forceinline__ void step_chunk(const AdamWPart& p, std::int64_t begin, std::int64_t end) {
    const std::int64_t packed = p.wide ? end - (end - begin) % 4 : begin;
    for (std::int64_t i = begin + threadIdx.x * 4; i < packed; i += kThreads * 4) step_pack<T, 4>(p, i);
    for (std::int64_t i = packed + threadIdx.x; i < end; i += kThreads) step_pack<T, 1>(p, i);
}

__global__ void __launch_bounds__(kThreads) adamw_kernel(Parts<AdamWPart> parts) {
    const AdamWPart p = part_of_block(parts);
    const std::int64_t begin = (static_cast<int>(blockIdx.x) - p.first_block) * kChunk, end = begin + kChunk < p.count ? begin + kChunk : p.count;
    if (p.bf16)
        step_chunk<__nv_bfloat16>(p, begin, end);
    else
        step_chunk<float>(p, begin, end);
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

__global__ void __launch_bounds__(kThreads) sum_squares_kernel(Parts<NormPart> parts, double* __restrict__ partial) {
    MOEPLAN_SHARED(double, per_thread, kThreads);
    const NormPart p = part_of_block(parts);
    const std::int64_t begin = (static_cast<int>(blockIdx.x) - p.first_block) * kChunk, end = begin + kChunk < p.count ? begin + kChunk : p.count;
    double sum = 0;
    for (std::int64_t i = begin + threadIdx.x; i < end; i += kThreads) sum += static_cast<double>(p.gradient[i]) * static_cast<double>(p.gradient[i]);
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

/// Gives parts their blocks. @return how many there are, or −1: more than a grid takes
template <typename Part>
std::int64_t number_blocks(std::vector<Part>& parts) {
    std::int64_t blocks = 0;
    for (Part& p : parts) {
        p.first_block = static_cast<int>(blocks);
        blocks += ceil_div(p.count, kChunk);
        if (!fits_grid(blocks)) return -1;
    }
    return blocks;
}

/// @param table  device memory for all of them; written where there are several
template <typename Part>
Status as_parts(const std::vector<Part>& parts, void* table, cudaStream_t stream, Parts<Part>* out) {
    *out = {parts.front(), static_cast<const Part*>(table), static_cast<int>(parts.size())};
    if (parts.size() > 1)             // pageable memory: it has been read when this returns
        MOEPLAN_CUDA(cudaMemcpyAsync(table, parts.data(), parts.size() * sizeof(Part), cudaMemcpyDefault, stream));
    return {};
}

}  // namespace

Status adamw_tensors(const AdamWTensors* call, Stream_* stream_) {
    const cudaStream_t stream = as_stream(stream_);
    std::vector<AdamWPart> parts;
    for (const AdamW* a = call->tensors; a != call->tensors + call->num_tensors; ++a) {
        if (a->count == 0) continue;
        if (a->format != NumberFormat::f32 && a->format != NumberFormat::bf16) return unsupported("adamw", "stores f32 or bf16");
        const Step step{.beta1 = static_cast<float>(a->beta1),
                        .beta2 = static_cast<float>(a->beta2),
                        .epsilon = static_cast<float>(a->epsilon),
                        .gradient_scale = static_cast<float>(a->gradient_scale),
                        .unbias1 = static_cast<float>(1.0 / (1.0 - std::pow(a->beta1, static_cast<double>(a->step)))),
                        .unbias2 = static_cast<float>(1.0 / (1.0 - std::pow(a->beta2, static_cast<double>(a->step)))),
                        .rate = static_cast<float>(a->learning_rate),
                        .decay = static_cast<float>(1.0 - a->learning_rate * a->weight_decay)};
        const bool wide = aligned_to_16(a->weight) && aligned_to_16(a->master) && aligned_to_16(a->m) && aligned_to_16(a->v) && aligned_to_16(a->gradient);
        parts.push_back({a->weight, static_cast<float*>(a->master), static_cast<float*>(a->m), static_cast<float*>(a->v),
                         static_cast<const float*>(a->gradient), a->count, 0, a->format == NumberFormat::bf16, wide, step});
    }
    if (parts.empty()) return {};
    const std::int64_t blocks = number_blocks(parts);
    if (blocks < 0) return unsupported("adamw", "tensors larger than a grid");
    void* table = nullptr;
    if (parts.size() > 1) MOEPLAN_TRY(scratch(stream, parts.size() * sizeof(AdamWPart), &table));
    Parts<AdamWPart> on_device;
    MOEPLAN_TRY(as_parts(parts, table, stream, &on_device));
    MOEPLAN_LAUNCH(adamw_kernel, dim3(blocks), dim3(kThreads), 0, stream, on_device);
    return {};
}

Status adamw(const AdamW* a, Stream_* stream) {
    const AdamWTensors one{a, 1};
    return adamw_tensors(&one, stream);
}

Status gradient_norms(const GradientNorms* a, Stream_* stream_) {
    const cudaStream_t stream = as_stream(stream_);
    if (stat_format(a->format) != NumberFormat::f32) return unsupported("gradient_norm", "gradients are f32");
    std::vector<NormPart> parts;
    for (const GradientPart* p = a->parts; p != a->parts + a->num_parts; ++p)
        if (p->count > 0) parts.push_back({static_cast<const float*>(p->gradient), p->count, 0});
    if (parts.empty()) return {};
    const std::int64_t blocks = number_blocks(parts);
    if (blocks < 0) return unsupported("gradient_norm", "tensors larger than a grid");
    void* partial = nullptr;          // sums of the blocks, then the table
    MOEPLAN_TRY(scratch(stream, sizeof(double) * blocks + (parts.size() > 1 ? parts.size() * sizeof(NormPart) : 0), &partial));
    Parts<NormPart> on_device;
    MOEPLAN_TRY(as_parts(parts, static_cast<double*>(partial) + blocks, stream, &on_device));
    MOEPLAN_LAUNCH(sum_squares_kernel, dim3(blocks), dim3(kThreads), 0, stream, on_device, static_cast<double*>(partial));
    MOEPLAN_LAUNCH(add_squares_kernel, dim3(1), dim3(kThreads), 0, stream, static_cast<const double*>(partial), a->sum, static_cast<int>(blocks));
    return {};
}

Status gradient_norm(const GradientNorm* a, Stream_* stream) {
    const GradientPart part{a->gradient, a->count};
    const GradientNorms one{&part, 1, a->sum, a->format};
    return gradient_norms(&one, stream);
}

}  // namespace moeplan::cuda
