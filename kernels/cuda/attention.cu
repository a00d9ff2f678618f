// Causal attention within documents: batched products with a masked softmax between them.
//
// Shapes     q [batch·sequence, num_heads, head_size], k, v [batch·sequence, num_kv_heads, head_size], rows `stride` apart
// Mapping    strips of at most 1024 queries against the keys up to their end, so that about half of the masked products is
//            left out; as many heads at once as 1 GiB of scores allows; softmax: a block a query of a head
// Result     deterministic
// Moves      6 bytes a (query, key) pair and direction beside the products: scores are stored. A fused kernel would not;
//            it comes when a GPU has shown what that costs
// Work       4·head_size flops a pair forward, 10·head_size backward

#include "kernels/cuda/blas.hpp"
#include "kernels/cuda/device_math.hpp"
#include "kernels/cuda/kernels.hpp"

namespace moeplan::cuda {
namespace {

constexpr std::int64_t kStrip = 1024;
constexpr std::size_t kScoreBudget = std::size_t{1} << 30;    // bytes

/// First key that query i of a sequence may see: where its document begins, or the window. Documents ascend.
__device__ __forceinline__ int first_key(const std::int32_t* documents, int i, int window) {
    int first = window > 0 && i - window + 1 > 0 ? i - window + 1 : 0;
    if (documents) {
        int low = first, high = i;                            // the first key in [low, high] of the query's document
        const std::int32_t document = documents[i];
        while (low < high) {
            const int middle = (low + high) / 2;
            if (documents[middle] == document)
                high = middle;
            else
                low = middle + 1;
        }
        first = low;
    }
    return first;
}

struct Strip {
    int first_query, num_queries, first_column, num_columns, ld;     ///< columns are keys first_column …
    int sequence, window;
};

/// scores → probabilities, and the logarithm of each row's sum. Grid: queries of the strip, heads.
template <typename T>
__global__ void __launch_bounds__(256) masked_softmax_kernel(const float* __restrict__ scores, T* __restrict__ probabilities,
                                                             float* __restrict__ log_sum_exp, const std::int32_t* __restrict__ documents, Strip strip) {
    MOEPLAN_SHARED(float, per_warp, 2 * kWarp);
    const int query = strip.first_query + blockIdx.x, from = first_key(documents, query, strip.window) - strip.first_column;
    const int to = query + 1 - strip.first_column;
    const std::int64_t at = (static_cast<std::int64_t>(blockIdx.y) * strip.num_queries + blockIdx.x) * strip.ld;
    float largest = -INFINITY;
    for (int j = from + threadIdx.x; j < to; j += blockDim.x) largest = fmaxf(largest, scores[at + j]);
    largest = block_max(largest, per_warp);
    float sum = 0;
    for (int j = from + threadIdx.x; j < to; j += blockDim.x) sum += expf(scores[at + j] - largest);
    const float result = largest + logf(block_sum(sum, per_warp + kWarp));
    if (threadIdx.x == 0) log_sum_exp[static_cast<std::int64_t>(blockIdx.y) * strip.sequence + query] = result;
    for (int j = threadIdx.x; j < strip.ld; j += blockDim.x)
        probabilities[at + j] = from_float<T>(j >= from && j < to ? expf(scores[at + j] - result) : 0.0f);
}

/// scores, dprobabilities → probabilities, dscores = P ∘ (dP − rowsum(dO ∘ O)). Grid: queries of the strip, heads.
template <typename T>
__global__ void __launch_bounds__(256) masked_softmax_backward_kernel(const float* __restrict__ scores, const float* __restrict__ dprobabilities,
                                                                      const float* __restrict__ log_sum_exp, const T* __restrict__ out,
                                                                      const T* __restrict__ dout, T* __restrict__ probabilities,
                                                                      T* __restrict__ dscores, const std::int32_t* __restrict__ documents,
                                                                      std::int64_t out_stride, int head_size, Strip strip) {
    MOEPLAN_SHARED(float, per_warp, kWarp);
    const int query = strip.first_query + blockIdx.x, from = first_key(documents, query, strip.window) - strip.first_column;
    const int to = query + 1 - strip.first_column;
    const std::int64_t at = (static_cast<std::int64_t>(blockIdx.y) * strip.num_queries + blockIdx.x) * strip.ld;
    const std::int64_t row = query * out_stride + static_cast<std::int64_t>(blockIdx.y) * head_size;
    float delta = 0;
    for (int c = threadIdx.x; c < head_size; c += blockDim.x) delta += to_float(out[row + c]) * to_float(dout[row + c]);
    delta = block_sum(delta, per_warp);
    const float sum = log_sum_exp[static_cast<std::int64_t>(blockIdx.y) * strip.sequence + query];
    for (int j = threadIdx.x; j < strip.ld; j += blockDim.x) {
        const bool seen = j >= from && j < to;
        const float p = seen ? expf(scores[at + j] - sum) : 0.0f;
        probabilities[at + j] = from_float<T>(p);
        dscores[at + j] = from_float<T>(seen ? p * (dprobabilities[at + j] - delta) : 0.0f);
    }
}

/// out[token, column] = in[token, column], `in` dense f32, `out` rows `stride` apart.
template <typename T>
__global__ void __launch_bounds__(256) store_rows_kernel(const float* __restrict__ in, T* __restrict__ out, std::int64_t rows, std::int64_t width,
                                                         std::int64_t stride) {
    const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * 256 + threadIdx.x;
    if (i < rows * width) out[i / width * stride + i % width] = from_float<T>(in[i]);
}

Status check_shape(const char* kernel, const AttentionForward& a) {
    if (a.num_kv_heads <= 0 || a.num_heads % a.num_kv_heads != 0) return unsupported(kernel, "num_heads is not a multiple of num_kv_heads");
    if (a.sequence > (1 << 24)) return unsupported(kernel, "a sequence of more than 2^24 tokens");
    if (a.num_heads > 65535) return unsupported(kernel, "more than 65535 heads");
    return {};
}

/// body(strip) for strips of queries; keys before a window are left out.
template <typename F>
Status each_strip(const AttentionForward& a, F body) {
    for (std::int64_t begin = 0; begin < a.sequence; begin += kStrip) {
        const std::int64_t end = std::min(begin + kStrip, a.sequence);
        const std::int64_t first = a.window > 0 ? std::max<std::int64_t>(0, begin - a.window + 1) / 8 * 8 : 0;
        const std::int64_t columns = end - first;
        MOEPLAN_TRY(body(Strip{static_cast<int>(begin), static_cast<int>(end - begin), static_cast<int>(first), static_cast<int>(columns),
                               static_cast<int>(ceil_div(columns, 8) * 8), static_cast<int>(a.sequence), static_cast<int>(a.window)}));
    }
    return {};
}

/// Key heads whose scores are held at once.
std::int64_t heads_at_once(const AttentionForward& a, std::int64_t bytes_a_score) {
    const std::int64_t share = a.num_heads / a.num_kv_heads;
    const std::int64_t scores = std::min(kStrip, a.sequence) * ceil_div(a.sequence, 8) * 8 * share * bytes_a_score;
    return std::clamp<std::int64_t>(static_cast<std::int64_t>(kScoreBudget) / std::max<std::int64_t>(1, scores), 1, a.num_kv_heads);
}

template <typename T>
const T* at(const void* p, std::int64_t elements) { return static_cast<const T*>(p) + elements; }
template <typename T>
T* at(void* p, std::int64_t elements) { return static_cast<T*>(p) + elements; }

/// Hands out parts of one buffer, each aligned to 256 bytes.
struct Parts {
    char* base = nullptr;
    std::size_t used = 0;
    template <typename T>
    T* take(std::int64_t count) {
        T* part = reinterpret_cast<T*>(base + used);
        used += (count * sizeof(T) + 255) / 256 * 256;
        return part;
    }
};

}  // namespace

Status attention_forward(const AttentionForward* call, Stream_* stream_) {
    const AttentionForward& a = *call;
    const cudaStream_t stream = as_stream(stream_);
    if (a.batch == 0 || a.sequence == 0 || a.num_heads == 0) return {};
    MOEPLAN_TRY(check_shape("attention_forward", a));
    return with_format("attention_forward", a.format, [&](auto* type) -> Status {
        using T = std::remove_pointer_t<decltype(type)>;
        const std::int64_t share = a.num_heads / a.num_kv_heads, size = a.head_size, out_stride = a.num_heads * size;
        const std::int64_t some = heads_at_once(a, sizeof(float) + sizeof(T));
        const std::int64_t most = std::min(kStrip, a.sequence) * ceil_div(a.sequence, 8) * 8 * share * some;
        Parts parts;
        parts.take<float>(most), parts.take<T>(most);
        void* memory = nullptr;
        MOEPLAN_TRY(scratch(stream, parts.used, &memory));
        parts = {static_cast<char*>(memory)};
        float* const scores = parts.take<float>(most);
        T* const probabilities = parts.take<T>(most);
        for (std::int64_t b = 0; b < a.batch; ++b)
            for (std::int64_t kv = 0; kv < a.num_kv_heads; kv += some) {
                const std::int64_t count = std::min(some, a.num_kv_heads - kv), head = kv * share, token = b * a.sequence;
                MOEPLAN_TRY(each_strip(a, [&](Strip s) -> Status {
                    const std::int64_t one = std::int64_t{s.num_queries} * s.ld, query = token + s.first_query, key = token + s.first_column;
                    for (std::int64_t g = 0; g < share; ++g)
                        MOEPLAN_TRY(multiply({.m = s.num_queries, .n = s.num_columns, .k = size,
                                              .a = {at<T>(a.q, query * a.q_stride + (head + g) * size), a.q_stride, share * size},
                                              .b = {at<T>(a.k, key * a.k_stride + kv * size), a.k_stride, size, true},
                                              .c = scores + g * one, .ldc = s.ld, .c_stride = share * one, .batch = count, .alpha = a.scale,
                                              .format = a.format, .out_format = NumberFormat::f32}, stream));
                    MOEPLAN_LAUNCH((masked_softmax_kernel<T>), dim3(s.num_queries, share * count), dim3(threads_for_row(s.num_columns)), 0, stream,
                                   scores, probabilities, at<float>(a.log_sum_exp, (b * a.num_heads + head) * a.sequence),
                                   a.documents ? a.documents + token : nullptr, s);
                    for (std::int64_t g = 0; g < share; ++g)
                        MOEPLAN_TRY(multiply({.m = s.num_queries, .n = size, .k = s.num_columns,
                                              .a = {probabilities + g * one, s.ld, share * one},
                                              .b = {at<T>(a.v, key * a.v_stride + kv * size), a.v_stride, size},
                                              .c = at<T>(a.out, query * out_stride + (head + g) * size), .ldc = out_stride, .c_stride = share * size,
                                              .batch = count, .format = a.format, .out_format = a.format}, stream));
                    return {};
                }));
            }
        return {};
    });
}

// P = exp(scores − lse), dV = Pᵀ dO, dP = dO Vᵀ, dS = P ∘ (dP − rowsum(dO ∘ O)), dQ = scale · dS K, dK = scale · dSᵀ Q.
Status attention_backward(const AttentionBackward* call, Stream_* stream_) {
    const AttentionForward& a = call->forward;
    const cudaStream_t stream = as_stream(stream_);
    if (a.batch == 0 || a.sequence == 0 || a.num_heads == 0) return {};
    MOEPLAN_TRY(check_shape("attention_backward", a));
    return with_format("attention_backward", a.format, [&](auto* type) -> Status {
        using T = std::remove_pointer_t<decltype(type)>;
        const std::int64_t share = a.num_heads / a.num_kv_heads, size = a.head_size, out_stride = a.num_heads * size;
        const std::int64_t some = heads_at_once(a, 2 * (sizeof(float) + sizeof(T)));
        const std::int64_t most = std::min(kStrip, a.sequence) * ceil_div(a.sequence, 8) * 8 * share * some, sums = a.sequence * some * size;
        Parts parts;
        parts.take<float>(most), parts.take<float>(most), parts.take<T>(most), parts.take<T>(most), parts.take<float>(2 * sums);
        void* memory = nullptr;
        MOEPLAN_TRY(scratch(stream, parts.used, &memory));
        parts = {static_cast<char*>(memory)};
        float *const scores = parts.take<float>(most), *const dprobabilities = parts.take<float>(most);
        T *const probabilities = parts.take<T>(most), *const dscores = parts.take<T>(most);
        float *const dk = parts.take<float>(2 * sums), *const dv = dk + sums;     // [sequence, heads at once, head_size]
        for (std::int64_t b = 0; b < a.batch; ++b)
            for (std::int64_t kv = 0; kv < a.num_kv_heads; kv += some) {
                const std::int64_t count = std::min(some, a.num_kv_heads - kv), head = kv * share, token = b * a.sequence, width = count * size;
                MOEPLAN_CUDA(cudaMemsetAsync(dk, 0, sizeof(float) * 2 * sums, stream));
                MOEPLAN_TRY(each_strip(a, [&](Strip s) -> Status {
                    const std::int64_t one = std::int64_t{s.num_queries} * s.ld, query = token + s.first_query, key = token + s.first_column;
                    const std::int64_t key_row = std::int64_t{s.first_column} * width;
                    for (std::int64_t g = 0; g < share; ++g) {
                        const Matrix q_rows{at<T>(a.q, query * a.q_stride + (head + g) * size), a.q_stride, share * size};
                        const Matrix dout_rows{at<T>(call->dout, query * out_stride + (head + g) * size), out_stride, share * size};
                        MOEPLAN_TRY(multiply({.m = s.num_queries, .n = s.num_columns, .k = size, .a = q_rows,
                                              .b = {at<T>(a.k, key * a.k_stride + kv * size), a.k_stride, size, true}, .c = scores + g * one,
                                              .ldc = s.ld, .c_stride = share * one, .batch = count, .alpha = a.scale, .format = a.format,
                                              .out_format = NumberFormat::f32}, stream));
                        MOEPLAN_TRY(multiply({.m = s.num_queries, .n = s.num_columns, .k = size, .a = dout_rows,
                                              .b = {at<T>(a.v, key * a.v_stride + kv * size), a.v_stride, size, true},
                                              .c = dprobabilities + g * one, .ldc = s.ld, .c_stride = share * one, .batch = count,
                                              .format = a.format, .out_format = NumberFormat::f32}, stream));
                    }
                    MOEPLAN_LAUNCH((masked_softmax_backward_kernel<T>), dim3(s.num_queries, share * count), dim3(threads_for_row(s.num_columns)), 0,
                                   stream, scores, dprobabilities, at<float>(static_cast<const void*>(a.log_sum_exp), (b * a.num_heads + head) * a.sequence),
                                   at<T>(static_cast<const void*>(a.out), token * out_stride + head * size),
                                   at<T>(call->dout, token * out_stride + head * size), probabilities, dscores,
                                   a.documents ? a.documents + token : nullptr, out_stride, static_cast<int>(size), s);
                    for (std::int64_t g = 0; g < share; ++g) {
                        const Matrix p{probabilities + g * one, s.ld, share * one, true}, ds{dscores + g * one, s.ld, share * one, false};
                        const Matrix q_rows{at<T>(a.q, query * a.q_stride + (head + g) * size), a.q_stride, share * size};
                        const Matrix dout_rows{at<T>(call->dout, query * out_stride + (head + g) * size), out_stride, share * size};
                        MOEPLAN_TRY(multiply({.m = s.num_columns, .n = size, .k = s.num_queries, .a = p, .b = dout_rows, .c = dv + key_row,
                                              .ldc = width, .c_stride = size, .batch = count, .beta = 1, .format = a.format,
                                              .out_format = NumberFormat::f32}, stream));
                        MOEPLAN_TRY(multiply({.m = s.num_queries, .n = size, .k = s.num_columns, .a = ds,
                                              .b = {at<T>(a.k, key * a.k_stride + kv * size), a.k_stride, size},
                                              .c = at<T>(call->dq, query * a.q_stride + (head + g) * size), .ldc = a.q_stride,
                                              .c_stride = share * size, .batch = count, .alpha = a.scale, .format = a.format, .out_format = a.format},
                                             stream));
                        MOEPLAN_TRY(multiply({.m = s.num_columns, .n = size, .k = s.num_queries, .a = {ds.data, ds.ld, ds.stride, true}, .b = q_rows,
                                              .c = dk + key_row, .ldc = width, .c_stride = size, .batch = count, .alpha = a.scale, .beta = 1,
                                              .format = a.format, .out_format = NumberFormat::f32}, stream));
                    }
                    return {};
                }));
                const dim3 blocks(ceil_div(a.sequence * width, 256));
                MOEPLAN_LAUNCH((store_rows_kernel<T>), blocks, dim3(256), 0, stream, dk, at<T>(call->dk, token * a.k_stride + kv * size), a.sequence,
                               width, a.k_stride);
                MOEPLAN_LAUNCH((store_rows_kernel<T>), blocks, dim3(256), 0, stream, dv, at<T>(call->dv, token * a.v_stride + kv * size), a.sequence,
                               width, a.v_stride);
            }
        return {};
    });
}

}  // namespace moeplan::cuda
