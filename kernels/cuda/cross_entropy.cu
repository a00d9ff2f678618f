// Cross-entropy over the vocabulary, and its gradient.
//
// Shapes     logits, dlogits [num_tokens, vocab_size]; targets [num_tokens] (−1: no loss); loss, log_sum_exp [num_tokens] f32
// Mapping    forward, and both in place: a block a token, running maximum and sum a thread, then over the block; backward: 16 bytes
//            a thread
// Result     deterministic
// Moves      forward 1 value a logit, backward 2, in place 2 (a row of 50304 bf16 logits stays in the L2 cache between its readings)

#include "kernels/cuda/device_math.hpp"
#include "kernels/cuda/kernels.hpp"

namespace moeplan::cuda {
namespace {

constexpr int kThreads = 256;

/// ln Σ exp over a row, the same on every thread; each thread passes its packs on to `look` as it reads them.
/// @param per_warp  shared, 2·kWarp values. All threads have passed a barrier after their looks when it returns
template <int N, typename T, typename F>
__device__ __forceinline__ float log_sum_exp_of(const T* row, std::int64_t vocab_size, float* per_warp, F look) {
    float largest = -INFINITY, sum = 0;
    for (std::int64_t c = threadIdx.x * N; c < vocab_size; c += kThreads * N) {
        const Pack<T, N> v = load_pack<N>(row + c);
        look(c, v);
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
    return all + logf(block_sum(largest == -INFINITY ? 0.0f : sum * expf(largest - all), per_warp + kWarp));
}

template <typename T, int N>
__global__ void __launch_bounds__(kThreads) cross_entropy_forward_kernel(const T* __restrict__ logits, const std::int32_t* __restrict__ targets,
                                                                         float* __restrict__ loss, float* __restrict__ log_sum_exp,
                                                                         std::int64_t vocab_size) {
    MOEPLAN_SHARED(float, per_warp, 2 * kWarp);
    const std::int64_t token = blockIdx.x;
    const T* const row = logits + token * vocab_size;
    const float result = log_sum_exp_of<N>(row, vocab_size, per_warp, [](std::int64_t, const Pack<T, N>&) {});
    if (threadIdx.x != 0) return;
    const std::int32_t target = targets[token];
    log_sum_exp[token] = result;
    loss[token] = target < 0 ? 0.0f : result - to_float(row[target]);
}

/// scale · (softmax − one-hot) of the pack at column c.
template <typename T, int N>
__device__ __forceinline__ Pack<T, N> gradient_of(Pack<T, N> v, std::int64_t c, float log_sum_exp, std::int64_t target, float scale) {
#pragma unroll
    for (int i = 0; i < N; ++i)
        v.value[i] = from_float<T>(scale * (expf(to_float(v.value[i]) - log_sum_exp) - (c + i == target ? 1.0f : 0.0f)));
    return v;
}

/// The second reading of a row finds it in the L2 cache. No logit is read by another thread than the one that overwrites it: the
/// thread that meets the target's keeps it for the loss.
template <typename T, int N>
__global__ void __launch_bounds__(kThreads) cross_entropy_in_place_kernel(T* __restrict__ logits, const std::int32_t* __restrict__ targets,
                                                                          float* __restrict__ loss, std::int64_t vocab_size, float scale) {
    MOEPLAN_SHARED(float, per_warp, 2 * kWarp);
    MOEPLAN_SHARED(float, target_logit, 1);
    const std::int64_t token = blockIdx.x;
    T* const row = logits + token * vocab_size;
    const std::int64_t target = targets[token];
    if (target < 0) {                                         // the whole block
        if (threadIdx.x == 0) loss[token] = 0;
        for (std::int64_t c = threadIdx.x * N; c < vocab_size; c += kThreads * N) {
            Pack<T, N> zeros{};
#pragma unroll
            for (int i = 0; i < N; ++i) zeros.value[i] = from_float<T>(0.0f);
            store_pack(row + c, zeros);
        }
        return;
    }
    const float sum = log_sum_exp_of<N>(row, vocab_size, per_warp, [&](std::int64_t c, const Pack<T, N>& v) {
#pragma unroll
        for (int i = 0; i < N; ++i)
            if (c + i == target) target_logit[0] = to_float(v.value[i]);
    });
    if (threadIdx.x == 0) loss[token] = sum - target_logit[0];
    for (std::int64_t c = threadIdx.x * N; c < vocab_size; c += kThreads * N)
        store_pack(row + c, gradient_of<T, N>(load_pack<N>(row + c), c, sum, target, scale));
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
            v = gradient_of<T, N>(load_pack<N>(logits + token * vocab_size + c), c, sum, target, scale);
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

Status cross_entropy_in_place(const CrossEntropyInPlace* a, Stream_* stream) {
    if (a->num_tokens == 0 || a->vocab_size == 0) return {};
    if (!fits_grid(a->num_tokens)) return unsupported("cross_entropy_in_place", "more than 2^31 tokens");
    return with_packs("cross_entropy_in_place", a->format, a->vocab_size, aligned_to_16(a->logits), [&](auto* type, auto pack) -> Status {
        using T = std::remove_pointer_t<decltype(type)>;
        constexpr int N = decltype(pack)::value;
        MOEPLAN_LAUNCH((cross_entropy_in_place_kernel<T, N>), dim3(a->num_tokens), dim3(kThreads), 0, as_stream(stream),
                       static_cast<T*>(a->logits), a->targets, static_cast<float*>(a->loss), a->vocab_size, static_cast<float>(a->scale));
        return {};
    });
}

}  // namespace moeplan::cuda
