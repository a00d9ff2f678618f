// Router: scores of all experts and the chosen k of each routed unit; and its gradient.
//
// Shapes     logits, probabilities [units, num_experts] f32; expert_ids, gates [units, top_k]
// Mapping    a warp a unit; lane l holds experts l, l+32, … in registers; top-k = k rounds of a warp-wide arg-max
// Result     deterministic: sums of probabilities go unit by unit within a warp, warp by warp, block by block
// Moves      forward 8·units·num_experts + 8·units·top_k bytes; backward 8·units·num_experts + 12·units·top_k

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/device_math.hpp"
#include "kernels/cuda/kernels.hpp"

namespace moeplan::cuda {
namespace {

constexpr int kWarpsPerBlock = 8;
constexpr int kMaxBlocks = 1024;      // fixed, so that sums do not depend on the GPU

struct Best { float score; int expert; };

/// The larger score, of equal ones the lower expert; the same on every lane. Expert −1 loses to all.
__device__ __forceinline__ Best warp_best(Best b) {
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
        const float score = __shfl_xor_sync(kAllLanes, b.score, offset);
        const int expert = __shfl_xor_sync(kAllLanes, b.expert, offset);
        if (expert >= 0 && (b.expert < 0 || score > b.score || (score == b.score && expert < b.expert))) b = {score, expert};
    }
    return b;
}

template <int kItems>                 // experts a lane: num_experts ≤ 32 · kItems
__global__ void __launch_bounds__(kWarpsPerBlock* kWarp) router_forward_kernel(
    const float* __restrict__ logits, const std::uint8_t* __restrict__ allowed, const std::int32_t* __restrict__ mask_of_unit,
    const float* __restrict__ selection_bias, float* __restrict__ probabilities, float* __restrict__ log_sum_exp,
    std::int32_t* __restrict__ expert_ids, float* __restrict__ gates, float* __restrict__ partial_sums, std::int64_t units,
    int num_experts, int top_k, int num_groups, int top_k_groups, bool sigmoid, bool renormalise, float gate_scale) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    MOEPLAN_DYNAMIC_SHARED(float, shared);                    // [warps, num_experts]: group scores, at the end partial sums
    float* const mine = shared + warp * num_experts;
    MOEPLAN_SHARED(float, group_scores, kWarpsPerBlock * kWarp);
    float sums[kItems];
#pragma unroll
    for (int i = 0; i < kItems; ++i) sums[i] = 0;

    for (std::int64_t unit = static_cast<std::int64_t>(blockIdx.x) * kWarpsPerBlock + warp; unit < units;
         unit += static_cast<std::int64_t>(gridDim.x) * kWarpsPerBlock) {
        const float* const row = logits + unit * num_experts;
        const std::uint8_t* const mask = allowed ? allowed + static_cast<std::int64_t>(mask_of_unit[unit]) * num_experts : nullptr;
        float p[kItems];
        float largest = -INFINITY;
#pragma unroll
        for (int i = 0; i < kItems; ++i) {
            const int e = lane + i * kWarp;
            p[i] = e < num_experts && (!mask || mask[e]) ? row[e] : -INFINITY;
            largest = fmaxf(largest, p[i]);
        }
        largest = warp_max(largest);
        float sum = 0;
        float score[kItems];                                  // what is selected by; −inf: not to be chosen
#pragma unroll
        for (int i = 0; i < kItems; ++i) {
            score[i] = p[i];
            p[i] = p[i] == -INFINITY ? 0.0f : expf(p[i] - largest);
            sum += p[i];
        }
        sum = warp_sum(sum);
        if (log_sum_exp && lane == 0) log_sum_exp[unit] = largest + logf(sum);
#pragma unroll
        for (int i = 0; i < kItems; ++i) {
            const int e = lane + i * kWarp;
            const bool open = score[i] != -INFINITY;
            if (sigmoid)
                p[i] = open ? 1.0f / (1.0f + expf(-score[i])) : 0.0f;
            else
                p[i] = open ? p[i] / sum : 0.0f;
            if (e < num_experts) probabilities[unit * num_experts + e] = p[i];
            sums[i] += p[i];
            if (open) score[i] = p[i] + (selection_bias ? selection_bias[e] : 0.0f);
        }
        if (top_k == 0) continue;
        if (num_groups > 0) {
            // A group's score is the sum of its two best; lane g scores group g, then keeps the group if few are better.
            const int size = num_experts / num_groups;
#pragma unroll
            for (int i = 0; i < kItems; ++i)
                if (lane + i * kWarp < num_experts) mine[lane + i * kWarp] = score[i];
            __syncwarp();
            float first = -INFINITY, second = -INFINITY;
            if (lane < num_groups) {
                for (int j = 0; j < size; ++j) {
                    const float s = mine[lane * size + j];
                    if (s > first) {
                        second = first;
                        first = s;
                    } else if (s > second) {
                        second = s;
                    }
                }
            }
            const float group_score = size > 1 ? first + second : first;
            if (lane < num_groups) group_scores[warp * kWarp + lane] = group_score;
            __syncwarp();
            int better = 0;
            if (lane < num_groups)
                for (int g = 0; g < num_groups; ++g) {
                    const float s = group_scores[warp * kWarp + g];
                    better += s > group_score || (s == group_score && g < lane);
                }
            const unsigned kept = __ballot_sync(kAllLanes, lane < num_groups && better < top_k_groups);
#pragma unroll
            for (int i = 0; i < kItems; ++i) {
                const int e = lane + i * kWarp;
                if (e < num_experts && !(kept >> (e / size) & 1u)) score[i] = -INFINITY;
            }
            __syncwarp();
        }
        float chosen_probability = 0;                         // of choice `lane`, where top_k ≤ 32
        int chosen_expert = -1;
        float total = 0;
        for (int choice = 0; choice < top_k; ++choice) {
            Best best{-INFINITY, -1};
#pragma unroll
            for (int i = 0; i < kItems; ++i)
                if (score[i] > best.score) best = {score[i], lane + i * kWarp};
            best = warp_best(best);
            float probability = 0;
#pragma unroll
            for (int i = 0; i < kItems; ++i)
                if (best.expert == lane + i * kWarp) {
                    probability = p[i];
                    score[i] = -INFINITY;
                }
            probability = __shfl_sync(kAllLanes, probability, best.expert < 0 ? 0 : best.expert % kWarp);
            if (best.expert < 0) probability = 0;
            total += probability;
            if (choice == lane) {
                chosen_probability = probability;
                chosen_expert = best.expert;
            }
        }
        if (lane < top_k) {
            float gate = chosen_probability;
            if (renormalise) gate = total > 0 ? gate / total : 0.0f;
            expert_ids[unit * top_k + lane] = chosen_expert;
            gates[unit * top_k + lane] = gate * gate_scale;
        }
    }

    if (partial_sums) {
        __syncwarp();
#pragma unroll
        for (int i = 0; i < kItems; ++i)
            if (lane + i * kWarp < num_experts) mine[lane + i * kWarp] = sums[i];
        __syncthreads();
        for (int e = threadIdx.x; e < num_experts; e += blockDim.x) {
            float sum = 0;
            for (int w = 0; w < kWarpsPerBlock; ++w) sum += shared[w * num_experts + e];
            partial_sums[static_cast<std::int64_t>(blockIdx.x) * num_experts + e] = sum;
        }
    }
}

/// out[e] = Σ over blocks, in their order. One thread an expert.
__global__ void sum_partials_kernel(const float* __restrict__ partial, float* __restrict__ out, int num_partials, int num_experts) {
    const int e = blockIdx.x * blockDim.x + threadIdx.x;
    if (e >= num_experts) return;
    float sum = 0;
    for (int b = 0; b < num_partials; ++b) sum += partial[static_cast<std::int64_t>(b) * num_experts + e];
    out[e] = sum;
}

template <int kItems>
__global__ void __launch_bounds__(kWarpsPerBlock* kWarp, kItems <= 8 ? 4 : 2) router_backward_kernel(
    const float* __restrict__ probabilities, const float* __restrict__ log_sum_exp, const std::int32_t* __restrict__ expert_ids,
    const float* __restrict__ dgates, const float* __restrict__ dprobability, const std::int32_t* __restrict__ dprobability_row,
    float* __restrict__ dlogits, std::int64_t units, int num_experts, int top_k, bool sigmoid, bool renormalise, float gate_scale,
    float z_scale) {
    const int lane = threadIdx.x % kWarp;
    const std::int64_t unit = static_cast<std::int64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.x / kWarp;
    if (unit >= units) return;                                // whole warps leave; no barrier follows
    float p[kItems], dp[kItems];
    const float* const extra =
        dprobability ? dprobability + (dprobability_row ? dprobability_row[unit] : 0) * static_cast<std::int64_t>(num_experts) : nullptr;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
        const int e = lane + i * kWarp;
        p[i] = e < num_experts ? probabilities[unit * num_experts + e] : 0.0f;
        dp[i] = extra && e < num_experts ? extra[e] : 0.0f;
    }
    if (dgates) {
        // gate_j = scale · p_j / S with S = Σ p of the chosen, or scale · p_j: lane j has choice j.
        const int expert = lane < top_k ? expert_ids[unit * top_k + lane] : -1;
        const float dgate = expert >= 0 ? dgates[unit * top_k + lane] * gate_scale : 0.0f;
        float dchosen = dgate;
        if (renormalise) {
            const float chosen = expert >= 0 ? probabilities[unit * num_experts + expert] : 0.0f;
            const float total = warp_sum(chosen), mean = warp_sum(dgate * chosen);
            dchosen = total > 0 ? (dgate - mean / total) / total : 0.0f;
        }
        for (int choice = 0; choice < top_k; ++choice) {
            const int e = __shfl_sync(kAllLanes, expert, choice);
            const float d = __shfl_sync(kAllLanes, dchosen, choice);
#pragma unroll
            for (int i = 0; i < kItems; ++i)
                if (e == lane + i * kWarp) dp[i] += d;
        }
    }
    float mean = 0;
#pragma unroll
    for (int i = 0; i < kItems; ++i) mean += p[i] * dp[i];
    mean = warp_sum(mean);
    const float z = z_scale != 0 ? 2.0f * z_scale * log_sum_exp[unit] : 0.0f;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
        const int e = lane + i * kWarp;
        if (e >= num_experts) continue;
        dlogits[unit * num_experts + e] = sigmoid ? dp[i] * p[i] * (1.0f - p[i]) : p[i] * (dp[i] - mean + z);
    }
}

/// Calls f with the smallest of 1, 2, 4, 8, 16, 32 experts a lane that suffices.
template <typename F>
Status with_items(std::int64_t num_experts, F f) {
    if (num_experts <= 32) return f(std::integral_constant<int, 1>{});
    if (num_experts <= 64) return f(std::integral_constant<int, 2>{});
    if (num_experts <= 128) return f(std::integral_constant<int, 4>{});
    if (num_experts <= 256) return f(std::integral_constant<int, 8>{});
    if (num_experts <= 512) return f(std::integral_constant<int, 16>{});
    if (num_experts <= 1024) return f(std::integral_constant<int, 32>{});
    return unsupported("router", "more than 1024 experts");
}

}  // namespace

Status router_forward(const RouterForward* a, Stream_* stream_) {
    const cudaStream_t stream = as_stream(stream_);
    if (stat_format(a->format) != NumberFormat::f32) return unsupported("router_forward", "statistics are f32");
    if (a->top_k > kWarp) return unsupported("router_forward", "top_k of more than 32");
    if (a->num_groups > kWarp) return unsupported("router_forward", "more than 32 groups of experts");
    if (a->probability_sums) MOEPLAN_CUDA(cudaMemsetAsync(a->probability_sums, 0, a->num_experts * sizeof(float), stream));
    if (a->units == 0 || a->num_experts == 0) return {};
    return with_items(a->num_experts, [&](auto items) -> Status {
        constexpr int kItems = decltype(items)::value;
        const int blocks = static_cast<int>(std::min<std::int64_t>(ceil_div(a->units, kWarpsPerBlock), kMaxBlocks));
        const int num_experts = static_cast<int>(a->num_experts);
        void* partial = nullptr;
        if (a->probability_sums) MOEPLAN_TRY(scratch(stream, sizeof(float) * blocks * num_experts, &partial));
        const std::size_t shared = sizeof(float) * kWarpsPerBlock * num_experts;
        MOEPLAN_LAUNCH((router_forward_kernel<kItems>), dim3(blocks), dim3(kWarpsPerBlock * kWarp), shared, stream,
                       static_cast<const float*>(a->logits), a->allowed, a->mask_of_unit,
                       static_cast<const float*>(a->selection_bias), static_cast<float*>(a->probabilities),
                       static_cast<float*>(a->log_sum_exp), a->expert_ids, static_cast<float*>(a->gates),
                       static_cast<float*>(partial), a->units, num_experts, static_cast<int>(a->expert_ids ? a->top_k : 0),
                       static_cast<int>(a->num_groups), static_cast<int>(a->top_k_groups), a->score == ScoreKind::sigmoid,
                       a->renormalise, static_cast<float>(a->gate_scale));
        if (a->probability_sums)
            MOEPLAN_LAUNCH(sum_partials_kernel, dim3(ceil_div(num_experts, 128)), dim3(128), 0, stream,
                           static_cast<const float*>(partial), static_cast<float*>(a->probability_sums), blocks, num_experts);
        return {};
    });
}

Status router_backward(const RouterBackward* a, Stream_* stream_) {
    const cudaStream_t stream = as_stream(stream_);
    if (stat_format(a->format) != NumberFormat::f32) return unsupported("router_backward", "statistics are f32");
    if (a->top_k > kWarp) return unsupported("router_backward", "top_k of more than 32");
    if (a->units == 0 || a->num_experts == 0) return {};
    return with_items(a->num_experts, [&](auto items) -> Status {
        constexpr int kItems = decltype(items)::value;
        MOEPLAN_LAUNCH((router_backward_kernel<kItems>), dim3(ceil_div(a->units, kWarpsPerBlock)), dim3(kWarpsPerBlock * kWarp), 0,
                       stream, static_cast<const float*>(a->probabilities), static_cast<const float*>(a->log_sum_exp), a->expert_ids,
                       static_cast<const float*>(a->dgates), static_cast<const float*>(a->dprobability), a->dprobability_row,
                       static_cast<float*>(a->dlogits), a->units, static_cast<int>(a->num_experts), static_cast<int>(a->top_k),
                       a->score == ScoreKind::sigmoid, a->renormalise, static_cast<float>(a->gate_scale),
                       static_cast<float>(a->z_scale));
        return {};
    });
}

}  // namespace moeplan::cuda
