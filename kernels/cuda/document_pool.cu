// EMO's document pools: scores of all experts summed over a document's units, and the pool of the best.
//
// Shapes     probabilities [units, num_experts] f32; document_begin [num_documents + 1]; scores, allowed [num_documents, num_experts]
// Mapping    sums: a block of 8 warps takes 32 experts of one document, lane = expert, warp w takes units w, w+8, …;
//            pool: a block a document, thread e ranks expert e by counting the better ones
// Result     deterministic: each warp adds in order of units, then the warps are added in order
// Moves      4·units·num_experts + 5·num_documents·num_experts bytes

#include "kernels/cuda/device_math.hpp"
#include "kernels/cuda/kernels.hpp"

namespace moeplan::cuda {
namespace {

constexpr int kWarps = 8;

__global__ void __launch_bounds__(kWarps* kWarp) document_sums_kernel(const float* __restrict__ probabilities,
                                                                      const std::int32_t* __restrict__ document_begin,
                                                                      float* __restrict__ scores, int num_experts) {
    MOEPLAN_SHARED(float, partial, kWarps * kWarp);
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, e = blockIdx.x * kWarp + lane;
    const std::int64_t document = blockIdx.y, end = document_begin[document + 1];
    float sum = 0;
    if (e < num_experts) {
#pragma unroll 4
        for (std::int64_t unit = document_begin[document] + warp; unit < end; unit += kWarps) sum += probabilities[unit * num_experts + e];
    }
    partial[threadIdx.x] = sum;
    __syncthreads();
    if (warp == 0 && e < num_experts) {
        sum = 0;
        for (int w = 0; w < kWarps; ++w) sum += partial[w * kWarp + lane];
        scores[document * num_experts + e] = sum;
    }
}

__global__ void document_pool_kernel(const float* __restrict__ scores, const std::int32_t* __restrict__ pool_size,
                                     std::uint8_t* __restrict__ allowed, int num_experts) {
    MOEPLAN_DYNAMIC_SHARED(float, score);
    const std::int64_t document = blockIdx.x;
    for (int e = threadIdx.x; e < num_experts; e += blockDim.x) score[e] = scores[document * num_experts + e];
    __syncthreads();
    for (int e = threadIdx.x; e < num_experts; e += blockDim.x) {
        const float mine = score[e];
        int better = 0;
        for (int other = 0; other < num_experts; ++other) better += score[other] > mine || (score[other] == mine && other < e);
        allowed[document * num_experts + e] = better < pool_size[document];
    }
}

}  // namespace

Status document_pool(const DocumentPoolMask* a, Stream_* stream_) {
    const cudaStream_t stream = as_stream(stream_);
    if (stat_format(a->format) != NumberFormat::f32) return unsupported("document_pool", "statistics are f32");
    if (a->num_experts > 8192) return unsupported("document_pool", "more than 8192 experts");
    if (a->num_documents == 0 || a->num_experts == 0) return {};
    const int num_experts = static_cast<int>(a->num_experts);
    // A grid's y dimension ends at 65535.
    constexpr std::int64_t kMost = 65535;
    for (std::int64_t first = 0; first < a->num_documents; first += kMost) {
        const unsigned count = static_cast<unsigned>(std::min(kMost, a->num_documents - first));
        MOEPLAN_LAUNCH(document_sums_kernel, dim3(ceil_div(num_experts, kWarp), count), dim3(kWarps * kWarp), 0, stream,
                       static_cast<const float*>(a->probabilities), a->document_begin + first,
                       static_cast<float*>(a->scores) + first * num_experts, num_experts);
    }
    MOEPLAN_LAUNCH(document_pool_kernel, dim3(a->num_documents), dim3(threads_for_row(num_experts)), sizeof(float) * num_experts, stream,
                   static_cast<const float*>(a->scores), a->pool_size, a->allowed, num_experts);
    return {};
}

}  // namespace moeplan::cuda
