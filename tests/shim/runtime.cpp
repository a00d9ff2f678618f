// The CUDA runtime and cuBLAS as the kernels' host code sees them: memory is the heap's, every stream runs at once, products
// are plain loops with f32 accumulation.
// What a machine may be: MOEPLAN_SHIM_GPUS (1), MOEPLAN_SHIM_MEMORY in bytes (4 GiB), MOEPLAN_SHIM_DRIVER as 12050; lacking a driver is 0.

#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

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
double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

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

namespace shim {
bool (*streams_hang)() = nullptr;
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
    p->major = 9, p->multiProcessorCount = 1, p->l2CacheSize = 1 << 20;
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
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t) {
    return std::memcpy(to, from, bytes), cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) { return cudaMemcpyAsync(to, from, bytes, kind, nullptr); }
cudaError_t cudaMemsetAsync(void* to, int v, std::size_t bytes, cudaStream_t) { return std::memset(to, v, bytes), cudaSuccess; }
cudaError_t cudaMemset2DAsync(void* to, std::size_t pitch, int v, std::size_t width, std::size_t height, cudaStream_t) {
    for (std::size_t r = 0; r < height; ++r) std::memset(static_cast<char*>(to) + r * pitch, v, width);
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned) { return *out = reinterpret_cast<cudaStream_t>(new char), cudaSuccess; }
cudaError_t cudaStreamDestroy(cudaStream_t s) { return delete reinterpret_cast<char*>(s), cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) {
    if (!shim::streams_hang || !shim::streams_hang()) return cudaSuccess;
    std::fprintf(stderr, "the shim: cudaStreamSynchronize on a stream that never ends\n");
    std::abort();
}
cudaError_t cudaStreamQuery(cudaStream_t) { return shim::streams_hang && shim::streams_hang() ? cudaErrorNotReady : cudaSuccess; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned) { return *out = new CUevent_st{}, cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t e) { return delete e, cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t) { return e->seconds = now(), cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
    return *ms = static_cast<float>((end->seconds - begin->seconds) * 1e3), cudaSuccess;
}

const char* cublasGetStatusString(cublasStatus_t s) { return s == CUBLAS_STATUS_INVALID_VALUE ? "a shape that cuBLAS refuses" : "cuBLAS"; }
cublasStatus_t cublasCreate(cublasHandle_t* out) { return *out = reinterpret_cast<cublasHandle_t>(new char), CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasDestroy(cublasHandle_t h) { return delete reinterpret_cast<char*>(h), CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSetStream(cublasHandle_t, cudaStream_t) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSetWorkspace(cublasHandle_t, void*, std::size_t) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t) { return CUBLAS_STATUS_SUCCESS; }
cublasStatus_t cublasGemmEx(cublasHandle_t, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const void* alpha, const void* a,
                            cudaDataType_t at, int lda, const void* b, cudaDataType_t bt, int ldb, const void* beta, void* c, cudaDataType_t ct,
                            int ldc, cublasComputeType_t, cublasGemmAlgo_t) {
    if (shapes_are_wrong(ta, tb, m, n, k, lda, ldb, ldc) || types_are_wrong(at, bt, ct)) return CUBLAS_STATUS_INVALID_VALUE;
    multiply(ta == CUBLAS_OP_T, tb == CUBLAS_OP_T, m, n, k, *static_cast<const float*>(alpha), a, at, lda, b, bt, ldb,
             *static_cast<const float*>(beta), c, ct, ldc);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t h, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const void* alpha,
                                          const void* a, cudaDataType_t at, int lda, long long stride_a, const void* b, cudaDataType_t bt, int ldb,
                                          long long stride_b, const void* beta, void* c, cudaDataType_t ct, int ldc, long long stride_c, int batch,
                                          cublasComputeType_t compute, cublasGemmAlgo_t algorithm) {
    const auto bytes = [](cudaDataType_t t) { return t == CUDA_R_32F ? 4 : 2; };
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
    int next = 0;
    for (int g = 0; g < groups; ++g)
        for (int i = 0; i < size[g]; ++i, ++next)
            if (const auto status = cublasGemmEx(h, ta[g], tb[g], m[g], n[g], k[g], static_cast<const float*>(alpha) + g, a[next], at, lda[g],
                                                 b[next], bt, ldb[g], static_cast<const float*>(beta) + g, c[next], ct, ldc[g], compute,
                                                 CUBLAS_GEMM_DEFAULT))
                return status;
    return CUBLAS_STATUS_SUCCESS;
}
