// Cross-entropy over the vocabulary, and its gradient.
//
// Shapes     logits, dlogits [num_tokens, vocab_size]; targets [num_tokens] (−1: no loss); loss, log_sum_exp [num_tokens] f32
// Mapping    forward: a block a token, running maximum and sum a thread, then over the block; backward: 16 bytes a thread
// Result     deterministic
// Moves      forward 1 value a logit, backward 2; dlogits may overwrite logits

#include "kernels/cuda/device_math.hpp"
#include "kernels/cuda/kernels.hpp"

namespace moeplan::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T, int N>
__global__ void __launch_bounds__(kThreads) cross_entropy_forward_kernel(const T* __restrict__ logits, const std::int32_t* __restrict__ targets,
                                                                         float* __restrict__ loss, float* __restrict__ log_sum_exp,
                                                                         std::int64_t vocab_size) {
    MOEPLAN_SHARED(float, per_warp, kWarp);
    const std::int64_t token = blockIdx.x;
    const T* const row = logits + token * vocab_size;
    float largest = -INFINITY, sum = 0;
    for (std::int64_t c = threadIdx.x * N; c < vocab_size; c += kThreads * N) {
        const Pack<T, N> v = load_pack<N>(row + c);
        float most = to_float(v.value[0]);
#pragma unroll
        for (int i = 1; i < N; ++i) most = fmaxf(most, to_float(v.value[i]));
        if (most > largest) {                                 // the first time: exp(−inf) = 0
            sum *= expf(largest - most);
            largest = most;
        }
#pragma unroll
        for (int i = 0; i < N; ++i) sum += largest == -INFINITY ? 0.0f : expf(to_float(v.value[i]) - largest);
    }
    const float all = block_max(largest, per_warp);
    const float total = block_sum(largest == -INFINITY ? 0.0f : sum * expf(largest - all), per_warp);
    if (threadIdx.x == 0) {
        const float result = all + logf(total);
        const std::int32_t target = targets[token];
        log_sum_exp[token] = result;
        loss[token] = target < 0 ? 0.0f : result - to_float(row[target]);
    }
}

template <typename T, int N>
__global__ void __launch_bounds__(kThreads) cross_entropy_backward_kernel(const T* logits, const float* __restrict__ log_sum_exp,
                                                                          const std::int32_t* __restrict__ targets, T* dlogits,
                                                                          std::int64_t vocab_size, float scale) {
    const std::int64_t token = blockIdx.x;
    const std::int32_t target = targets[token];
    const float sum = target >= 0 ? log_sum_exp[token] : 0.0f;
    for (std::int64_t c = (static_cast<std::int64_t>(blockIdx.y) * kThreads + threadIdx.x) * N; c < vocab_size;
         c += static_cast<std::int64_t>(gridDim.y) * kThreads * N) {
        Pack<T, N> v{};
        if (target >= 0) {
            v = load_pack<N>(logits + token * vocab_size + c);
#pragma unroll
            for (int i = 0; i < N; ++i)
                v.value[i] = from_float<T>(scale * (expf(to_float(v.value[i]) - sum) - (c + i == target ? 1.0f : 0.0f)));
        } else {
#pragma unroll
            for (int i = 0; i < N; ++i) v.value[i] = from_float<T>(0.0f);
        }
        store_pack(dlogits + token * vocab_size + c, v);
    }
}

}  // namespace

Status cross_entropy_forward(const CrossEntropyForward* a, Stream_* stream) {
    if (a->num_tokens == 0 || a->vocab_size == 0) return {};
    if (!fits_grid(a->num_tokens)) return unsupported("cross_entropy_forward", "more than 2^31 tokens");
    return with_packs("cross_entropy_forward", a->format, a->vocab_size, aligned_to_16(a->logits), [&](auto* type, auto pack) -> Status {
        using T = std::remove_pointer_t<decltype(type)>;
        constexpr int N = decltype(pack)::value;
        MOEPLAN_LAUNCH((cross_entropy_forward_kernel<T, N>), dim3(a->num_tokens), dim3(kThreads), 0, as_stream(stream),
                       static_cast<const T*>(a->logits), a->targets, static_cast<float*>(a->loss), static_cast<float*>(a->log_sum_exp), a->vocab_size);
        return {};
    });
}

Status cross_entropy_backward(const CrossEntropyBackward* a, Stream_* stream) {
    if (a->num_tokens == 0 || a->vocab_size == 0) return {};
    if (!fits_grid(a->num_tokens)) return unsupported("cross_entropy_backward", "more than 2^31 tokens");
    const bool aligned = aligned_to_16(a->logits) && aligned_to_16(a->dlogits);
    return with_packs("cross_entropy_backward", a->format, a->vocab_size, aligned, [&](auto* type, auto pack) -> Status {
        using T = std::remove_pointer_t<decltype(type)>;
        constexpr int N = decltype(pack)::value;
        const std::int64_t along = std::min<std::int64_t>(ceil_div(a->vocab_size, N * kThreads), 64);
        MOEPLAN_LAUNCH((cross_entropy_backward_kernel<T, N>), dim3(a->num_tokens, along), dim3(kThreads), 0, as_stream(stream),
                       static_cast<const T*>(a->logits), static_cast<const float*>(a->log_sum_exp), a->targets, static_cast<T*>(a->dlogits),
                       a->vocab_size, static_cast<float>(a->scale));
        return {};
    });
}

}  // namespace moeplan::cuda
