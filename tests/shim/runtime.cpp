// The CUDA runtime and cuBLAS as the kernels' host code sees them: memory is the heap's, every stream runs at once, products
// are plain loops with f32 accumulation.
// What a machine may be: MOEPLAN_SHIM_GPUS (1), MOEPLAN_SHIM_MEMORY in bytes (4 GiB), MOEPLAN_SHIM_DRIVER as 12050; lacking a driver is 0;
// MOEPLAN_SHIM_ARCHITECTURE as 70: a GPU that the module was not built for.

#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace {
std::mutex mutex;
cudaError_t last_error = cudaSuccess;
std::map<const void*, std::size_t>& dynamic_limits() {
    static auto& limits = *new std::map<const void*, std::size_t>;
    return limits;
}
std::string failure_text;

constexpr int kRuntime = 12050;
std::size_t machine(const char* variable, std::size_t otherwise) {
    const char* text = std::getenv(variable);
    return text ? std::strtoull(text, nullptr, 10) : otherwise;
}
int num_gpus() { return static_cast<int>(machine("MOEPLAN_SHIM_GPUS", 1)); }
int driver() { return static_cast<int>(machine("MOEPLAN_SHIM_DRIVER", kRuntime)); }
std::size_t memory() { return machine("MOEPLAN_SHIM_MEMORY", std::size_t{4} << 30); }
/// Device memory: where each block begins, and its length.
std::map<const char*, std::size_t>& blocks() {
    static auto& all = *new std::map<const char*, std::size_t>;
    return all;
}
std::size_t memory_used = 0;
/// What a test says that calls of cuBLAS have taken so far.
double pretended_seconds = 0;
double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count() + pretended_seconds;
}


float value(const void* p, cudaDataType_t type, std::int64_t i) {
    return type == CUDA_R_32F ? static_cast<const float*>(p)[i] : __bfloat162float(static_cast<const __nv_bfloat16*>(p)[i]);
}
void set_value(void* p, cudaDataType_t type, std::int64_t i, float v) {
    if (type == CUDA_R_32F)
        static_cast<float*>(p)[i] = v;
    else
        static_cast<__nv_bfloat16*>(p)[i] = __float2bfloat16(v);
}
/// Column-major, as cuBLAS has it.
void multiply(bool ta, bool tb, int m, int n, int k, float alpha, const void* a, cudaDataType_t at, std::int64_t lda, const void* b,
              cudaDataType_t bt, std::int64_t ldb, float beta, void* c, cudaDataType_t ct, std::int64_t ldc) {
    for (int j = 0; j < n; ++j)
        for (int i = 0; i < m; ++i) {
            float sum = 0;
            for (int l = 0; l < k; ++l) sum += value(a, at, ta ? l + i * lda : i + l * lda) * value(b, bt, tb ? j + l * ldb : l + j * ldb);
            const float before = beta == 0 ? 0 : beta * value(c, ct, i + j * ldc);
            set_value(c, ct, i + j * ldc, alpha * sum + before);
        }
}
bool shapes_are_wrong(cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, int lda, int ldb, int ldc) {
    return m < 0 || n < 0 || k < 0 || lda < std::max(1, ta == CUBLAS_OP_N ? m : k) || ldb < std::max(1, tb == CUBLAS_OP_N ? k : n) ||
           ldc < std::max(1, m);
}
bool types_are_wrong(cudaDataType_t a, cudaDataType_t b, cudaDataType_t c) {
    return a != b || (a == CUDA_R_32F && c != CUDA_R_32F);    // the table of cublasGemmEx for CUBLAS_COMPUTE_32F
}
}  // namespace

struct cublasContext { cudaStream_t stream = nullptr; };
struct CUgraph_st {
    std::vector<std::function<void()>> work;
    bool broken = false;
};
namespace {
/// Streams that record now.
std::map<cudaStream_t, CUgraph_st*>& recordings() {
    static auto& all = *new std::map<cudaStream_t, CUgraph_st*>;
    return all;
}
/// Now, or with the graph that the stream records.
template <typename Work>
void run(cudaStream_t stream, Work work) {
    if (shim::records(stream))
        shim::record(stream, work);
    else
        work();
}
/// The stream's recording is worthless from now on, as a GPU has it.
cudaError_t break_recording(cudaStream_t stream) {
    recordings()[stream]->broken = true;
    return cudaErrorStreamCaptureUnsupported;
}
}  // namespace

namespace shim {
bool (*streams_hang)() = nullptr;
bool graphs_fail = false;
Blas& blas() {
    static Blas b;
    return b;
}
bool records(cudaStream_t stream) { return stream && !recordings().empty() && recordings().count(stream) > 0; }
void record(cudaStream_t stream, std::function<void()> work) { recordings()[stream]->work.push_back(std::move(work)); }
bool has_kernels_for_this_device() { return machine("MOEPLAN_SHIM_ARCHITECTURE", 90) == 90; }
void note_error(int error) { last_error = static_cast<cudaError_t>(error); }
void raise_dynamic_limit(const void* kernel, int bytes) {
    const std::lock_guard lock(mutex);
    dynamic_limits()[kernel] = static_cast<std::size_t>(bytes);
}
std::size_t dynamic_limit(const void* kernel) {
    const std::lock_guard lock(mutex);
    const auto found = dynamic_limits().find(kernel);
    return found == dynamic_limits().end() ? 48 * 1024 : found->second;   // more has to be asked for
}
}  // namespace shim

const char* cudaGetErrorString(cudaError_t error) {
    switch (error) {
        case cudaSuccess: return "no error";
        case cudaErrorInvalidConfiguration:
        case cudaErrorLaunchFailure: failure_text = shim::failure(); return failure_text.c_str();
        case cudaErrorMemoryAllocation: return "out of memory";
        case cudaErrorNoDevice: return "no CUDA-capable device is detected";
        case cudaErrorInsufficientDriver: return "CUDA driver version is insufficient for CUDA runtime version";
        case cudaErrorNoKernelImageForDevice: return "no kernel image is available for execution on the device";
        case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
        case cudaErrorStreamCaptureInvalidated: return "operation failed due to a previous error during capture";
        default: return "an error of the CUDA shim";
    }
}
cudaError_t cudaGetLastError() { return std::exchange(last_error, cudaSuccess); }
cudaError_t cudaGetDeviceCount(int* count) {
    if (driver() < kRuntime) return cudaErrorInsufficientDriver;
    if (num_gpus() == 0) return cudaErrorNoDevice;
    return *count = num_gpus(), cudaSuccess;
}
cudaError_t cudaSetDevice(int device) { return device >= 0 && device < num_gpus() ? cudaSuccess : cudaErrorInvalidDevice; }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
    *p = {};
    std::snprintf(p->name, sizeof p->name, "CUDA kernels on fibers (no GPU)");
    p->totalGlobalMem = memory(), p->sharedMemPerBlockOptin = 227 * 1024;
    const int architecture = static_cast<int>(machine("MOEPLAN_SHIM_ARCHITECTURE", 90));
    p->major = architecture / 10, p->minor = architecture % 10, p->multiProcessorCount = 1, p->l2CacheSize = 1 << 20;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* v, cudaDeviceAttr, int) { return *v = 0, cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* v) { return *v = driver(), cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* v) { return *v = kRuntime, cudaSuccess; }
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
    const std::lock_guard lock(mutex);
    return *total = memory(), *free = *total - memory_used, cudaSuccess;
}
cudaError_t cudaMalloc(void** out, std::size_t bytes) {
    const std::lock_guard lock(mutex);
    if (bytes > memory() || memory_used > memory() - bytes) return cudaErrorMemoryAllocation;
    // Exactly as long as asked; the 16-byte alignment of the heap is what our packs need. All bits set: floats are NaN.
    *out = std::malloc(bytes);
    if (!*out) return cudaErrorMemoryAllocation;
    std::memset(*out, 0xff, bytes);
    blocks()[static_cast<char*>(*out)] = bytes;
    memory_used += bytes;
    return cudaSuccess;
}
cudaError_t cudaFree(void* p) {
    const std::lock_guard lock(mutex);
    if (const auto block = blocks().find(static_cast<char*>(p)); block != blocks().end()) {
        memory_used -= block->second;
        blocks().erase(block);
    }
    return std::free(p), cudaSuccess;
}
cudaError_t cudaMallocHost(void** out, std::size_t bytes) { return *out = std::malloc(bytes), *out ? cudaSuccess : cudaErrorMemoryAllocation; }
cudaError_t cudaFreeHost(void* p) { return std::free(p), cudaSuccess; }
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* out, const void* p) {
    const std::lock_guard lock(mutex);
    const auto after = blocks().upper_bound(static_cast<const char*>(p));
    const auto block = after == blocks().begin() ? blocks().end() : std::prev(after);
    const bool inside = block != blocks().end() && static_cast<const char*>(p) <= block->first + block->second;
    return out->type = inside ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered, cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
    return run(stream, [=] { std::memcpy(to, from, bytes); }), cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) { return cudaMemcpyAsync(to, from, bytes, kind, nullptr); }
cudaError_t cudaMemsetAsync(void* to, int v, std::size_t bytes, cudaStream_t stream) {
    return run(stream, [=] { std::memset(to, v, bytes); }), cudaSuccess;
}
cudaError_t cudaMemset2DAsync(void* to, std::size_t pitch, int v, std::size_t width, std::size_t height, cudaStream_t stream) {
    run(stream, [=] {
        for (std::size_t r = 0; r < height; ++r) std::memset(static_cast<char*>(to) + r * pitch, v, width);
    });
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned) { return *out = reinterpret_cast<cudaStream_t>(new char), cudaSuccess; }
cudaError_t cudaStreamDestroy(cudaStream_t s) { return delete reinterpret_cast<char*>(s), cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    if (shim::records(stream)) return break_recording(stream);
    if (!shim::streams_hang || !shim::streams_hang()) return cudaSuccess;
    std::fprintf(stderr, "the shim: cudaStreamSynchronize on a stream that never ends\n");
    std::abort();
}
cudaError_t cudaStreamQuery(cudaStream_t) { return shim::streams_hang && shim::streams_hang() ? cudaErrorNotReady : cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned) { return *out = new CUevent_st{}, cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t e) { return delete e, cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t stream) {
    if (shim::records(stream)) return break_recording(stream);   // a GPU would record other streams along: we never ask for it
    return e->seconds = now(), cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
    return *ms = static_cast<float>((end->seconds - begin->seconds) * 1e3), cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
    if (!stream) return cudaErrorStreamCaptureUnsupported;    // the default stream cannot
    return recordings()[stream] = new CUgraph_st{{}, shim::graphs_fail}, cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* out) {
    *out = recordings()[stream];
    recordings().erase(stream);
    if (!(*out)->broken) return cudaSuccess;
    delete std::exchange(*out, nullptr);
    return cudaErrorStreamCaptureInvalidated;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* out, cudaGraph_t graph, unsigned long long) { return *out = new CUgraph_st(*graph), cudaSuccess; }
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t) {
    for (const auto& work : graph->work) work();
    return cudaGetLastError();
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) { return delete graph, cudaSuccess; }
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete graph, cudaSuccess; }

const char* cublasGetStatusString(cublasStatus_t s) {
    return s == CUBLAS_STATUS_INVALID_VALUE ? "a shape that cuBLAS refuses" : s == CUBLAS_STATUS_NOT_SUPPORTED ? "not supported" : "cuBLAS";
}
cublasStatus_t cublasCreate(cublasHandle_t* out) { return *out = new cublasContext, CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasDestroy(cublasHandle_t h) { return delete h, CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSetStream(cublasHandle_t h, cudaStream_t stream) { return h->stream = stream, CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSetWorkspace(cublasHandle_t, void*, std::size_t) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasGemmEx(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const void* alpha, const void* a,
                            cudaDataType_t at, int lda, const void* b, cudaDataType_t bt, int ldb, const void* beta, void* c, cudaDataType_t ct,
                            int ldc, cublasComputeType_t, cublasGemmAlgo_t) {
    if (shapes_are_wrong(ta, tb, m, n, k, lda, ldb, ldc) || types_are_wrong(at, bt, ct)) return CUBLAS_STATUS_INVALID_VALUE;
    run(h->stream, [=, scale = *static_cast<const float*>(alpha), add = *static_cast<const float*>(beta)] {
        multiply(ta == CUBLAS_OP_T, tb == CUBLAS_OP_T, m, n, k, scale, a, at, lda, b, bt, ldb, add, c, ct, ldc);
    });
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const void* alpha,
                                          const void* a, cudaDataType_t at, int lda, long long stride_a, const void* b, cudaDataType_t bt, int ldb,
                                          long long stride_b, const void* beta, void* c, cudaDataType_t ct, int ldc, long long stride_c, int batch,
                                          cublasComputeType_t compute, cublasGemmAlgo_t algorithm) {
    const auto bytes = [](cudaDataType_t t) { return t == CUDA_R_32F ? 4 : 2; };
    ++shim::blas().plain_calls;
    for (int i = 0; i < batch; ++i)
        if (const auto status = cublasGemmEx(h, ta, tb, m, n, k, alpha, static_cast<const char*>(a) + i * stride_a * bytes(at), at, lda,
                                             static_cast<const char*>(b) + i * stride_b * bytes(bt), bt, ldb, beta,
                                             static_cast<char*>(c) + i * stride_c * bytes(ct), ct, ldc, compute, algorithm))
            return status;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGemmGroupedBatchedEx(cublasHandle_t h, const cublasOperation_t ta[], const cublasOperation_t tb[], const int m[], const int n[],
                                          const int k[], const void* alpha, const void* const a[], cudaDataType_t at, const int lda[],
                                          const void* const b[], cudaDataType_t bt, const int ldb[], const void* beta, void* const c[],
                                          cudaDataType_t ct, const int ldc[], int groups, const int size[], cublasComputeType_t compute) {
    if (at != ct) return CUBLAS_STATUS_INVALID_VALUE;
    if (shim::blas().refuses_grouped) return CUBLAS_STATUS_NOT_SUPPORTED;
    ++shim::blas().grouped_calls;
    pretended_seconds += shim::blas().grouped_seconds;
    int next = 0;
    for (int g = 0; g < groups; ++g)
        for (int i = 0; i < size[g]; ++i, ++next)
            if (const auto status = cublasGemmEx(h, ta[g], tb[g], m[g], n[g], k[g], static_cast<const float*>(alpha) + g, a[next], at, lda[g],
                                                 b[next], bt, ldb[g], static_cast<const float*>(beta) + g, c[next], ct, ldc[g], compute,
                                                 CUBLAS_GEMM_DEFAULT))
                return status;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t* out) { return *out = reinterpret_cast<cublasLtHandle_t>(new char), CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatmulDescInit(cublasLtMatmulDesc_t d, cublasComputeType_t, cudaDataType_t) {
    return d->operation[0] = d->operation[1] = CUBLAS_OP_N, CUBLAS_STATUS_SUCCESS;
}
namespace {
template <typename T>
cublasStatus_t set(T* to, const void* value, std::size_t bytes) {
    if (bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
    return std::memcpy(to, value, bytes), CUBLAS_STATUS_SUCCESS;
}
/// m, n and k of a product, or false where its matrices do not fit each other.
bool sides(const cublasLtMatmulDescOpaque_t& d, const cublasLtMatrixLayoutOpaque_t& a, const cublasLtMatrixLayoutOpaque_t& b,
           const cublasLtMatrixLayoutOpaque_t& c, int (&mnk)[3]) {
    const bool ta = d.operation[0] == CUBLAS_OP_T, tb = d.operation[1] == CUBLAS_OP_T;
    const std::uint64_t m = ta ? a.columns : a.rows, k = ta ? a.rows : a.columns, n = tb ? b.rows : b.columns;
    mnk[0] = static_cast<int>(m), mnk[1] = static_cast<int>(n), mnk[2] = static_cast<int>(k);
    return (tb ? b.columns : b.rows) == k && c.rows == m && c.columns == n && a.batch == b.batch && a.batch == c.batch &&
           !shapes_are_wrong(d.operation[0], d.operation[1], mnk[0], mnk[1], mnk[2], static_cast<int>(a.ld), static_cast<int>(b.ld),
                             static_cast<int>(c.ld)) &&
           !types_are_wrong(a.type, b.type, c.type);
}
const char* matrix_of_batch(const void* p, const cublasLtMatrixLayoutOpaque_t& layout, int i) {
    return static_cast<const char*>(p) + i * layout.stride * (layout.type == CUDA_R_32F ? 4 : 2);
}
}  // namespace
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t which, const void* value, std::size_t bytes) {
    return set(&d->operation[which == CUBLASLT_MATMUL_DESC_TRANSB], value, bytes);
}
cublasStatus_t cublasLtMatrixLayoutInit(cublasLtMatrixLayout_t l, cudaDataType_t type, std::uint64_t rows, std::uint64_t columns, std::int64_t ld) {
    return *l = {type, rows, columns, ld, 1, 0}, CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l, cublasLtMatrixLayoutAttribute_t which, const void* value, std::size_t bytes) {
    return which == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT ? set(&l->batch, value, bytes) : set(&l->stride, value, bytes);
}
cublasStatus_t cublasLtMatmulPreferenceInit(cublasLtMatmulPreference_t p) { return *p = {0, 7, {256, 256, 256, 256}}, CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p, cublasLtMatmulPreferenceAttributes_t which, const void* value,
                                                    std::size_t bytes) {
    if (which == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) return set(&p->workspace, value, bytes);
    if (which == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) return set(&p->reductions, value, bytes);
    return set(&p->alignment[which - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value, bytes);
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t product, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t, cublasLtMatmulPreference_t wishes, int,
                                              cublasLtMatmulHeuristicResult_t results[], int* found) {
    ++shim::blas().heuristics;
    *found = 0;
    if (shim::blas().knows_no_algorithm) return CUBLAS_STATUS_NOT_SUPPORTED;
    int mnk[3];
    if (!sides(*product, *a, *b, *c, mnk)) return CUBLAS_STATUS_INVALID_VALUE;
    cublasLtMatmulAlgo_t algorithm{wishes->workspace, {}, mnk[0], mnk[1], mnk[2], a->type, c->type};
    std::copy(std::begin(wishes->alignment), std::end(wishes->alignment), algorithm.alignment);
    results[0] = {algorithm, wishes->workspace, CUBLAS_STATUS_SUCCESS};
    return *found = 1, CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t product, const void* alpha, const void* a, cublasLtMatrixLayout_t al,
                              const void* b, cublasLtMatrixLayout_t bl, const void* beta, const void* c, cublasLtMatrixLayout_t cl, void* d,
                              cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t* with, void* workspace, std::size_t workspace_bytes,
                              cudaStream_t stream) {
    int mnk[3];
    if (!sides(*product, *al, *bl, *cl, mnk) || !workspace || workspace_bytes < with->workspace || c != d || al->type != with->type ||
        cl->type != with->out_type || mnk[0] > with->m || mnk[1] > with->n || mnk[2] > with->k)
        return CUBLAS_STATUS_INVALID_VALUE;
    for (int i = 0; i < al->batch; ++i) {
        const char* const matrices[] = {matrix_of_batch(a, *al, i), matrix_of_batch(b, *bl, i), matrix_of_batch(c, *cl, i), matrix_of_batch(d, *cl, i)};
        for (int j = 0; j < 4; ++j)
            if (reinterpret_cast<std::uintptr_t>(matrices[j]) % with->alignment[j] != 0) return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (shim::blas().refuses_smaller_shapes && (mnk[0] < with->m || mnk[1] < with->n || mnk[2] < with->k)) return CUBLAS_STATUS_NOT_SUPPORTED;
    ++shim::blas().lt_calls;
    pretended_seconds += shim::blas().lt_seconds;
    run(stream, [=, p = *product, la = *al, lb = *bl, lc = *cl, scale = *static_cast<const float*>(alpha), add = *static_cast<const float*>(beta)] {
        for (int i = 0; i < la.batch; ++i)
            multiply(p.operation[0] == CUBLAS_OP_T, p.operation[1] == CUBLAS_OP_T, mnk[0], mnk[1], mnk[2], scale, matrix_of_batch(a, la, i), la.type,
                     la.ld, matrix_of_batch(b, lb, i), lb.type, lb.ld, add, const_cast<char*>(matrix_of_batch(d, lc, i)), lc.type, lc.ld);
    });
    return CUBLAS_STATUS_SUCCESS;
}
