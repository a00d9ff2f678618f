// An expert's bias and activation in one pass, and their gradients in one.
//
// Shapes     x, dx [rows, inputs] with inputs = 2·width for swiglu (gate, then up), else width; y, dy [rows, width];
//            bias, dbias [num_groups, inputs]; rows sorted by group
// Mapping    a block takes a run of rows and 32 packs of columns: 8 rows at a time, a thread a pack. Within its run it goes from group
//            to group, so a hot expert is as well spread as any. Sums over rows of a group stay in registers, are added over the 8
//            threads of a column, and stored as run + group, which no other pair has; a second kernel adds the runs in order
// Result     deterministic: runs depend on the shape alone
// Moves      swiglu 3 values an inner element forward and 5 backward (7 and 7 in kernels of their own), gelu and relu 2 and 3 (4 and 4)

#include "kernels/cuda/activations.hpp"
#include "kernels/cuda/kernels.hpp"

namespace moeplan::cuda {
namespace {

constexpr int kAcross = kWarp, kRows = 8, kThreads = kAcross * kRows;

/// The group of a row: the last that begins at or before it and is not empty.
__device__ __forceinline__ int group_of(const std::int32_t* offsets, int num_groups, std::int64_t row) {
    int low = 0, high = num_groups;                           // offsets[low] ≤ row < offsets[high]
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (offsets[middle] <= row)
            low = middle;
        else
            high = middle;
    }
    return low;
}

struct Rows {
    const std::int32_t* offsets;
    int num_groups;
    std::int64_t rows, width, run;                            ///< run: rows a block
};

/// body(group, first row, end) for the groups within this block's run.
template <typename F>
__device__ __forceinline__ void each_group(const Rows& r, F body) {
    const std::int64_t begin = blockIdx.y * r.run, all = r.offsets ? r.offsets[r.num_groups] : r.rows;
    const std::int64_t end = begin + r.run < all ? begin + r.run : all;
    int group = r.offsets && begin < end ? group_of(r.offsets, r.num_groups, begin) : 0;
    for (std::int64_t row = begin; row < end; ++group) {
        const std::int64_t of_group = r.offsets ? r.offsets[group + 1] : r.rows, last = of_group < end ? of_group : end;
        if (row < last) body(group, row, last);
        row = last;
    }
}

template <ActivationKind kKind>
inline constexpr int kBlocksOf = kKind == ActivationKind::swiglu ? 2 : 1;      // of `width` columns: gate and up, or one

/// x + bias of one pack, by block of columns.
template <int N, int kBlocks, typename T>
__device__ __forceinline__ void load_biased(float (&out)[kBlocks][N], const T* x, const T* bias, std::int64_t width) {
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
        const Pack<T, N> v = load_pack<N>(x + b * width), add = load_pack<N>(bias + b * width);
#pragma unroll
        for (int i = 0; i < N; ++i) out[b][i] = to_float(v.value[i]) + to_float(add.value[i]);
    }
}

template <ActivationKind kKind, typename T, int N>
__global__ void __launch_bounds__(kThreads, 4) expert_activation_forward_kernel(const T* __restrict__ x, const T* __restrict__ bias, T* __restrict__ y,
                                                                             Rows rows) {
    constexpr int kBlocks = kBlocksOf<kKind>;
    const std::int64_t c = (static_cast<std::int64_t>(blockIdx.x) * kAcross + threadIdx.x) * N;
    if (c >= rows.width) return;
    each_group(rows, [&](int group, std::int64_t first, std::int64_t last) {
        for (std::int64_t row = first + threadIdx.y; row < last; row += kRows) {
            float in[kBlocks][N];
            load_biased<N>(in, x + row * kBlocks * rows.width + c, bias + group * kBlocks * rows.width + c, rows.width);
            Pack<T, N> out;
#pragma unroll
            for (int i = 0; i < N; ++i) {
                if constexpr (kKind == ActivationKind::swiglu)
                    out.value[i] = from_float<T>(swiglu(in[0][i], in[1][i]));
                else if constexpr (kKind == ActivationKind::gelu)
                    out.value[i] = from_float<T>(Gelu{}(in[0][i], 0.0f));
                else
                    out.value[i] = from_float<T>(Relu{}(in[0][i], 0.0f));
            }
            store_pack(y + row * rows.width + c, out);
        }
    });
}

/// partial[run + group, column] = Σ over the group's rows of the run of dx. dx may be x.
template <ActivationKind kKind, typename T, int N>
__global__ void __launch_bounds__(kThreads, 3) expert_activation_backward_kernel(const T* x, const T* __restrict__ bias, const T* __restrict__ dy, T* dx,
                                                                              float* __restrict__ partial, Rows rows) {
    constexpr int kBlocks = kBlocksOf<kKind>, kColumns = kBlocks * kAcross * N;
    MOEPLAN_SHARED(float, sums, kRows * kColumns);            // [kRows, kBlocks, kAcross · N]
    const std::int64_t inputs = kBlocks * rows.width, begin = static_cast<std::int64_t>(blockIdx.x) * kAcross * N;
    const std::int64_t c = begin + threadIdx.x * N;
    each_group(rows, [&](int group, std::int64_t first, std::int64_t last) {
        float sum[kBlocks][N] = {};
        for (std::int64_t row = first + threadIdx.y; c < rows.width && row < last; row += kRows) {
            float in[kBlocks][N];
            load_biased<N>(in, x + row * inputs + c, bias + group * inputs + c, rows.width);
            const Pack<T, N> up = load_pack<N>(dy + row * rows.width + c);
#pragma unroll
            for (int i = 0; i < N; ++i) {
                const float d = to_float(up.value[i]);
                if constexpr (kKind == ActivationKind::swiglu) {
                    const SwigluGradient g = swiglu_gradient(in[0][i], in[1][i], d);
                    in[0][i] = g.dgate;
                    in[1][i] = g.dup;
                } else if constexpr (kKind == ActivationKind::gelu) {
                    in[0][i] = GeluGradient{}(in[0][i], d);
                } else {
                    in[0][i] = ReluGradient{}(in[0][i], d);
                }
            }
#pragma unroll
            for (int b = 0; b < kBlocks; ++b) {
                Pack<T, N> out;
#pragma unroll
                for (int i = 0; i < N; ++i) {
                    out.value[i] = from_float<T>(in[b][i]);
                    sum[b][i] += in[b][i];
                }
                store_pack(dx + row * inputs + b * rows.width + c, out);
            }
        }
        __syncthreads();                                      // the sums of the group before have been read
#pragma unroll
        for (int b = 0; b < kBlocks; ++b)
#pragma unroll
            for (int i = 0; i < N; ++i) sums[threadIdx.y * kColumns + b * kAcross * N + threadIdx.x * N + i] = sum[b][i];
        __syncthreads();
        float* const to = partial + (static_cast<std::int64_t>(blockIdx.y) + group) * inputs;
        for (int i = threadIdx.y * kAcross + threadIdx.x; i < kColumns; i += kThreads) {
            const std::int64_t column = begin + i % (kAcross * N);
            if (column >= rows.width) continue;
            float total = 0;
            for (int r = 0; r < kRows; ++r) total += sums[r * kColumns + i];
            to[i / (kAcross * N) * rows.width + column] = total;
        }
    });
}

/// out[group, column] += Σ over the runs that have rows of the group.
__global__ void __launch_bounds__(256) add_runs_kernel(const float* __restrict__ partial, float* __restrict__ out, Rows rows, std::int64_t inputs) {
    const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * 256 + threadIdx.x, group = blockIdx.y;
    if (c >= inputs) return;
    const std::int64_t first = rows.offsets ? rows.offsets[group] : 0, last = rows.offsets ? rows.offsets[group + 1] : rows.rows;
    if (first == last) return;
    float sum = 0;
    for (std::int64_t run = first / rows.run; run <= (last - 1) / rows.run; ++run) sum += partial[(run + group) * inputs + c];
    out[group * inputs + c] += sum;
}

/// Some 4096 blocks of at least 32 rows, a multiple of the 8 that a block takes at once.
Status runs_of(const char* kernel, std::int64_t rows, std::int64_t column_blocks, std::int64_t num_groups, std::int64_t* run) {
    if (num_groups > 65535) return unsupported(kernel, "more than 65535 groups");
    *run = std::max<std::int64_t>(32, ceil_div(ceil_div(rows * column_blocks, 4096), kRows) * kRows);
    return {};
}

/// f(std::integral_constant of the kind).
template <typename F>
Status with_kind(ActivationKind kind, F f) {
    using enum ActivationKind;
    if (kind == swiglu) return f(std::integral_constant<ActivationKind, swiglu>{});
    if (kind == gelu) return f(std::integral_constant<ActivationKind, gelu>{});
    return f(std::integral_constant<ActivationKind, relu>{});
}

}  // namespace

Status expert_activation_forward(const ExpertActivationForward* a, Stream_* stream) {
    if (!a->bias) {
        const ActivationForward plain{a->x, a->y, a->rows, a->width, a->format};
        if (a->kind == ActivationKind::swiglu) return swiglu_forward(&plain, stream);
        return a->kind == ActivationKind::gelu ? gelu_forward(&plain, stream) : relu_forward(&plain, stream);
    }
    if (a->rows == 0 || a->width == 0 || a->num_groups == 0) return {};
    const bool aligned = aligned_to_16(a->x) && aligned_to_16(a->bias) && aligned_to_16(a->y);
    return with_packs("expert_activation_forward", a->format, a->width, aligned, [&](auto* type, auto pack) -> Status {
        using T = std::remove_pointer_t<decltype(type)>;
        constexpr int N = decltype(pack)::value;
        return with_kind(a->kind, [&](auto kind) -> Status {
            constexpr ActivationKind kKind = decltype(kind)::value;
            const std::int64_t columns = ceil_div(a->width, kAcross * N);
            Rows rows{a->offsets, static_cast<int>(a->num_groups), a->rows, a->width, 0};
            MOEPLAN_TRY(runs_of("expert_activation_forward", a->rows, columns, a->num_groups, &rows.run));
            MOEPLAN_LAUNCH((expert_activation_forward_kernel<kKind, T, N>), dim3(columns, ceil_div(a->rows, rows.run)), dim3(kAcross, kRows), 0,
                           as_stream(stream), static_cast<const T*>(a->x), static_cast<const T*>(a->bias), static_cast<T*>(a->y), rows);
            return {};
        });
    });
}

Status expert_activation_backward(const ExpertActivationBackward* a, Stream_* stream_) {
    if (!a->bias) {
        const ActivationBackward plain{a->x, a->dy, a->dx, a->rows, a->width, a->format};
        if (a->kind == ActivationKind::swiglu) return swiglu_backward(&plain, stream_);
        return a->kind == ActivationKind::gelu ? gelu_backward(&plain, stream_) : relu_backward(&plain, stream_);
    }
    if (a->rows == 0 || a->width == 0 || a->num_groups == 0) return {};
    const cudaStream_t stream = as_stream(stream_);
    const bool aligned = aligned_to_16(a->x) && aligned_to_16(a->bias) && aligned_to_16(a->dy) && aligned_to_16(a->dx);
    return with_packs("expert_activation_backward", a->format, a->width, aligned, [&](auto* type, auto pack) -> Status {
        using T = std::remove_pointer_t<decltype(type)>;
        constexpr int N = decltype(pack)::value > 4 ? 4 : decltype(pack)::value;      // the sums of 8 columns, twice, leave too few registers
        return with_kind(a->kind, [&](auto kind) -> Status {
            constexpr ActivationKind kKind = decltype(kind)::value;
            const std::int64_t columns = ceil_div(a->width, kAcross * N), inputs = kBlocksOf<kKind> * a->width;
            Rows rows{a->offsets, static_cast<int>(a->num_groups), a->rows, a->width, 0};
            MOEPLAN_TRY(runs_of("expert_activation_backward", a->rows, columns, a->num_groups, &rows.run));
            const std::int64_t runs = ceil_div(a->rows, rows.run);
            void* partial = nullptr;
            MOEPLAN_TRY(scratch(stream, sizeof(float) * (runs + a->num_groups - 1) * inputs, &partial));
            MOEPLAN_LAUNCH((expert_activation_backward_kernel<kKind, T, N>), dim3(columns, runs), dim3(kAcross, kRows), 0, stream,
                           static_cast<const T*>(a->x), static_cast<const T*>(a->bias), static_cast<const T*>(a->dy), static_cast<T*>(a->dx),
                           static_cast<float*>(partial), rows);
            MOEPLAN_LAUNCH(add_runs_kernel, dim3(ceil_div(inputs, 256), a->num_groups), dim3(256), 0, stream, static_cast<const float*>(partial),
                           static_cast<float*>(a->dbias), rows, inputs);
            return {};
        });
    });
}

}  // namespace moeplan::cuda
