// Token embedding and its gradient.
//
// Shapes     tokens [num_tokens]; table [vocab_size, hidden_size]; y, dy [num_tokens, hidden_size]; dtable f32
// Mapping    forward: a row of threads a token. Backward: a block owns 256 columns and every 64th row of the table; it walks
//            all tokens in order, 256 at a time through shared memory, and adds those of its rows
// Result     deterministic: a row of the table takes its tokens in their order, without atomics
// Moves      forward 2·num_tokens·hidden_size values; backward 3 (dy; the row read and written)

#include "kernels/cuda/device_math.hpp"
#include "kernels/cuda/kernels.hpp"

namespace moeplan::cuda {
namespace {

constexpr int kThreads = 256, kShares = 64;

template <typename T, int N>
__global__ void __launch_bounds__(kThreads) embedding_forward_kernel(const std::int32_t* __restrict__ tokens, const T* __restrict__ table,
                                                                     T* __restrict__ y, std::int64_t num_tokens, std::int64_t hidden_size) {
    const std::int64_t t = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
    if (t >= num_tokens) return;
    const T* const row = table + tokens[t] * hidden_size;
    for (std::int64_t c = threadIdx.x * N; c < hidden_size; c += blockDim.x * N) store_pack(y + t * hidden_size + c, load_pack<N>(row + c));
}

template <typename T>
__global__ void __launch_bounds__(kThreads) embedding_backward_kernel(const std::int32_t* __restrict__ tokens, const T* __restrict__ dy,
                                                                      float* __restrict__ dtable, std::int64_t num_tokens, std::int64_t hidden_size) {
    MOEPLAN_SHARED(std::int32_t, mine, kThreads);             // tokens of this block's rows, in order, and their places
    MOEPLAN_SHARED(std::int32_t, place, kThreads);
    MOEPLAN_SHARED(std::int32_t, warp_count, kThreads / kWarp);
    const std::int64_t c = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    for (std::int64_t begin = 0; begin < num_tokens; begin += kThreads) {
        const std::int64_t t = begin + threadIdx.x;
        const std::int32_t token = t < num_tokens ? tokens[t] : -1;
        const bool take = token >= 0 && token % kShares == static_cast<int>(blockIdx.y);
        const unsigned taken = __ballot_sync(kAllLanes, take);
        if (lane == 0) warp_count[warp] = __popc(taken);
        __syncthreads();
        int at = __popc(taken & ((1u << lane) - 1)), count = 0;
        for (int w = 0; w < kThreads / kWarp; ++w) {
            if (w == warp) at += count;
            count += warp_count[w];
        }
        if (take) {
            mine[at] = token;
            place[at] = static_cast<std::int32_t>(threadIdx.x);
        }
        __syncthreads();
        if (c < hidden_size)
            for (int i = 0; i < count; ++i) dtable[mine[i] * hidden_size + c] += to_float(dy[(begin + place[i]) * hidden_size + c]);
    }
}

}  // namespace

Status embedding_forward(const EmbeddingForward* a, Stream_* stream) {
    if (a->num_tokens == 0 || a->hidden_size == 0) return {};
    return with_packs("embedding_forward", a->format, a->hidden_size, aligned_to_16(a->table) && aligned_to_16(a->y),
                      [&](auto* type, auto pack) -> Status {
                          using T = std::remove_pointer_t<decltype(type)>;
                          constexpr int N = decltype(pack)::value;
                          const unsigned along = static_cast<unsigned>(threads_for_row(a->hidden_size / N));
                          const dim3 block(along, kThreads / along);
                          MOEPLAN_LAUNCH((embedding_forward_kernel<T, N>), dim3(ceil_div(a->num_tokens, block.y)), block, 0, as_stream(stream),
                                         a->tokens, static_cast<const T*>(a->table), static_cast<T*>(a->y), a->num_tokens, a->hidden_size);
                          return {};
                      });
}

Status embedding_backward(const EmbeddingBackward* a, Stream_* stream) {
    if (a->num_tokens == 0 || a->hidden_size == 0) return {};
    return with_format("embedding_backward", a->format, [&](auto* type) -> Status {
        using T = std::remove_pointer_t<decltype(type)>;
        MOEPLAN_LAUNCH((embedding_backward_kernel<T>), dim3(ceil_div(a->hidden_size, kThreads), kShares), dim3(kThreads), 0, as_stream(stream),
                       a->tokens, static_cast<const T*>(a->dy), static_cast<float*>(a->dtable), a->num_tokens, a->hidden_size);
        return {};
    });
}

}  // namespace moeplan::cuda
