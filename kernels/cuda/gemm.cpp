// Matrix products by cuBLASLt: one, or a batch.
//
// Result     deterministic: a product's algorithm follows from its shape and alignment alone, is asked for once and kept; partial sums of a
//            split k are added in f32; the workspace belongs to one stream
// Work       2·m·n·k flops; each matrix once through memory at best

#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <compare>
#include <cstring>
#include <map>
#include <mutex>

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

Status workspace_of(cudaStream_t stream, Workspace* out) {
#if defined(MOEPLAN_CUDA_SHIM)
    constexpr std::size_t kBytes = 1024;
#else
    constexpr std::size_t kBytes = 32u << 20;                 // NVIDIA's advice for Hopper, cublasSetWorkspace
#endif
    static std::mutex mutex;
    static auto& workspaces = *new std::map<cudaStream_t, Workspace>;   // as long as the process
    stream = owner_of(stream);
    const std::lock_guard lock(mutex);
    Workspace& workspace = workspaces[stream];
    if (!workspace.data) {
        MOEPLAN_TRY(device_memory(kBytes, "the workspace of matrix products", &workspace.data));
        workspace.bytes = kBytes;
    }
    *out = workspace;
    return {};
}

Status handle_of(cudaStream_t stream, cublasHandle_t* out) {
    static std::mutex mutex;
    static auto& handles = *new std::map<cudaStream_t, cublasHandle_t>;
    Workspace workspace;
    MOEPLAN_TRY(workspace_of(stream, &workspace));
    const std::lock_guard lock(mutex);
    if (const auto found = handles.find(stream); found != handles.end()) {
        *out = found->second;
        return {};
    }
    cublasHandle_t handle = nullptr;
    MOEPLAN_CUBLAS(cublasCreate(&handle));
    MOEPLAN_CUBLAS(cublasSetStream(handle, stream));
    MOEPLAN_CUBLAS(cublasSetWorkspace(handle, workspace.data, workspace.bytes));
    MOEPLAN_CUBLAS(cublasSetMathMode(
        handle, static_cast<cublasMath_t>(CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION)));
    *out = handles[stream] = handle;
    return {};
}

namespace {

bool known(NumberFormat f) { return f == NumberFormat::f32 || f == NumberFormat::bf16; }
bool fits_int(std::int64_t v) { return v <= std::numeric_limits<int>::max(); }

Status lt_handle(cublasLtHandle_t* out) {
    static std::mutex mutex;
    static cublasLtHandle_t handle = nullptr;
    const std::lock_guard lock(mutex);
    if (!handle) MOEPLAN_CUBLAS(cublasLtCreate(&handle));
    *out = handle;
    return {};
}

/// The largest power of two, 256 at most, at which the matrix and its siblings of the batch begin.
std::uint32_t alignment_of(const void* data, std::int64_t stride_bytes) {
    const std::uint64_t bits = reinterpret_cast<std::uintptr_t>(data) | static_cast<std::uint64_t>(stride_bytes) | 256;
    return static_cast<std::uint32_t>(bits & (~bits + 1));
}

/// All that an algorithm depends on.
struct Shape {
    std::int64_t m, n, k, lda, ldb, ldc, a_stride, b_stride, c_stride, batch;
    std::array<std::uint32_t, 3> alignment;
    bool transpose_a, transpose_b;
    NumberFormat format, out_format;
    auto operator<=>(const Shape&) const = default;
};

/// Up to eight sizes an octave.
std::int64_t bucket(std::int64_t v) {
    std::int64_t step = 1;
    while (step * 16 < v) step *= 2;
    return ceil_div(v, step) * step;
}

Shape shape_of(const Product& p) {
    return {.m = p.m, .n = p.n, .k = p.k, .lda = p.a.ld, .ldb = p.b.ld, .ldc = p.ldc,
            .a_stride = p.a.stride, .b_stride = p.b.stride, .c_stride = p.c_stride, .batch = p.batch,
            .alignment = {alignment_of(p.a.data, p.a.stride * bytes_of(p.format)), alignment_of(p.b.data, p.b.stride * bytes_of(p.format)),
                          alignment_of(p.c, p.c_stride * bytes_of(p.out_format))},
            .transpose_a = p.a.transpose, .transpose_b = p.b.transpose, .format = p.format, .out_format = p.out_format};
}

/// A product as cuBLASLt is told of it. It is column-major: cᵀ = op(b)ᵀ · op(a)ᵀ, so that our b is its first matrix.
struct Description {
    cublasLtMatmulDescOpaque_t product{};
    cublasLtMatrixLayoutOpaque_t a{}, b{}, c{};
};
Status describe(const Shape& s, Description* d) {
    MOEPLAN_CUBLAS(cublasLtMatmulDescInit(&d->product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const cublasOperation_t op_a = s.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N, op_b = s.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    MOEPLAN_CUBLAS(cublasLtMatmulDescSetAttribute(&d->product, CUBLASLT_MATMUL_DESC_TRANSA, &op_b, sizeof op_b));
    MOEPLAN_CUBLAS(cublasLtMatmulDescSetAttribute(&d->product, CUBLASLT_MATMUL_DESC_TRANSB, &op_a, sizeof op_a));
    const auto layout = [&](cublasLtMatrixLayoutOpaque_t* out, NumberFormat format, std::int64_t rows, std::int64_t columns, std::int64_t ld,
                            std::int64_t stride) -> Status {
        MOEPLAN_CUBLAS(cublasLtMatrixLayoutInit(out, type_of(format), static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns), ld));
        if (s.batch == 1) return {};
        const auto batch = static_cast<std::int32_t>(s.batch);
        MOEPLAN_CUBLAS(cublasLtMatrixLayoutSetAttribute(out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch));
        MOEPLAN_CUBLAS(cublasLtMatrixLayoutSetAttribute(out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride));
        return {};
    };
    MOEPLAN_TRY(layout(&d->b, s.format, s.transpose_b ? s.k : s.n, s.transpose_b ? s.n : s.k, s.ldb, s.b_stride));
    MOEPLAN_TRY(layout(&d->a, s.format, s.transpose_a ? s.m : s.k, s.transpose_a ? s.k : s.m, s.lda, s.a_stride));
    return layout(&d->c, s.out_format, s.n, s.m, s.ldc, s.c_stride);
}

/// What cuBLASLt's heuristic advises for a shape. `found` is false where it has nothing: cuBLAS then takes the product.
struct Algorithm {
    bool found = false;
    cublasLtMatmulAlgo_t algorithm{};
};
Status ask(const Shape& s, std::size_t workspace, Algorithm* out) {
    cublasLtHandle_t handle = nullptr;
    MOEPLAN_TRY(lt_handle(&handle));
    Description d;
    MOEPLAN_TRY(describe(s, &d));
    cublasLtMatmulPreferenceOpaque_t wishes{};
    MOEPLAN_CUBLAS(cublasLtMatmulPreferenceInit(&wishes));
    const std::uint64_t bytes = workspace;
    const std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;   // parts of a split k are added in f32, never in bf16
    MOEPLAN_CUBLAS(cublasLtMatmulPreferenceSetAttribute(&wishes, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes));
    MOEPLAN_CUBLAS(cublasLtMatmulPreferenceSetAttribute(&wishes, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions));
    const auto align = [&](cublasLtMatmulPreferenceAttributes_t which, std::uint32_t alignment) -> Status {
        MOEPLAN_CUBLAS(cublasLtMatmulPreferenceSetAttribute(&wishes, which, &alignment, sizeof alignment));
        return {};
    };
    MOEPLAN_TRY(align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, s.alignment[1]));
    MOEPLAN_TRY(align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, s.alignment[0]));
    MOEPLAN_TRY(align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, s.alignment[2]));
    MOEPLAN_TRY(align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, s.alignment[2]));
    cublasLtMatmulHeuristicResult_t result{};
    int count = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle, &d.product, &d.b, &d.a, &d.c, &d.c, &wishes, 1, &result, &count);
    out->found = status == CUBLAS_STATUS_SUCCESS && count > 0 && result.state == CUBLAS_STATUS_SUCCESS;
    if (out->found) out->algorithm = result.algo;
    if (status != CUBLAS_STATUS_SUCCESS && status != CUBLAS_STATUS_NOT_SUPPORTED)
        return cublas_failure(status, "cublasLtMatmulAlgoGetHeuristic", __FILE__, __LINE__);
    return {};
}
Status algorithm_for(const Shape& shape, std::size_t workspace, Algorithm* out) {
    static std::mutex mutex;
    static auto& known_shapes = *new std::map<Shape, Algorithm>;
    const std::lock_guard lock(mutex);
    const auto found = known_shapes.find(shape);
    if (found != known_shapes.end()) {
        *out = found->second;
        return {};
    }
    MOEPLAN_TRY(ask(shape, workspace, out));
    known_shapes.emplace(shape, *out);
    return {};
}

/// @param done  set to whether cuBLASLt took it: an algorithm for the next larger size may refuse a smaller one
Status by_lt(const Product& p, const Algorithm& with, const Workspace& workspace, cudaStream_t stream, bool* done) {
    cublasLtHandle_t handle = nullptr;
    MOEPLAN_TRY(lt_handle(&handle));
    Description d;
    MOEPLAN_TRY(describe(shape_of(p), &d));
    const float alpha = static_cast<float>(p.alpha), beta = static_cast<float>(p.beta);
    const cublasStatus_t status = cublasLtMatmul(handle, &d.product, &alpha, p.b.data, &d.b, p.a.data, &d.a, &beta, p.c, &d.c, p.c, &d.c,
                                                 &with.algorithm, workspace.data, workspace.bytes, stream);
    *done = status == CUBLAS_STATUS_SUCCESS;
    if (!*done && status != CUBLAS_STATUS_NOT_SUPPORTED && status != CUBLAS_STATUS_INVALID_VALUE)
        return cublas_failure(status, "cublasLtMatmul", __FILE__, __LINE__);
    return {};
}

Status by_cublas(const Product& p, cudaStream_t stream) {
    cublasHandle_t handle = nullptr;
    MOEPLAN_TRY(handle_of(stream, &handle));
    const float alpha = static_cast<float>(p.alpha), beta = static_cast<float>(p.beta);
    const cublasOperation_t op_a = p.a.transpose ? CUBLAS_OP_T : CUBLAS_OP_N, op_b = p.b.transpose ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cudaDataType_t type = type_of(p.format);
    MOEPLAN_CUBLAS(cublasGemmStridedBatchedEx(handle, op_b, op_a, static_cast<int>(p.n), static_cast<int>(p.m), static_cast<int>(p.k), &alpha,
                                              p.b.data, type, static_cast<int>(p.b.ld), p.b.stride, p.a.data, type, static_cast<int>(p.a.ld),
                                              p.a.stride, &beta, p.c, type_of(p.out_format), static_cast<int>(p.ldc), p.c_stride,
                                              static_cast<int>(p.batch), CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    return {};
}

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
    Workspace workspace;
    MOEPLAN_TRY(workspace_of(stream, &workspace));
    Shape shape = shape_of(p);
    if (p.varying == Varying::m) shape.m = bucket(shape.m);
    if (p.varying == Varying::k) shape.k = bucket(shape.k);
    for (const bool exact : {false, true}) {
        if (exact && p.varying == Varying::none) break;
        if (exact) shape = shape_of(p);
        Algorithm algorithm;
        MOEPLAN_TRY(algorithm_for(shape, workspace.bytes, &algorithm));
        bool done = false;
        if (algorithm.found) MOEPLAN_TRY(by_lt(p, algorithm, workspace, stream, &done));
        if (done) return {};
    }
    return by_cublas(p, stream);
}

Status gemm(const GemmCall* a, Stream_* stream) {
    Product p{};
    p.m = a->m, p.n = a->n, p.k = a->k;
    p.a = {a->a, a->lda, 0, a->transpose_a};
    p.b = {a->b, a->ldb, 0, a->transpose_b};
    p.c = a->c, p.ldc = a->ldc, p.alpha = a->alpha, p.beta = a->beta, p.format = a->format, p.out_format = a->out_format;
    return multiply(p, as_stream(stream));
}

}  // namespace moeplan::cuda
