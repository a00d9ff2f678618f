// Matrix products by cuBLAS: one, a batch, and the three products of a layer of experts.
//
// Result     deterministic: handles and their workspaces belong to one stream each, atomics are off
// Work       2·m·n·k flops; each matrix once through memory at best

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string_view>
#include <vector>

#include "kernels/cuda/blas.hpp"
#include "kernels/cuda/kernels.hpp"

namespace moeplan::cuda {

Status cublas_failure(cublasStatus_t status, const char* call, const char* file, int line) {
    char text[256];
    const char* name = std::strrchr(file, '/');
    std::snprintf(text, sizeof text, "%s (status %d) from %.120s at %s:%d", cublasGetStatusString(status), static_cast<int>(status), call,
                  name ? name + 1 : file, line);
    return status_of(status == CUBLAS_STATUS_ALLOC_FAILED ? kOutOfMemory : kFailed, text);
}

namespace {

constexpr int kSideStreams = 4;
#if defined(MOEPLAN_CUDA_SHIM)
constexpr std::size_t kWorkspace = 1024;
#else
constexpr std::size_t kWorkspace = 32u << 20;                 // NVIDIA's advice for Hopper, cublasSetWorkspace
#endif

/// A cuBLAS handle bound to one stream.
Status handle_of(cudaStream_t stream, cublasHandle_t* out) {
    struct Bound {
        cublasHandle_t handle;
        void* workspace;
    };
    static std::mutex mutex;
    static auto& handles = *new std::map<cudaStream_t, Bound>;        // as long as the process
    const std::lock_guard lock(mutex);
    if (const auto found = handles.find(stream); found != handles.end()) {
        *out = found->second.handle;
        return {};
    }
    cublasHandle_t handle = nullptr;
    MOEPLAN_CUBLAS(cublasCreate(&handle));
    MOEPLAN_CUBLAS(cublasSetStream(handle, stream));
    void* workspace = nullptr;
    MOEPLAN_CUDA(cudaMalloc(&workspace, kWorkspace));         // its own: results do not depend on what other streams do
    MOEPLAN_CUBLAS(cublasSetWorkspace(handle, workspace, kWorkspace));
    MOEPLAN_CUBLAS(cublasSetMathMode(
        handle, static_cast<cublasMath_t>(CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION)));
    handles.emplace(stream, Bound{handle, workspace});
    *out = handle;
    return {};
}

/// Streams beside the caller's, so that small products of different experts overlap.
struct SideStreams {
    cudaStream_t streams[kSideStreams] = {};
    cudaEvent_t begin = nullptr, ends[kSideStreams] = {};
};
Status side_streams(const SideStreams** out) {
    static std::mutex mutex;
    static SideStreams* made = nullptr;
    const std::lock_guard lock(mutex);
    if (!made) {
        auto* side = new SideStreams;
        MOEPLAN_CUDA(cudaEventCreateWithFlags(&side->begin, cudaEventDisableTiming));
        for (int i = 0; i < kSideStreams; ++i) {
            MOEPLAN_CUDA(cudaStreamCreateWithFlags(&side->streams[i], cudaStreamNonBlocking));
            MOEPLAN_CUDA(cudaEventCreateWithFlags(&side->ends[i], cudaEventDisableTiming));
        }
        made = side;
    }
    *out = made;
    return {};
}

bool known(NumberFormat f) { return f == NumberFormat::f32 || f == NumberFormat::bf16; }
cudaDataType_t type_of(NumberFormat f) { return f == NumberFormat::f32 ? CUDA_R_32F : CUDA_R_16BF; }
std::int64_t bytes_of(NumberFormat f) { return f == NumberFormat::f32 ? 4 : 2; }
bool fits_int(std::int64_t v) { return v <= std::numeric_limits<int>::max(); }

/// How the experts' products are launched. `automatic` is a rule that no GPU has confirmed yet: few rows an expert fill a
/// GPU badly one by one, so that one grouped launch should win; scripts/gpu-run measures both.
enum class Launches { automatic, one_by_one, grouped };
Launches launches_wanted() {
    const char* text = std::getenv("MOEPLAN_GROUPED_GEMM");
    if (!text) return Launches::automatic;
    if (std::string_view(text) == "loop") return Launches::one_by_one;
    if (std::string_view(text) == "grouped") return Launches::grouped;
    return Launches::automatic;
}
constexpr std::int64_t kFewRows = 256;

/// One expert's product, as rows [begin, end) of x and y and its own w.
Product product_of(const GroupedGemmCall& a, std::int64_t expert, std::int64_t begin, std::int64_t rows) {
    const std::int64_t size = bytes_of(a.format);
    char *x = static_cast<char*>(a.x) + begin * a.k * size, *y = static_cast<char*>(a.y) + begin * a.n * size;
    char* w = static_cast<char*>(a.w) + expert * a.n * a.k * (a.product == GroupedProduct::weight_gradient ? 4 : size);
    Product p{};
    p.format = p.out_format = a.format;
    switch (a.product) {
        case GroupedProduct::forward:                         // y[rows, n] = x · wᵀ
            p.m = rows, p.n = a.n, p.k = a.k, p.a = {x, a.k}, p.b = {w, a.k, 0, true}, p.c = y, p.ldc = a.n;
            break;
        case GroupedProduct::data_gradient:                   // x[rows, k] = y · w
            p.m = rows, p.n = a.k, p.k = a.n, p.a = {y, a.n}, p.b = {w, a.k}, p.c = x, p.ldc = a.k;
            break;
        case GroupedProduct::weight_gradient:                 // w[n, k] += yᵀ · x, in f32
            p.m = a.n, p.n = a.k, p.k = rows, p.a = {y, a.n, 0, true}, p.b = {x, a.k}, p.c = w, p.ldc = a.k, p.beta = 1;
            p.out_format = NumberFormat::f32;
            break;
    }
    return p;
}

Status one_by_one(const GroupedGemmCall& a, const std::int32_t* offsets, cudaStream_t stream) {
    const SideStreams* side = nullptr;
    MOEPLAN_TRY(side_streams(&side));
    MOEPLAN_CUDA(cudaEventRecord(side->begin, stream));
    const int used = static_cast<int>(std::min<std::int64_t>(kSideStreams, a.num_experts));
    for (int i = 0; i < used; ++i) MOEPLAN_CUDA(cudaStreamWaitEvent(side->streams[i], side->begin));
    int next = 0;
    for (std::int64_t e = 0; e < a.num_experts; ++e) {
        const std::int64_t rows = offsets[e + 1] - offsets[e];
        if (rows <= 0) continue;                              // zeros are added to dw, nothing is written elsewhere
        MOEPLAN_TRY(multiply(product_of(a, e, offsets[e], rows), side->streams[next]));
        next = (next + 1) % used;
    }
    for (int i = 0; i < used; ++i) {
        MOEPLAN_CUDA(cudaEventRecord(side->ends[i], side->streams[i]));
        MOEPLAN_CUDA(cudaStreamWaitEvent(stream, side->ends[i]));
    }
    return {};
}

#if CUBLAS_VERSION >= 120500
constexpr bool kHaveGrouped = true;
Status grouped(const GroupedGemmCall& a, const std::int32_t* offsets, cudaStream_t stream) {
    std::vector<cublasOperation_t> op_a, op_b;
    std::vector<int> m, n, k, lda, ldb, ldc, size;
    std::vector<float> alpha, beta;
    std::vector<const void*> pointers[3];
    for (std::int64_t e = 0; e < a.num_experts; ++e) {
        const std::int64_t rows = offsets[e + 1] - offsets[e];
        if (rows <= 0) continue;
        // cuBLAS is column-major: cᵀ = op(b)ᵀ · op(a)ᵀ.
        const Product p = product_of(a, e, offsets[e], rows);
        op_a.push_back(p.b.transpose ? CUBLAS_OP_T : CUBLAS_OP_N), op_b.push_back(p.a.transpose ? CUBLAS_OP_T : CUBLAS_OP_N);
        m.push_back(static_cast<int>(p.n)), n.push_back(static_cast<int>(p.m)), k.push_back(static_cast<int>(p.k));
        lda.push_back(static_cast<int>(p.b.ld)), ldb.push_back(static_cast<int>(p.a.ld)), ldc.push_back(static_cast<int>(p.ldc));
        size.push_back(1);
        alpha.push_back(1), beta.push_back(static_cast<float>(p.beta));
        pointers[0].push_back(p.b.data), pointers[1].push_back(p.a.data), pointers[2].push_back(p.c);
    }
    const std::size_t count = m.size();
    if (count == 0) return {};
    void* memory = nullptr;
    MOEPLAN_TRY(scratch(stream, 3 * count * sizeof(void*), &memory));
    auto* const device = static_cast<void**>(memory);
    for (int i = 0; i < 3; ++i)                               // from pageable memory: staged before the call returns
        MOEPLAN_CUDA(cudaMemcpyAsync(device + i * count, pointers[i].data(), count * sizeof(void*), cudaMemcpyDefault, stream));
    cublasHandle_t handle = nullptr;
    MOEPLAN_TRY(handle_of(stream, &handle));
    const cudaDataType_t type = type_of(a.format);
    MOEPLAN_CUBLAS(cublasGemmGroupedBatchedEx(handle, op_a.data(), op_b.data(), m.data(), n.data(), k.data(), alpha.data(), device, type, lda.data(),
                                              device + count, type, ldb.data(), beta.data(), device + 2 * count, type, ldc.data(),
                                              static_cast<int>(count), size.data(), CUBLAS_COMPUTE_32F));
    return {};
}
#else
constexpr bool kHaveGrouped = false;
Status grouped(const GroupedGemmCall&, const std::int32_t*, cudaStream_t) { return unsupported("grouped_gemm", "cuBLAS before 12.5"); }
#endif

}  // namespace

Status multiply(const Product& p, cudaStream_t stream) {
    if (p.m == 0 || p.n == 0 || p.batch == 0) return {};
    if (!known(p.format) || !known(p.out_format) || (p.format == NumberFormat::f32 && p.out_format != NumberFormat::f32))
        return unsupported("gemm", "multiplies f32 into f32, bf16 into bf16 or f32");
    if (!fits_int(p.m) || !fits_int(p.n) || !fits_int(p.k) || !fits_int(p.a.ld) || !fits_int(p.b.ld) || !fits_int(p.ldc) || !fits_int(p.batch))
        return unsupported("gemm", "a side of more than 2^31 − 1");
    if (p.k == 0) {                                           // an empty sum
        if (p.beta == 1) return {};
        if (p.beta != 0) return unsupported("gemm", "k = 0 with beta other than 0 and 1");
        for (std::int64_t i = 0; i < p.batch; ++i)
            MOEPLAN_CUDA(cudaMemset2DAsync(static_cast<char*>(p.c) + i * p.c_stride * bytes_of(p.out_format), p.ldc * bytes_of(p.out_format), 0,
                                           p.n * bytes_of(p.out_format), p.m, stream));
        return {};
    }
    cublasHandle_t handle = nullptr;
    MOEPLAN_TRY(handle_of(stream, &handle));
    const float alpha = static_cast<float>(p.alpha), beta = static_cast<float>(p.beta);
    const cublasOperation_t op_a = p.a.transpose ? CUBLAS_OP_T : CUBLAS_OP_N, op_b = p.b.transpose ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cudaDataType_t type = type_of(p.format), out_type = type_of(p.out_format);
    const int m = static_cast<int>(p.m), n = static_cast<int>(p.n), k = static_cast<int>(p.k), lda = static_cast<int>(p.a.ld),
              ldb = static_cast<int>(p.b.ld), ldc = static_cast<int>(p.ldc);
    // cuBLAS is column-major: cᵀ = op(b)ᵀ · op(a)ᵀ.
    if (p.batch == 1)
        MOEPLAN_CUBLAS(cublasGemmEx(handle, op_b, op_a, n, m, k, &alpha, p.b.data, type, ldb, p.a.data, type, lda, &beta, p.c, out_type, ldc,
                                    CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    else
        MOEPLAN_CUBLAS(cublasGemmStridedBatchedEx(handle, op_b, op_a, n, m, k, &alpha, p.b.data, type, ldb, p.b.stride, p.a.data, type, lda,
                                                  p.a.stride, &beta, p.c, out_type, ldc, p.c_stride, static_cast<int>(p.batch), CUBLAS_COMPUTE_32F,
                                                  CUBLAS_GEMM_DEFAULT));
    return {};
}

Status gemm(const GemmCall* a, Stream_* stream) {
    Product p{};
    p.m = a->m, p.n = a->n, p.k = a->k;
    p.a = {a->a, a->lda, 0, a->transpose_a};
    p.b = {a->b, a->ldb, 0, a->transpose_b};
    p.c = a->c, p.ldc = a->ldc, p.alpha = a->alpha, p.beta = a->beta, p.format = a->format, p.out_format = a->out_format;
    return multiply(p, as_stream(stream));
}

Status grouped_gemm(const GroupedGemmCall* a, Stream_* stream_) {
    const cudaStream_t stream = as_stream(stream_);
    if (!known(a->format)) return unsupported("grouped_gemm", "multiplies f32 and bf16");
    if (a->num_experts == 0 || a->rows == 0 || a->n == 0 || a->k == 0) return {};
    const std::int32_t* offsets = a->host_offsets;
    std::vector<std::int32_t> copied;
    if (!offsets) {                                           // cuBLAS wants shapes on the host: fetch them, and wait
        copied.resize(a->num_experts + 1);
        MOEPLAN_CUDA(cudaMemcpyAsync(copied.data(), a->offsets, sizeof(std::int32_t) * copied.size(), cudaMemcpyDefault, stream));
        MOEPLAN_CUDA(cudaStreamSynchronize(stream));
        offsets = copied.data();
    }
    const Launches wanted = launches_wanted();
    // The grouped call writes what it reads (no f32 output of bf16 inputs).
    const bool can = kHaveGrouped && !(a->product == GroupedProduct::weight_gradient && a->format != NumberFormat::f32);
    const bool few = a->rows < kFewRows * a->num_experts;
    if (can && (wanted == Launches::grouped || (wanted == Launches::automatic && few))) return grouped(*a, offsets, stream);
    return one_by_one(*a, offsets, stream);
}

}  // namespace moeplan::cuda
