// Where each slot's row goes: a stable counting sort of slots (slot = unit · top_k + choice) by expert.
//
// Shapes     expert_ids, row_of_slot, slot_of_row [units · top_k]; rows_per_expert [num_experts]; offsets [num_experts + 1]
// Mapping    1. count: a block counts a tile of 2048 slots in shared memory → counts [num_experts, num_tiles]
//            2. scan: one block, exclusive sums over (expert, tile) → first row of each tile's share of an expert
//            3. place: a block walks its tile again; each warp owns a run of 256 slots, ranks 32 at a time by match and ballot
//            Capacity: a first round in choice-major order finds which slots overflow, a second places the kept ones.
// Result     deterministic and stable: rows of an expert are in order of slots
// Moves      16 bytes a slot (24 with a capacity), launch-bound at usual sizes

#include "kernels/cuda/device_math.hpp"
#include "kernels/cuda/kernels.hpp"

namespace moeplan::cuda {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kPerWarp = 256, kTile = kPerWarp * kWarps;      // slots
constexpr int kScanThreads = 1024;
constexpr int kMaxExperts = 1024;

/// The order slots are counted in: as they are, or all first choices before all second ones.
struct SlotOrder {
    std::int64_t units, top_k;
    bool by_choice;
    __device__ __forceinline__ std::int64_t slot(std::int64_t i) const { return by_choice ? i % units * top_k + i / units : i; }
};

__global__ void __launch_bounds__(kThreads) count_slots_kernel(const std::int32_t* __restrict__ expert_ids, std::int32_t* __restrict__ counts,
                                                               SlotOrder order, std::int64_t num_slots, int num_experts) {
    MOEPLAN_DYNAMIC_SHARED(std::int32_t, histogram);
    for (int e = threadIdx.x; e < num_experts; e += kThreads) histogram[e] = 0;
    __syncthreads();
    const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * kTile;
    for (int j = threadIdx.x; j < kTile; j += kThreads) {
        if (begin + j >= num_slots) break;
        const int e = expert_ids[order.slot(begin + j)];
        if (e >= 0 && e < num_experts) atomicAdd(&histogram[e], 1);
    }
    __syncthreads();
    for (int e = threadIdx.x; e < num_experts; e += kThreads) counts[static_cast<std::int64_t>(e) * gridDim.x + blockIdx.x] = histogram[e];
}

/// counts → exclusive sums in place; row counts and offsets of the experts beside them. One block.
__global__ void __launch_bounds__(kScanThreads) scan_counts_kernel(std::int32_t* __restrict__ counts, std::int32_t* __restrict__ rows_per_expert,
                                                                   std::int32_t* __restrict__ offsets, std::int64_t num_tiles, int num_experts) {
    MOEPLAN_SHARED(std::int32_t, warp_total, kScanThreads / kWarp);
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    const std::int64_t total = num_tiles * num_experts, share = (total + kScanThreads - 1) / kScanThreads;
    const std::int64_t begin = threadIdx.x * share < total ? threadIdx.x * share : total;
    const std::int64_t end = begin + share < total ? begin + share : total;
    std::int32_t mine = 0;
    for (std::int64_t i = begin; i < end; ++i) mine += counts[i];
    std::int32_t before = mine;                               // inclusive over the lanes
    for (int offset = 1; offset < kWarp; offset *= 2) {
        const std::int32_t other = __shfl_up_sync(kAllLanes, before, offset);
        if (lane >= offset) before += other;
    }
    if (lane == kWarp - 1) warp_total[warp] = before;
    __syncthreads();
    before -= mine;
    for (int w = 0; w < warp; ++w) before += warp_total[w];
    for (std::int64_t i = begin; i < end; ++i) {
        const std::int32_t count = counts[i];
        counts[i] = before;
        if (offsets && i % num_tiles == 0) offsets[i / num_tiles] = before;
        before += count;
    }
    if (offsets && threadIdx.x == 0) {
        std::int32_t all = 0;
        for (int w = 0; w < kScanThreads / kWarp; ++w) all += warp_total[w];
        offsets[num_experts] = all;
    }
    __syncthreads();                                          // offsets, written by many threads, are read below
    if (!offsets) return;
    for (int e = threadIdx.x; e < num_experts; e += kScanThreads) rows_per_expert[e] = offsets[e + 1] - offsets[e];
}

/// The row of each slot. With a capacity: the expert of each slot that fits, −1 of one that does not, into `kept`.
__global__ void __launch_bounds__(kThreads) place_slots_kernel(const std::int32_t* __restrict__ expert_ids, const std::int32_t* __restrict__ starts,
                                                               std::int32_t* __restrict__ row_of_slot, std::int32_t* __restrict__ slot_of_row,
                                                               std::int32_t* __restrict__ kept, SlotOrder order, std::int64_t num_slots,
                                                               int num_experts, std::int32_t capacity) {
    MOEPLAN_DYNAMIC_SHARED(std::int32_t, next);               // [kWarps, num_experts]: first a warp's counts, then its next row
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
    for (int i = threadIdx.x; i < kWarps * num_experts; i += kThreads) next[i] = 0;
    __syncthreads();
    std::int32_t* const mine = next + warp * num_experts;
    const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * kTile + warp * kPerWarp;
    for (int j = lane; j < kPerWarp; j += kWarp) {
        if (begin + j >= num_slots) break;
        const int e = expert_ids[order.slot(begin + j)];
        if (e >= 0 && e < num_experts) atomicAdd(&mine[e], 1);
    }
    __syncthreads();
    for (int e = threadIdx.x; e < num_experts; e += kThreads) {
        std::int32_t start = starts[static_cast<std::int64_t>(e) * gridDim.x + blockIdx.x];
        for (int w = 0; w < kWarps; ++w) {
            const std::int32_t count = next[w * num_experts + e];
            next[w * num_experts + e] = start;
            start += count;
        }
    }
    __syncthreads();
    for (int j = 0; j < kPerWarp; j += kWarp) {
        const std::int64_t i = begin + j + lane;
        if (begin + j >= num_slots) break;                    // the whole warp leaves
        const std::int64_t slot = i < num_slots ? order.slot(i) : 0;
        int e = i < num_slots ? expert_ids[slot] : -1;
        if (e >= num_experts) e = -1;
        const unsigned same = __match_any_sync(kAllLanes, e);
        const std::int32_t first = e >= 0 ? mine[e] : 0;
        __syncwarp();                                         // all have read before the leaders write
        if (e >= 0 && lane == __ffs(same) - 1) mine[e] = first + __popc(same);
        __syncwarp();
        const std::int32_t row = first + __popc(same & ((1u << lane) - 1));
        if (i >= num_slots) continue;
        if (kept) {
            // The place within the expert: expert starts are the first tile's.
            const std::int32_t place = e >= 0 ? row - starts[static_cast<std::int64_t>(e) * gridDim.x] : 0;
            kept[slot] = e >= 0 && place < capacity ? e : -1;
        } else {
            row_of_slot[slot] = e >= 0 ? row : -1;
            if (e >= 0) slot_of_row[row] = static_cast<std::int32_t>(slot);
        }
    }
}

__global__ void no_rows_kernel(std::int32_t* rows_per_expert, std::int32_t* offsets, int num_experts) {
    const int e = blockIdx.x * blockDim.x + threadIdx.x;
    if (e < num_experts) rows_per_expert[e] = 0;
    if (e <= num_experts) offsets[e] = 0;
}

}  // namespace

Status permutation_map(const PermutationMap* a, Stream_* stream_) {
    const cudaStream_t stream = as_stream(stream_);
    const std::int64_t num_slots = a->units * a->top_k;
    if (a->num_experts > kMaxExperts) return unsupported("permutation_map", "more than 1024 experts");
    if (num_slots > std::numeric_limits<std::int32_t>::max()) return unsupported("permutation_map", "more than 2^31 slots");
    const int num_experts = static_cast<int>(a->num_experts);
    if (num_slots == 0) {
        MOEPLAN_LAUNCH(no_rows_kernel, dim3(ceil_div(num_experts + 1, 128)), dim3(128), 0, stream, a->rows_per_expert, a->offsets, num_experts);
        return {};
    }
    const std::int64_t num_tiles = ceil_div(num_slots, kTile);
    const std::size_t counts_bytes = sizeof(std::int32_t) * num_tiles * num_experts, kept_bytes = a->capacity > 0 ? sizeof(std::int32_t) * num_slots : 0;
    void* memory = nullptr;
    MOEPLAN_TRY(scratch(stream, counts_bytes + kept_bytes, &memory));
    std::int32_t* const counts = static_cast<std::int32_t*>(memory);
    std::int32_t* const kept = a->capacity > 0 ? counts + num_tiles * num_experts : nullptr;
    const std::size_t place_bytes = sizeof(std::int32_t) * kWarps * num_experts;
    const std::int32_t* expert_ids = a->expert_ids;
    if (kept) {
        const SlotOrder order{a->units, a->top_k, true};
        MOEPLAN_LAUNCH(count_slots_kernel, dim3(num_tiles), dim3(kThreads), sizeof(std::int32_t) * num_experts, stream, expert_ids, counts, order,
                       num_slots, num_experts);
        MOEPLAN_LAUNCH(scan_counts_kernel, dim3(1), dim3(kScanThreads), 0, stream, counts, nullptr, nullptr, num_tiles, num_experts);
        MOEPLAN_LAUNCH(place_slots_kernel, dim3(num_tiles), dim3(kThreads), place_bytes, stream, expert_ids, counts, nullptr, nullptr, kept, order,
                       num_slots, num_experts, static_cast<std::int32_t>(std::min<std::int64_t>(a->capacity, num_slots)));
        expert_ids = kept;
    }
    const SlotOrder order{a->units, a->top_k, false};
    MOEPLAN_LAUNCH(count_slots_kernel, dim3(num_tiles), dim3(kThreads), sizeof(std::int32_t) * num_experts, stream, expert_ids, counts, order,
                   num_slots, num_experts);
    MOEPLAN_LAUNCH(scan_counts_kernel, dim3(1), dim3(kScanThreads), 0, stream, counts, a->rows_per_expert, a->offsets, num_tiles, num_experts);
    MOEPLAN_LAUNCH(place_slots_kernel, dim3(num_tiles), dim3(kThreads), place_bytes, stream, expert_ids, counts, a->row_of_slot, a->slot_of_row,
                   nullptr, order, num_slots, num_experts, 0);
    return {};
}

}  // namespace moeplan::cuda
