// RMSNorm, of a residual's sum too, bias, and the sums over rows that their gradients need.
//
// Shapes     x, y, dy, dx [rows, width]; weight, dweight [width]; inverse_rms [rows]; bias [num_groups, width]
// Mapping    RMSNorm: a block a row, its threads 16 bytes each. Sums over rows: a block takes 256 columns of one chunk of
//            rows, a thread a column; a second kernel adds the chunks in order
// Result     deterministic: chunks depend on the shape alone
// Moves      forward 2·rows·width values, 4 with a residual's addition (5 in two kernels); backward 3·rows·width, and 2·rows·width for dweight

#include "kernels/cuda/device_math.hpp"
#include "kernels/cuda/kernels.hpp"

namespace moeplan::cuda {
namespace {

constexpr int kColumns = 256;         // of a block that sums over rows

/// With a residual, x + residual is stored in `sum` first, and what is stored there is normalised; `sum` may be x or the residual.
template <typename T, int N>
__global__ void __launch_bounds__(256) rms_norm_forward_kernel(const T* x, const T* residual, T* sum, const T* __restrict__ weight,
                                                               T* __restrict__ y, float* __restrict__ inverse_rms, std::int64_t width,
                                                               float epsilon) {
    MOEPLAN_SHARED(float, per_warp, kWarp);
    const std::int64_t row = blockIdx.x;
    float squares = 0;
    for (std::int64_t c = threadIdx.x * N; c < width; c += blockDim.x * N) {
        Pack<T, N> v = load_pack<N>(x + row * width + c);
        if (residual) {
            const Pack<T, N> r = load_pack<N>(residual + row * width + c);
#pragma unroll
            for (int i = 0; i < N; ++i) v.value[i] = from_float<T>(to_float(v.value[i]) + to_float(r.value[i]));
            store_pack(sum + row * width + c, v);
        }
#pragma unroll
        for (int i = 0; i < N; ++i) squares += to_float(v.value[i]) * to_float(v.value[i]);
    }
    const float scale = rsqrtf(block_sum(squares, per_warp) / static_cast<float>(width) + epsilon);
    if (threadIdx.x == 0) inverse_rms[row] = scale;
    const T* const from = residual ? sum : x;                        // again, by the thread that stored it: from the cache
    for (std::int64_t c = threadIdx.x * N; c < width; c += blockDim.x * N) {
        Pack<T, N> v = load_pack<N>(from + row * width + c), w{};
        if (weight) w = load_pack<N>(weight + c);
#pragma unroll
        for (int i = 0; i < N; ++i) v.value[i] = from_float<T>(to_float(v.value[i]) * scale * (weight ? to_float(w.value[i]) : 1.0f));
        store_pack(y + row * width + c, v);
    }
}

/// With u = x · inverse_rms and g = dy · weight: dx (+)= inverse_rms · (g − u · mean(g · u)).
template <typename T, int N>
__global__ void __launch_bounds__(256, 4) rms_norm_backward_kernel(const T* __restrict__ x, const T* __restrict__ weight,
                                                                const float* __restrict__ inverse_rms, const T* __restrict__ dy,
                                                                T* __restrict__ dx, std::int64_t width, bool accumulate) {
    MOEPLAN_SHARED(float, per_warp, kWarp);
    const std::int64_t row = blockIdx.x;
    const float scale = inverse_rms[row];
    float sum = 0;
    for (std::int64_t c = threadIdx.x * N; c < width; c += blockDim.x * N) {
        const Pack<T, N> v = load_pack<N>(x + row * width + c), d = load_pack<N>(dy + row * width + c);
        Pack<T, N> w{};
        if (weight) w = load_pack<N>(weight + c);
#pragma unroll
        for (int i = 0; i < N; ++i) sum += to_float(d.value[i]) * (weight ? to_float(w.value[i]) : 1.0f) * to_float(v.value[i]);
    }
    const float mean = block_sum(sum, per_warp) * scale / static_cast<float>(width);
    for (std::int64_t c = threadIdx.x * N; c < width; c += blockDim.x * N) {
        const Pack<T, N> v = load_pack<N>(x + row * width + c), d = load_pack<N>(dy + row * width + c);
        Pack<T, N> w{}, out{};
        if (weight) w = load_pack<N>(weight + c);
        if (accumulate) out = load_pack<N>(dx + row * width + c);
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const float g = to_float(d.value[i]) * (weight ? to_float(w.value[i]) : 1.0f);
            const float result = (g - to_float(v.value[i]) * scale * mean) * scale;
            out.value[i] = from_float<T>(accumulate ? to_float(out.value[i]) + result : result);
        }
        store_pack(dx + row * width + c, out);
    }
}

/// partial[group, chunk, column] = Σ over the chunk's rows of dy, or of dy · x · inverse_rms.
template <typename T>
__global__ void __launch_bounds__(kColumns) sum_rows_kernel(const T* __restrict__ dy, const T* __restrict__ x, const float* __restrict__ inverse_rms,
                                                            const std::int32_t* __restrict__ offsets, float* __restrict__ partial,
                                                            std::int64_t rows, std::int64_t width) {
    const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * kColumns + threadIdx.x;
    if (c >= width) return;
    const std::int64_t first = offsets ? offsets[blockIdx.z] : 0, last = offsets ? offsets[blockIdx.z + 1] : rows;
    const std::int64_t share = (last - first + gridDim.y - 1) / gridDim.y;
    const std::int64_t begin = first + blockIdx.y * share, end = begin + share < last ? begin + share : last;
    float sum = 0;
#pragma unroll 4
    for (std::int64_t row = begin; row < end; ++row) {
        const float d = to_float(dy[row * width + c]);
        sum += x ? d * (to_float(x[row * width + c]) * inverse_rms[row]) : d;
    }
    partial[(static_cast<std::int64_t>(blockIdx.z) * gridDim.y + blockIdx.y) * width + c] = sum;
}

/// out[group, column] += Σ over chunks.
__global__ void __launch_bounds__(kColumns) add_chunks_kernel(const float* __restrict__ partial, float* __restrict__ out, int chunks, std::int64_t width) {
    const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * kColumns + threadIdx.x;
    if (c >= width) return;
    float sum = 0;
    for (int chunk = 0; chunk < chunks; ++chunk) sum += partial[(static_cast<std::int64_t>(blockIdx.y) * chunks + chunk) * width + c];
    out[static_cast<std::int64_t>(blockIdx.y) * width + c] += sum;
}

template <typename T>
Status add_sums_of_rows(const T* dy, const T* x, const float* inverse_rms, const std::int32_t* offsets, float* out, std::int64_t rows,
                        std::int64_t width, std::int64_t num_groups, cudaStream_t stream) {
    if (rows == 0 || width == 0 || num_groups == 0) return {};
    if (num_groups > 65535) return unsupported("sums over rows", "more than 65535 groups");
    const std::int64_t column_blocks = ceil_div(width, kColumns);
    // Some 1024 blocks in all, at least 16 rows a chunk.
    const std::int64_t wanted = ceil_div(1024, column_blocks * num_groups), most = ceil_div(ceil_div(rows, num_groups), 16);
    const std::int64_t chunks = std::max<std::int64_t>(1, std::min(wanted, most));
    void* partial = nullptr;
    MOEPLAN_TRY(scratch(stream, sizeof(float) * num_groups * chunks * width, &partial));
    MOEPLAN_LAUNCH((sum_rows_kernel<T>), dim3(column_blocks, chunks, num_groups), dim3(kColumns), 0, stream, dy, x, inverse_rms, offsets,
                   static_cast<float*>(partial), rows, width);
    MOEPLAN_LAUNCH(add_chunks_kernel, dim3(column_blocks, num_groups), dim3(kColumns), 0, stream, static_cast<const float*>(partial), out,
                   static_cast<int>(chunks), width);
    return {};
}

/// x[row] += bias[group of row]; a block takes 256 columns of rows that are gridDim.y apart within its group.
template <typename T>
__global__ void __launch_bounds__(kColumns) bias_forward_kernel(T* __restrict__ x, const T* __restrict__ bias, const std::int32_t* __restrict__ offsets,
                                                                std::int64_t rows, std::int64_t width) {
    const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * kColumns + threadIdx.x;
    if (c >= width) return;
    const std::int64_t first = offsets ? offsets[blockIdx.z] : 0, last = offsets ? offsets[blockIdx.z + 1] : rows;
    const float b = to_float(bias[blockIdx.z * width + c]);
    for (std::int64_t row = first + blockIdx.y; row < last; row += gridDim.y)
        x[row * width + c] = from_float<T>(to_float(x[row * width + c]) + b);
}

/// Without b: of a alone, whose sum is a.
Status normalise(const char* kernel, const ResidualRmsNormForward& a, Stream_* stream) {
    if (a.rows == 0 || a.width == 0) return {};
    if (!fits_grid(a.rows)) return unsupported(kernel, "more than 2^31 rows");
    const bool aligned = aligned_to_16(a.a) && aligned_to_16(a.b) && aligned_to_16(a.sum) && aligned_to_16(a.y) && aligned_to_16(a.weight);
    return with_packs(kernel, a.format, a.width, aligned, [&](auto* type, auto pack) -> Status {
        using T = std::remove_pointer_t<decltype(type)>;
        constexpr int N = decltype(pack)::value;
        MOEPLAN_LAUNCH((rms_norm_forward_kernel<T, N>), dim3(a.rows), dim3(threads_for_row(ceil_div(a.width, N))), 0, as_stream(stream),
                       static_cast<const T*>(a.a), static_cast<const T*>(a.b), static_cast<T*>(a.sum), static_cast<const T*>(a.weight),
                       static_cast<T*>(a.y), static_cast<float*>(a.inverse_rms), a.width, static_cast<float>(a.epsilon));
        return {};
    });
}

}  // namespace

Status rms_norm_forward(const RmsNormForward* a, Stream_* stream) {
    return normalise("rms_norm_forward", {a->x, nullptr, a->weight, nullptr, a->y, a->inverse_rms, a->rows, a->width, a->epsilon, a->format}, stream);
}
Status residual_rms_norm_forward(const ResidualRmsNormForward* a, Stream_* stream) { return normalise("residual_rms_norm_forward", *a, stream); }

Status rms_norm_backward(const RmsNormBackward* a, Stream_* stream) {
    if (a->rows == 0 || a->width == 0) return {};
    if (!fits_grid(a->rows)) return unsupported("rms_norm_backward", "more than 2^31 rows");
    const bool aligned = aligned_to_16(a->x) && aligned_to_16(a->dy) && aligned_to_16(a->dx) && aligned_to_16(a->weight);
    return with_packs("rms_norm_backward", a->format, a->width, aligned, [&](auto* type, auto pack) -> Status {
        using T = std::remove_pointer_t<decltype(type)>;
        constexpr int N = decltype(pack)::value;
        const auto* x = static_cast<const T*>(a->x);
        const auto* dy = static_cast<const T*>(a->dy);
        const auto* inverse_rms = static_cast<const float*>(a->inverse_rms);
        if (a->dweight)               // first: dx may be dy
            MOEPLAN_TRY(add_sums_of_rows<T>(dy, x, inverse_rms, nullptr, static_cast<float*>(a->dweight), a->rows, a->width, 1, as_stream(stream)));
        MOEPLAN_LAUNCH((rms_norm_backward_kernel<T, N>), dim3(a->rows), dim3(threads_for_row(ceil_div(a->width, N))), 0, as_stream(stream), x,
                       static_cast<const T*>(a->weight), inverse_rms, dy, static_cast<T*>(a->dx), a->width, a->accumulate);
        return {};
    });
}

Status bias_forward(const BiasForward* a, Stream_* stream) {
    if (a->rows == 0 || a->width == 0 || a->num_groups == 0) return {};
    if (a->num_groups > 65535) return unsupported("bias_forward", "more than 65535 groups");
    return with_format("bias_forward", a->format, [&](auto* type) -> Status {
        using T = std::remove_pointer_t<decltype(type)>;
        const std::int64_t columns = ceil_div(a->width, kColumns), along = std::min<std::int64_t>(ceil_div(a->rows, a->num_groups), 65535);
        MOEPLAN_LAUNCH((bias_forward_kernel<T>), dim3(columns, along, a->num_groups), dim3(kColumns), 0, as_stream(stream), static_cast<T*>(a->x),
                       static_cast<const T*>(a->bias), a->offsets, a->rows, a->width);
        return {};
    });
}

Status bias_backward(const BiasBackward* a, Stream_* stream) {
    return with_format("bias_backward", a->format, [&](auto* type) -> Status {
        using T = std::remove_pointer_t<decltype(type)>;
        return add_sums_of_rows<T>(static_cast<const T*>(a->dy), nullptr, nullptr, a->offsets, static_cast<float*>(a->dbias), a->rows, a->width,
                                   a->num_groups, as_stream(stream));
    });
}

}  // namespace moeplan::cuda
