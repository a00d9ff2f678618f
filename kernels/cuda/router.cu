// Router: scores of all experts and the chosen k of each routed unit, from logits or from the units themselves; and its gradient.
//
// Shapes     x [units, width] f32 or bf16, weight [num_experts, width] f32; logits, probabilities [units, num_experts] f32;
//            expert_ids, gates [units, top_k]
// Mapping    choosing: a warp a unit; lane l holds experts l, l+32, … in registers: one value each, a logit, then a probability, then
//            what is chosen by; top-k = k rounds of a warp-wide arg-max.
//            route: a block takes 64 units (32 above 64 experts); their logits are a tiled product in f32 that stays in shared
//            memory, 64 experts at a time, a thread 4 (2) units × 4 experts; then its warps choose, and probabilities take the
//            logits' place there, to be summed by expert
//            gradient: a warp a unit; the lanes that hold a choice write the chosen experts' values, the others all else
// Result     deterministic: sums of probabilities go unit by unit, then block by block, in their order
// Moves      router forward 8·units·num_experts + 8·units·top_k bytes; route: x once, and no logits (4·units·num_experts less);
//            backward 8·units·num_experts + 12·units·top_k
// Work       route: 2·units·num_experts·width flops in f32, without tensor cores: a choice is a step, and rounded scores take others

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/device_math.hpp"
#include "kernels/cuda/kernels.hpp"

namespace moeplan::cuda {
namespace {

constexpr int kWarpsPerBlock = 8, kThreads = kWarpsPerBlock * kWarp;
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

/// What choosing needs beside the logits.
struct Choosing {
    const std::uint8_t* allowed;
    const std::int32_t* mask_of_unit;
    const float* selection_bias;
    float *probabilities, *log_sum_exp;
    std::int32_t* expert_ids;
    float* gates;
    std::int64_t units;
    int num_experts, top_k, num_groups, top_k_groups;
    bool sigmoid, renormalise;
    float gate_scale;
};

/// Routes one unit by the calling warp.
/// @param row     its logits, which each lane reads at its own experts alone
/// @param sums    [num_experts] to which each lane adds the probabilities of its own experts; null: none
/// @param scores  shared memory of this warp, [num_experts]: with groups of experts alone; may be `row`
/// @param group_scores  shared memory of this warp, [32]
/// @return        log_sum_exp
template <int kItems>                 // experts a lane: num_experts ≤ 32 · kItems
__device__ __forceinline__ float route_unit(const Choosing& a, std::int64_t unit, const float* row, float* sums, float* scores, float* group_scores) {
    const int lane = threadIdx.x % kWarp;
    float p[kItems];                                          // logits, then probabilities, then what is chosen by
    float* const probabilities = a.probabilities + unit * a.num_experts;
    const std::uint8_t* const mask = a.allowed ? a.allowed + static_cast<std::int64_t>(a.mask_of_unit[unit]) * a.num_experts : nullptr;
    float largest = -INFINITY;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
        const int e = lane + i * kWarp;
        p[i] = e < a.num_experts && (!mask || mask[e]) ? row[e] : -INFINITY;
        largest = fmaxf(largest, p[i]);
    }
    largest = warp_max(largest);
    unsigned open = 0;                                        // bit i: expert lane + 32·i is not masked
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
        const bool seen = p[i] != -INFINITY;
        const float weight = seen ? expf(p[i] - largest) : 0.0f;
        open |= static_cast<unsigned>(seen) << i;
        sum += weight;
        p[i] = !a.sigmoid ? weight : seen ? 1.0f / (1.0f + expf(-p[i])) : 0.0f;
    }
    sum = warp_sum(sum);
    const float log_sum_exp = largest + logf(sum);
    if (a.log_sum_exp && lane == 0) a.log_sum_exp[unit] = log_sum_exp;
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
        const int e = lane + i * kWarp;
        const bool seen = open >> i & 1u;
        if (!a.sigmoid && seen) p[i] /= sum;
        if (e < a.num_experts) {
            probabilities[e] = p[i];
            if (sums) sums[e] += p[i];
        }
        p[i] = !seen ? -INFINITY : a.selection_bias ? p[i] + a.selection_bias[e] : p[i];       // −inf: not to be chosen
    }
    if (a.top_k == 0) return log_sum_exp;
    if (a.num_groups > 0) {
        // A group's score is the sum of its two best; lane g scores group g, then keeps the group if few are better.
        const int size = a.num_experts / a.num_groups;
#pragma unroll
        for (int i = 0; i < kItems; ++i)
            if (lane + i * kWarp < a.num_experts) scores[lane + i * kWarp] = p[i];
        __syncwarp();
        float first = -INFINITY, second = -INFINITY;
        if (lane < a.num_groups) {
            for (int j = 0; j < size; ++j) {
                const float s = scores[lane * size + j];
                if (s > first) {
                    second = first;
                    first = s;
                } else if (s > second) {
                    second = s;
                }
            }
        }
        const float group_score = size > 1 ? first + second : first;
        if (lane < a.num_groups) group_scores[lane] = group_score;
        __syncwarp();
        int better = 0;
        if (lane < a.num_groups)
            for (int g = 0; g < a.num_groups; ++g) {
                const float s = group_scores[g];
                better += s > group_score || (s == group_score && g < lane);
            }
        const unsigned kept = __ballot_sync(kAllLanes, lane < a.num_groups && better < a.top_k_groups);
#pragma unroll
        for (int i = 0; i < kItems; ++i) {
            const int e = lane + i * kWarp;
            if (e < a.num_experts && !(kept >> (e / size) & 1u)) p[i] = -INFINITY;
        }
    }
    float chosen_probability = 0;                             // of choice `lane`
    int chosen_expert = -1;
    float total = 0;
    for (int choice = 0; choice < a.top_k; ++choice) {
        Best best{-INFINITY, -1};
#pragma unroll
        for (int i = 0; i < kItems; ++i)
            if (p[i] > best.score) best = {p[i], lane + i * kWarp};
        best = warp_best(best);
        const int owner = best.expert < 0 ? 0 : best.expert % kWarp;
        float probability = 0;                                // this lane's own, from memory: registers hold what is chosen by
        if (best.expert >= 0 && lane == owner) probability = probabilities[best.expert];
#pragma unroll
        for (int i = 0; i < kItems; ++i)
            if (best.expert == lane + i * kWarp) p[i] = -INFINITY;
        probability = __shfl_sync(kAllLanes, probability, owner);
        total += probability;
        if (choice == lane) {
            chosen_probability = probability;
            chosen_expert = best.expert;
        }
    }
    if (lane < a.top_k) {
        float gate = chosen_probability;
        if (a.renormalise) gate = total > 0 ? gate / total : 0.0f;
        a.expert_ids[unit * a.top_k + lane] = chosen_expert;
        a.gates[unit * a.top_k + lane] = gate * a.gate_scale;
    }
    return log_sum_exp;
}

/// The block's Σ log_sum_exp² of its warps, in their order. @param per_warp  shared, [kWarpsPerBlock], written by each warp's lane 0
__device__ __forceinline__ double sum_of_warps(const double* per_warp) {
    double sum = 0;
    for (int w = 0; w < kWarpsPerBlock; ++w) sum += per_warp[w];
    return sum;
}

template <int kItems>
__global__ void __launch_bounds__(kThreads, kItems <= 8 ? 4 : kItems == 16 ? 3 : 1) router_forward_kernel(const float* __restrict__ logits, Choosing a, float* __restrict__ partial_sums,
                                                                  double* __restrict__ partial_z) {
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    // [warps, num_experts] sums where they are asked for, then as many scores where there are groups.
    MOEPLAN_DYNAMIC_SHARED(float, shared);
    MOEPLAN_SHARED(float, group_scores, kThreads);
    MOEPLAN_SHARED(double, warp_z, kWarpsPerBlock);
    float* const sums = shared + warp * a.num_experts;        // a lane touches its own experts alone
    float* const scores = shared + ((partial_sums ? kWarpsPerBlock : 0) + warp) * a.num_experts;
    if (partial_sums)
        for (int e = lane; e < a.num_experts; e += kWarp) sums[e] = 0;
    double z = 0;
    for (std::int64_t unit = static_cast<std::int64_t>(blockIdx.x) * kWarpsPerBlock + warp; unit < a.units;
         unit += static_cast<std::int64_t>(gridDim.x) * kWarpsPerBlock) {
        const double lse =
            route_unit<kItems>(a, unit, logits + unit * a.num_experts, partial_sums ? sums : nullptr, scores, group_scores + warp * kWarp);
        z += lse * lse;
    }
    if (!partial_sums && !partial_z) return;
    if (lane == 0) warp_z[warp] = z;
    __syncthreads();
    if (partial_z && threadIdx.x == 0) partial_z[blockIdx.x] = sum_of_warps(warp_z);
    if (!partial_sums) return;
    for (int e = threadIdx.x; e < a.num_experts; e += kThreads) {
        float sum = 0;
        for (int w = 0; w < kWarpsPerBlock; ++w) sum += shared[w * a.num_experts + e];
        partial_sums[static_cast<std::int64_t>(blockIdx.x) * a.num_experts + e] = sum;
    }
}

// A tile of the product: units and experts × 32 of the width, rows 36 apart, so that 16-byte reads of 8 rows meet in no bank.
constexpr int kDepth = 32, kPitch = 36, kExperts = 64, kPerThread = 4, kAcross = kExperts / kPerThread;

/// `rows` × kDepth numbers of x from column k on → tile, zeros beyond the edges.
template <int N, typename T>
__device__ __forceinline__ void load_tile(float* tile, const T* __restrict__ x, std::int64_t first, std::int64_t end, int rows, std::int64_t k,
                                          std::int64_t width) {
    for (int i = threadIdx.x * N; i < rows * kDepth; i += kThreads * N) {
        const int r = i / kDepth, c = i % kDepth;
        Pack<T, N> v{};
        if (first + r < end && k + c < width) v = load_pack<N>(x + (first + r) * width + k + c);
#pragma unroll
        for (int j = 0; j < N; ++j) tile[r * kPitch + c + j] = to_float(v.value[j]);
    }
}

/// kRows·16 units a block; a thread's share of a tile is kRows × 4.
template <typename T, int N, int kItems, int kRows>
__global__ void __launch_bounds__(kThreads, kItems <= 8 ? 2 : 1) route_kernel(const T* __restrict__ x, const float* __restrict__ weight, const float* __restrict__ bias,
                                                         float* __restrict__ logits, Choosing a, float* __restrict__ partial_sums,
                                                         double* __restrict__ partial_z, std::int64_t width) {
    constexpr int kUnits = 16 * kRows, kOwn = (kItems * kWarp + kThreads - 1) / kThreads;
    MOEPLAN_DYNAMIC_SHARED(float, shared);
    MOEPLAN_SHARED(float, group_scores, kThreads);
    MOEPLAN_SHARED(double, warp_z, kWarpsPerBlock);
    float *const x_tile = shared, *const w_tile = x_tile + kUnits * kPitch, *const scores = w_tile + kExperts * kPitch;
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, column = threadIdx.x % kAcross, row = threadIdx.x / kAcross;
    float sums[kOwn];                                         // of experts threadIdx.x, threadIdx.x + 256, …
#pragma unroll
    for (int i = 0; i < kOwn; ++i) sums[i] = 0;
    double z = 0;
    for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kUnits; first < a.units;
         first += static_cast<std::int64_t>(gridDim.x) * kUnits) {
        for (int expert = 0; expert < a.num_experts; expert += kExperts) {
            float sum[kRows][kPerThread] = {};
            for (std::int64_t k = 0; k < width; k += kDepth) {
                __syncthreads();                              // the tile before has been read; so have the scores
                load_tile<N>(x_tile, x, first, a.units, kUnits, k, width);
                load_tile<(N < 4 ? N : 4)>(w_tile, weight, expert, a.num_experts, kExperts, k, width);
                __syncthreads();
#pragma unroll
                for (int c = 0; c < kDepth; c += 4) {
                    Pack<float, 4> u[kRows];
#pragma unroll
                    for (int r = 0; r < kRows; ++r) u[r] = load_pack<4>(x_tile + (row + 16 * r) * kPitch + c);
#pragma unroll
                    for (int j = 0; j < kPerThread; ++j) {
                        const Pack<float, 4> w = load_pack<4>(w_tile + (column + kAcross * j) * kPitch + c);
#pragma unroll
                        for (int r = 0; r < kRows; ++r)
#pragma unroll
                            for (int i = 0; i < 4; ++i) sum[r][j] += u[r].value[i] * w.value[i];
                    }
                }
            }
#pragma unroll
            for (int j = 0; j < kPerThread; ++j) {
                const int e = expert + column + kAcross * j;
                if (e >= a.num_experts) continue;
                const float b = bias ? bias[e] : 0.0f;
#pragma unroll
                for (int r = 0; r < kRows; ++r) {
                    const int u = row + 16 * r;
                    scores[u * a.num_experts + e] = sum[r][j] + b;
                    if (logits && first + u < a.units) logits[(first + u) * a.num_experts + e] = sum[r][j] + b;
                }
            }
        }
        __syncthreads();
        const int count = first + kUnits < a.units ? kUnits : static_cast<int>(a.units - first);
        for (int u = warp; u < count; u += kWarpsPerBlock) {
            float* const mine = scores + u * a.num_experts;
            const double lse = route_unit<kItems>(a, first + u, mine, nullptr, mine, group_scores + warp * kWarp);
            z += lse * lse;
            if (!partial_sums) continue;
            for (int e = lane; e < a.num_experts; e += kWarp) mine[e] = a.probabilities[(first + u) * a.num_experts + e];     // by the lane that stored it
        }
        if (!partial_sums) continue;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
            const int e = threadIdx.x + i * kThreads;
            if (e < a.num_experts)
                for (int u = 0; u < count; ++u) sums[i] += scores[u * a.num_experts + e];
        }
    }
    if (partial_sums) {
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
            const int e = threadIdx.x + i * kThreads;
            if (e < a.num_experts) partial_sums[static_cast<std::int64_t>(blockIdx.x) * a.num_experts + e] = sums[i];
        }
    }
    if (!partial_z) return;
    if (lane == 0) warp_z[warp] = z;
    __syncthreads();
    if (threadIdx.x == 0) partial_z[blockIdx.x] = sum_of_warps(warp_z);
}

/// sums[e] = Σ over blocks, in their order, and z_sum beside them; either may be null. One thread an expert, one for z.
__global__ void sum_partials_kernel(const float* __restrict__ partial, float* __restrict__ sums, const double* __restrict__ partial_z,
                                    double* __restrict__ z_sum, int num_partials, int num_experts) {
    const int e = blockIdx.x * blockDim.x + threadIdx.x;
    if (e < num_experts && sums) {
        float sum = 0;
#pragma unroll 8
        for (int b = 0; b < num_partials; ++b) sum += partial[static_cast<std::int64_t>(b) * num_experts + e];
        sums[e] = sum;
    }
    if (e == num_experts && z_sum) {
        double sum = 0;
#pragma unroll 8
        for (int b = 0; b < num_partials; ++b) sum += partial_z[b];
        *z_sum = sum;
    }
}

template <int kItems>
__global__ void __launch_bounds__(kThreads, kItems <= 16 ? 4 : 2) router_backward_kernel(
    const float* __restrict__ probabilities, const float* __restrict__ log_sum_exp, const std::int32_t* __restrict__ expert_ids,
    const float* __restrict__ dgates, const float* __restrict__ dprobability, const std::int32_t* __restrict__ dprobability_row,
    float* __restrict__ dlogits, std::int64_t units, int num_experts, int top_k, bool sigmoid, bool renormalise, float gate_scale,
    float z_scale) {
    const int lane = threadIdx.x % kWarp;
    const std::int64_t unit = static_cast<std::int64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.x / kWarp;
    if (unit >= units) return;                                // whole warps leave; no barrier follows
    const float* const row = probabilities + unit * num_experts;
    const float* const extra =
        dprobability ? dprobability + (dprobability_row ? dprobability_row[unit] : 0) * static_cast<std::int64_t>(num_experts) : nullptr;
    float p[kItems], inner = 0;                               // inner: Σ p · dp, of this lane
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
        const int e = lane + i * kWarp;
        p[i] = e < num_experts ? row[e] : 0.0f;
        if (extra && e < num_experts) inner += p[i] * extra[e];
    }
    // Lane j has choice j: gate_j = scale · p_j / S with S = Σ p of the chosen, or scale · p_j.
    const int expert = dgates && lane < top_k ? expert_ids[unit * top_k + lane] : -1;
    const float chosen = expert >= 0 ? row[expert] : 0.0f;
    float dchosen = expert >= 0 ? dgates[unit * top_k + lane] * gate_scale : 0.0f;
    if (dgates && renormalise) {
        const float total = warp_sum(chosen), mean = warp_sum(dchosen * chosen);
        dchosen = expert >= 0 && total > 0 ? (dchosen - mean / total) / total : 0.0f;
    }
    unsigned taken = 0;                                       // bit i: expert lane + 32·i is a choice
    if (dgates)
        for (int choice = 0; choice < top_k; ++choice) {
            const int e = __shfl_sync(kAllLanes, expert, choice);
            if (e >= 0 && e % kWarp == lane) taken |= 1u << (e / kWarp);
        }
    const float mean = warp_sum(inner + chosen * dchosen);
    const float z = z_scale != 0 ? 2.0f * z_scale * log_sum_exp[unit] : 0.0f;
    const auto gradient = [&](float of, float dp) { return sigmoid ? dp * of * (1.0f - of) : of * (dp - mean + z); };
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
        const int e = lane + i * kWarp;
        if (e < num_experts && !(taken >> i & 1u)) dlogits[unit * num_experts + e] = gradient(p[i], extra ? extra[e] : 0.0f);
    }
    if (expert >= 0) dlogits[unit * num_experts + expert] = gradient(chosen, (extra ? extra[expert] : 0.0f) + dchosen);
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

/// The same for the kernel that multiplies, of which fewer are compiled: 2, 8 or 32.
template <typename F>
Status with_coarse_items(std::int64_t num_experts, F f) {
    if (num_experts <= 64) return f(std::integral_constant<int, 2>{});
    if (num_experts <= 256) return f(std::integral_constant<int, 8>{});
    if (num_experts <= 1024) return f(std::integral_constant<int, 32>{});
    return unsupported("router", "more than 1024 experts");
}

Status check_router(const char* kernel, const RouterForward& a) {
    if (stat_format(a.format) != NumberFormat::f32) return unsupported(kernel, "statistics are f32");
    if (a.top_k > kWarp) return unsupported(kernel, "top_k of more than 32");
    if (a.num_groups > kWarp) return unsupported(kernel, "more than 32 groups of experts");
    return {};
}
Choosing choosing(const RouterForward& a) {
    return {a.allowed, a.mask_of_unit, static_cast<const float*>(a.selection_bias), static_cast<float*>(a.probabilities),
            static_cast<float*>(a.log_sum_exp), a.expert_ids, static_cast<float*>(a.gates), a.units, static_cast<int>(a.num_experts),
            static_cast<int>(a.expert_ids ? a.top_k : 0), static_cast<int>(a.num_groups), static_cast<int>(a.top_k_groups),
            a.score == ScoreKind::sigmoid, a.renormalise, static_cast<float>(a.gate_scale)};
}

/// Sums of each block, and of all blocks once `launch(sums, z)` has filled them; null where they are not asked for.
template <typename F>
Status with_partials(const RouterForward& a, int blocks, cudaStream_t stream, F launch) {
    const int num_experts = static_cast<int>(a.num_experts);
    float* sums = nullptr;
    double* z = nullptr;
    if (a.probability_sums || a.z_sum) {
        void* memory = nullptr;
        MOEPLAN_TRY(scratch(stream, (sizeof(double) + sizeof(float) * num_experts) * blocks, &memory));
        if (a.z_sum) z = static_cast<double*>(memory);
        if (a.probability_sums) sums = reinterpret_cast<float*>(static_cast<double*>(memory) + blocks);
    }
    MOEPLAN_TRY(launch(sums, z));
    if (sums || z)
        MOEPLAN_LAUNCH(sum_partials_kernel, dim3(ceil_div(num_experts + 1, 128)), dim3(128), 0, stream, static_cast<const float*>(sums),
                       static_cast<float*>(a.probability_sums), static_cast<const double*>(z), a.z_sum, blocks, num_experts);
    return {};
}

/// Sums over no units.
Status zero_sums(const RouterForward& a, cudaStream_t stream) {
    if (a.probability_sums && a.num_experts) MOEPLAN_CUDA(cudaMemsetAsync(a.probability_sums, 0, a.num_experts * sizeof(float), stream));
    if (a.z_sum) MOEPLAN_CUDA(cudaMemsetAsync(a.z_sum, 0, sizeof(double), stream));
    return {};
}

}  // namespace

Status router_forward(const RouterForward* a, Stream_* stream_) {
    const cudaStream_t stream = as_stream(stream_);
    MOEPLAN_TRY(check_router("router_forward", *a));
    if (a->units == 0 || a->num_experts == 0) return zero_sums(*a, stream);
    return with_items(a->num_experts, [&](auto items) -> Status {
        constexpr int kItems = decltype(items)::value;
        const int blocks = static_cast<int>(std::min<std::int64_t>(ceil_div(a->units, kWarpsPerBlock), kMaxBlocks));
        const std::size_t rows = (a->probability_sums ? 1 : 0) + (a->num_groups > 0 ? 1 : 0);
        const std::size_t shared = std::max<std::size_t>(rows * sizeof(float) * kWarpsPerBlock * a->num_experts, sizeof(float));
        MOEPLAN_TRY(allow_shared(router_forward_kernel<kItems>, shared));
        return with_partials(*a, blocks, stream, [&](float* sums, double* z) -> Status {
            MOEPLAN_LAUNCH((router_forward_kernel<kItems>), dim3(blocks), dim3(kThreads), shared, stream, static_cast<const float*>(a->logits),
                           choosing(*a), sums, z);
            return {};
        });
    });
}

Status route_forward(const RouteForward* a, Stream_* stream_) {
    const cudaStream_t stream = as_stream(stream_);
    const RouterForward& route = a->router;
    MOEPLAN_TRY(check_router("route_forward", route));
    if (route.units == 0 || route.num_experts == 0) return zero_sums(route, stream);
    if (a->width == 0) return unsupported("route_forward", "units of no width");
    return with_packs("route_forward", a->x_format, a->width, aligned_to_16(a->x) && aligned_to_16(a->weight), [&](auto* type, auto pack) -> Status {
        using T = std::remove_pointer_t<decltype(type)>;
        constexpr int N = decltype(pack)::value;
        return with_coarse_items(route.num_experts, [&](auto items) -> Status {
            constexpr int kItems = decltype(items)::value, kRows = kItems <= 2 ? 4 : 2, kUnits = 16 * kRows;
            const int blocks = static_cast<int>(std::min<std::int64_t>(ceil_div(route.units, kUnits), kMaxBlocks));
            const std::size_t shared = sizeof(float) * ((kUnits + kExperts) * kPitch + kUnits * route.num_experts);
            MOEPLAN_TRY(allow_shared(route_kernel<T, N, kItems, kRows>, shared));
            return with_partials(route, blocks, stream, [&](float* sums, double* z) -> Status {
                MOEPLAN_LAUNCH((route_kernel<T, N, kItems, kRows>), dim3(blocks), dim3(kThreads), shared, stream, static_cast<const T*>(a->x),
                               static_cast<const float*>(a->weight), static_cast<const float*>(a->bias), static_cast<float*>(a->logits),
                               choosing(route), sums, z, a->width);
                return {};
            });
        });
    });
}

Status router_backward(const RouterBackward* a, Stream_* stream_) {
    const cudaStream_t stream = as_stream(stream_);
    if (stat_format(a->format) != NumberFormat::f32) return unsupported("router_backward", "statistics are f32");
    if (a->top_k > kWarp) return unsupported("router_backward", "top_k of more than 32");
    if (a->units == 0 || a->num_experts == 0) return {};
    return with_items(a->num_experts, [&](auto items) -> Status {
        constexpr int kItems = decltype(items)::value;
        MOEPLAN_LAUNCH((router_backward_kernel<kItems>), dim3(ceil_div(a->units, kWarpsPerBlock)), dim3(kThreads), 0, stream,
                       static_cast<const float*>(a->probabilities), static_cast<const float*>(a->log_sum_exp), a->expert_ids,
                       static_cast<const float*>(a->dgates), static_cast<const float*>(a->dprobability), a->dprobability_row,
                       static_cast<float*>(a->dlogits), a->units, static_cast<int>(a->num_experts), static_cast<int>(a->top_k),
                       a->score == ScoreKind::sigmoid, a->renormalise, static_cast<float>(a->gate_scale),
                       static_cast<float>(a->z_scale));
        return {};
    });
}

}  // namespace moeplan::cuda
