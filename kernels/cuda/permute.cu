// Moving rows to their experts and back.
//
// Shapes     x [units, width], rows [rows, width]; row_of_slot, gates [units, top_k]; slot_of_row [rows]
// Mapping    a block row of threads (threadIdx.y) takes one row, its threads 16 bytes each; dgate: a warp a slot
// Result     deterministic: a unit's choices are added in order, without atomics
// Moves      permute forward 2·rows·width values; combine (top_k + 1)·units·width; combine backward 3·rows·width

#include "kernels/cuda/device_math.hpp"
#include "kernels/cuda/kernels.hpp"

namespace moeplan::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T, int N>
__global__ void __launch_bounds__(kThreads) permute_forward_kernel(const T* __restrict__ x, const std::int32_t* __restrict__ slot_of_row,
                                                                   T* __restrict__ y, std::int64_t rows, std::int64_t width, std::int32_t top_k) {
    const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
    if (row >= rows) return;
    const std::int32_t slot = slot_of_row[row];
    const std::int64_t from = slot >= 0 ? slot / top_k * width : 0;
    for (std::int64_t c = threadIdx.x * N; c < width; c += blockDim.x * N) {
        Pack<T, N> v{};
        if (slot >= 0) v = load_pack<N>(x + from + c);
        store_pack(y + row * width + c, v);
    }
}

/// y[unit] (+)= Σ over choices, in order, of gate · x[row].
template <typename T, int N>
__global__ void __launch_bounds__(kThreads, 4) gather_sum_kernel(const T* __restrict__ x, const std::int32_t* __restrict__ row_of_slot,
                                                              const float* __restrict__ gates, T* __restrict__ y, std::int64_t units,
                                                              std::int64_t width, int top_k, bool accumulate) {
    const std::int64_t unit = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
    if (unit >= units) return;
    for (std::int64_t c = threadIdx.x * N; c < width; c += blockDim.x * N) {
        float sum[N];
        Pack<T, N> out{};
        if (accumulate) out = load_pack<N>(y + unit * width + c);
#pragma unroll
        for (int i = 0; i < N; ++i) sum[i] = accumulate ? to_float(out.value[i]) : 0.0f;
        for (int choice = 0; choice < top_k; ++choice) {
            const std::int32_t row = row_of_slot[unit * top_k + choice];
            if (row < 0) continue;
            const float gate = gates ? gates[unit * top_k + choice] : 1.0f;
            const Pack<T, N> v = load_pack<N>(x + row * width + c);
#pragma unroll
            for (int i = 0; i < N; ++i) sum[i] += gate * to_float(v.value[i]);
        }
#pragma unroll
        for (int i = 0; i < N; ++i) out.value[i] = from_float<T>(sum[i]);
        store_pack(y + unit * width + c, out);
    }
}

template <typename T, int N>
__global__ void __launch_bounds__(kThreads) unpermute_backward_kernel(const T* __restrict__ x, const T* __restrict__ dy,
                                                                      const std::int32_t* __restrict__ row_of_slot,
                                                                      const float* __restrict__ gates, T* __restrict__ dx,
                                                                      float* __restrict__ dgates, std::int64_t slots, std::int64_t width, int top_k) {
    const std::int64_t slot = static_cast<std::int64_t>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
    if (slot >= slots) return;
    const int lane = threadIdx.x % kWarp;
    const std::int32_t row = row_of_slot[slot];
    if (row < 0) {
        if (dgates && lane == 0) dgates[slot] = 0;
        return;
    }
    const float gate = gates ? gates[slot] : 1.0f;
    const T* const up = dy + slot / top_k * width;
    float dot = 0;
    for (std::int64_t c = lane * N; c < width; c += kWarp * N) {
        const Pack<T, N> d = load_pack<N>(up + c);
        if (dgates) {
            const Pack<T, N> v = load_pack<N>(x + row * width + c);
#pragma unroll
            for (int i = 0; i < N; ++i) dot += to_float(d.value[i]) * to_float(v.value[i]);
        }
        Pack<T, N> out;
#pragma unroll
        for (int i = 0; i < N; ++i) out.value[i] = from_float<T>(gate * to_float(d.value[i]));
        store_pack(dx + row * width + c, out);
    }
    if (!dgates) return;
    dot = warp_sum(dot);
    if (lane == 0) dgates[slot] = dot;
}

/// Threads along a row of so many packs, and the rows of a block beside each other.
dim3 block_for_rows(std::int64_t packs) {
    const unsigned along = static_cast<unsigned>(threads_for_row(packs));
    return dim3(along, kThreads / along);
}

Status gather_sum(const char* kernel, const void* x, const std::int32_t* row_of_slot, const void* gates, void* y, std::int64_t units,
                  std::int64_t width, std::int64_t top_k, bool accumulate, NumberFormat format, cudaStream_t stream) {
    if (units == 0 || width == 0) return {};
    return with_packs(kernel, format, width, aligned_to_16(x) && aligned_to_16(y), [&](auto* type, auto pack) -> Status {
        using T = std::remove_pointer_t<decltype(type)>;
        constexpr int N = decltype(pack)::value;
        const dim3 block = block_for_rows(width / N);
        MOEPLAN_LAUNCH((gather_sum_kernel<T, N>), dim3(ceil_div(units, block.y)), block, 0, stream, static_cast<const T*>(x), row_of_slot,
                       static_cast<const float*>(gates), static_cast<T*>(y), units, width, static_cast<int>(top_k), accumulate);
        return {};
    });
}

}  // namespace

Status permute_forward(const PermuteForward* a, Stream_* stream) {
    if (a->rows == 0 || a->width == 0) return {};
    return with_packs("permute_forward", a->format, a->width, aligned_to_16(a->x) && aligned_to_16(a->y), [&](auto* type, auto pack) -> Status {
        using T = std::remove_pointer_t<decltype(type)>;
        constexpr int N = decltype(pack)::value;
        const dim3 block = block_for_rows(a->width / N);
        MOEPLAN_LAUNCH((permute_forward_kernel<T, N>), dim3(ceil_div(a->rows, block.y)), block, 0, as_stream(stream), static_cast<const T*>(a->x),
                       a->slot_of_row, static_cast<T*>(a->y), a->rows, a->width, static_cast<std::int32_t>(a->top_k));
        return {};
    });
}

Status permute_backward(const PermuteBackward* a, Stream_* stream) {
    return gather_sum("permute_backward", a->dy, a->row_of_slot, nullptr, a->dx, a->units, a->width, a->top_k, a->accumulate, a->format,
                      as_stream(stream));
}

Status unpermute_forward(const UnpermuteForward* a, Stream_* stream) {
    return gather_sum("unpermute_forward", a->x, a->row_of_slot, a->gates, a->y, a->units, a->width, a->top_k, a->accumulate, a->format,
                      as_stream(stream));
}

Status unpermute_backward(const UnpermuteBackward* a, Stream_* stream) {
    const std::int64_t slots = a->units * a->top_k;
    if (slots == 0) return {};
    return with_packs("unpermute_backward", a->format, a->width, aligned_to_16(a->x) && aligned_to_16(a->dy) && aligned_to_16(a->dx),
                      [&](auto* type, auto pack) -> Status {
                          using T = std::remove_pointer_t<decltype(type)>;
                          constexpr int N = decltype(pack)::value;
                          MOEPLAN_LAUNCH((unpermute_backward_kernel<T, N>), dim3(ceil_div(slots, kThreads / kWarp)), dim3(kThreads), 0,
                                         as_stream(stream), static_cast<const T*>(a->x), static_cast<const T*>(a->dy), a->row_of_slot,
                                         static_cast<const float*>(a->gates), static_cast<T*>(a->dx), static_cast<float*>(a->dgates), slots,
                                         a->width, static_cast<int>(a->top_k));
                          return {};
                      });
}

}  // namespace moeplan::cuda
