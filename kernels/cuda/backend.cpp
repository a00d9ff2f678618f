// The CUDA device as a Backend: memory, streams, facts, and the table of kernels. What this module exports is at the end.

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>

#include "kernels/cuda/blas.hpp"
#include "kernels/cuda/graphs.hpp"
#include "kernels/cuda/kernels.hpp"
#include "kernels/cuda/launch.hpp"

namespace moeplan::cuda {

Status cuda_failure(cudaError_t error, const char* call, const char* file, int line) {
    char text[256];
    const char* name = std::strrchr(file, '/');
    std::snprintf(text, sizeof text, "%s (error %d) from %.120s at %s:%d", cudaGetErrorString(error), static_cast<int>(error), call,
                  name ? name + 1 : file, line);
    return status_of(error == cudaErrorMemoryAllocation ? kOutOfMemory : kFailed, text);
}

namespace {

std::atomic<int> the_ordinal = -1;    // one device a process: one rank, one GPU

struct Buffer {
    void* data = nullptr;
    std::size_t bytes = 0;
    bool in_a_graph = false;          ///< a graph knows its address: it stays
};
std::mutex scratch_mutex;
std::map<cudaStream_t, Buffer>& scratch_buffers() {
    static auto& buffers = *new std::map<cudaStream_t, Buffer>;       // outlives static destructors, as the driver may not
    return buffers;
}

/// The current device belongs to a host thread: every thread that calls us works on the one device.
Status use_device() {
    thread_local int used = -1;
    const int ordinal = the_ordinal;
    if (used == ordinal) return {};
    MOEPLAN_CUDA(cudaSetDevice(ordinal));
    used = ordinal;
    return {};
}

/// "1.50 GiB", "8.00 MiB".
void put_size(char (&text)[32], double bytes) {
    if (bytes >= 1073741824.0)
        std::snprintf(text, sizeof text, "%.2f GiB", bytes / 1073741824.0);
    else if (bytes >= 1048576.0)
        std::snprintf(text, sizeof text, "%.2f MiB", bytes / 1048576.0);
    else
        std::snprintf(text, sizeof text, "%.0f bytes", bytes);
}

Status allocate(std::size_t bytes, void** out) { return device_memory(bytes, nullptr, out); }
Status release(void* p) {
    MOEPLAN_TRY(use_device());
    MOEPLAN_CUDA(cudaFree(p));                                // waits for all streams: no kernel still reads it
    return {};
}
Status copy(void* to, const void* from, std::size_t bytes, Stream_* stream) {
    MOEPLAN_TRY(use_device());
    if (bytes) MOEPLAN_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, as_stream(stream)));
    return {};
}
Status set_zero(void* to, std::size_t bytes, Stream_* stream) {
    MOEPLAN_TRY(use_device());
    if (bytes) MOEPLAN_CUDA(cudaMemsetAsync(to, 0, bytes, as_stream(stream)));
    return {};
}
Status synchronise(Stream_* stream) {
    MOEPLAN_TRY(use_device());
    MOEPLAN_CUDA(cudaStreamSynchronize(as_stream(stream)));
    return {};
}

Status create_stream(Stream_** out) {
    MOEPLAN_TRY(use_device());
    cudaStream_t stream = nullptr;
    MOEPLAN_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    *out = reinterpret_cast<Stream_*>(stream);
    return {};
}
Status release_stream(Stream_* stream) {
    if (!stream) return {};
    MOEPLAN_CUDA(cudaStreamSynchronize(as_stream(stream)));
    release_scratch(as_stream(stream));
    MOEPLAN_CUDA(cudaStreamDestroy(as_stream(stream)));
    return {};
}
cudaEvent_t as_event(const Event_* e) { return reinterpret_cast<cudaEvent_t>(const_cast<Event_*>(e)); }
Status create_event(Event_** out) {
    MOEPLAN_TRY(use_device());
    cudaEvent_t event = nullptr;
    MOEPLAN_CUDA(cudaEventCreateWithFlags(&event, cudaEventDefault));
    *out = reinterpret_cast<Event_*>(event);
    return {};
}
Status release_event(Event_* event) {
    if (event) MOEPLAN_CUDA(cudaEventDestroy(as_event(event)));
    return {};
}
Status record(Event_* event, Stream_* stream) {
    MOEPLAN_CUDA(cudaEventRecord(as_event(event), as_stream(stream)));
    return {};
}
Status wait(Event_* event) {
    MOEPLAN_CUDA(cudaEventSynchronize(as_event(event)));
    return {};
}
Status elapsed(const Event_* begin, const Event_* end, double* seconds) {
    float milliseconds = 0;
    MOEPLAN_CUDA(cudaEventElapsedTime(&milliseconds, as_event(begin), as_event(end)));
    *seconds = milliseconds * 1e-3;
    return {};
}

Status follow(Stream_* later, Stream_* earlier) {
    if (later == earlier) return {};
    MOEPLAN_TRY(use_device());
    cudaEvent_t reached = nullptr;
    MOEPLAN_CUDA(cudaEventCreateWithFlags(&reached, cudaEventDisableTiming));
    MOEPLAN_CUDA(cudaEventRecord(reached, as_stream(earlier)));
    MOEPLAN_CUDA(cudaStreamWaitEvent(as_stream(later), reached));
    MOEPLAN_CUDA(cudaEventDestroy(reached));                  // released by the driver once it is reached
    return {};
}

const StreamSet kStreams{.create_stream = create_stream, .release_stream = release_stream, .create_event = create_event,
                         .release_event = release_event, .record = record, .wait = wait, .elapsed = elapsed, .follow = follow};

const KernelSet kKernels{.embedding_forward = embedding_forward,
                         .embedding_backward = embedding_backward,
                         .rms_norm_forward = rms_norm_forward,
                         .rms_norm_backward = rms_norm_backward,
                         .residual_add = residual_add,
                         .bias_forward = bias_forward,
                         .bias_backward = bias_backward,
                         .rope_forward = rope_forward,
                         .rope_backward = rope_backward,
                         .swiglu_forward = swiglu_forward,
                         .swiglu_backward = swiglu_backward,
                         .gelu_forward = gelu_forward,
                         .gelu_backward = gelu_backward,
                         .relu_forward = relu_forward,
                         .relu_backward = relu_backward,
                         .router_forward = router_forward,
                         .router_backward = router_backward,
                         .document_pool = document_pool,
                         .permutation_map = permutation_map,
                         .permute_forward = permute_forward,
                         .permute_backward = permute_backward,
                         .unpermute_forward = unpermute_forward,
                         .unpermute_backward = unpermute_backward,
                         .attention_forward = attention_forward,
                         .attention_backward = attention_backward,
                         .cross_entropy_forward = cross_entropy_forward,
                         .cross_entropy_backward = cross_entropy_backward,
                         .adamw = adamw,
                         .gradient_norm = gradient_norm,
                         .gemm = gemm,
                         .grouped_gemm = grouped_gemm,
                         .convert = convert,
                         .scale = scale,
                         .route_forward = route_forward,
                         .expert_activation_forward = expert_activation_forward,
                         .expert_activation_backward = expert_activation_backward,
                         .residual_rms_norm_forward = residual_rms_norm_forward,
                         .cross_entropy_in_place = cross_entropy_in_place,
                         .adamw_tensors = adamw_tensors,
                         .gradient_norms = gradient_norms};

DeviceFacts the_facts;

Status find_device(int ordinal) {
    int count = 0;                    // left untouched where there is no driver
    char text[256];
    const cudaError_t error = cudaGetDeviceCount(&count);
    int driver = 0, runtime = 0;
    (void)cudaDriverGetVersion(&driver);
    (void)cudaRuntimeGetVersion(&runtime);
    if (error == cudaErrorInsufficientDriver && driver > 0) {
        std::snprintf(text, sizeof text, "NVIDIA's driver is too old: it knows CUDA %d.%d, this module was built with %d.%d. Update the driver, build with an "
                      "older toolkit, or use --device cpu", driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
        return status_of(kFailed, text);
    }
    if (error != cudaSuccess || count <= 0) {
        std::snprintf(text, sizeof text, "no NVIDIA GPU that CUDA can use (%s). Install NVIDIA's driver and see whether nvidia-smi lists a GPU, or use "
                      "--device cpu", error != cudaSuccess ? cudaGetErrorString(error) : "no device");
        return status_of(kFailed, text);
    }
    if (ordinal < 0 || ordinal >= count) {
        std::snprintf(text, sizeof text, "there is no cuda:%d: this machine shows %d GPU%s, cuda:0 … cuda:%d", ordinal, count, count == 1 ? "" : "s",
                      count - 1);
        return status_of(kFailed, text);
    }
    MOEPLAN_CUDA(cudaSetDevice(ordinal));
    cudaDeviceProp properties{};
    MOEPLAN_CUDA(cudaGetDeviceProperties(&properties, ordinal));
    int clock_khz = 0;
    (void)cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, ordinal);
    if (const Status probe = supports_this_device(); probe.code != kOk) {
        std::snprintf(text, sizeof text, "%.60s (sm_%d%d) is not among the architectures this module was built for (%.40s): build again with "
                      "-DMOEPLAN_CUDA_ARCHITECTURES=%d%d-real", properties.name, properties.major, properties.minor, MOEPLAN_CUDA_ARCHITECTURES,
                      properties.major, properties.minor);
        return status_of(kFailed, text);
    }
    the_facts = {};
    std::snprintf(the_facts.name, sizeof the_facts.name, "%.127s", properties.name);
    std::snprintf(the_facts.driver, sizeof the_facts.driver, "driver CUDA %d.%d, runtime %d.%d", driver / 1000, driver % 1000 / 10, runtime / 1000,
                  runtime % 1000 / 10);
    the_facts.memory_bytes = properties.totalGlobalMem;
    the_facts.l2_bytes = static_cast<std::uint64_t>(properties.l2CacheSize);
    the_facts.num_sms = properties.multiProcessorCount;
    the_facts.compute_major = properties.major;
    the_facts.compute_minor = properties.minor;
    the_facts.clock_hz = clock_khz * 1e3;
    return {};
}

}  // namespace

const char* device_name() { return the_facts.name; }

Status device_memory(std::size_t bytes, const char* purpose, void** out) {
    MOEPLAN_TRY(use_device());
    *out = nullptr;
    if (bytes == 0) return {};
    const cudaError_t error = cudaMalloc(out, bytes);
    if (error == cudaSuccess) return {};
    *out = nullptr;
    (void)cudaGetLastError();         // this error is answered: it must not fail the next launch
    if (error != cudaErrorMemoryAllocation) return cuda_failure(error, "cudaMalloc", __FILE__, __LINE__);
    std::size_t free = 0, total = 0;
    (void)cudaMemGetInfo(&free, &total);
    char has[32], of[32], needed[32], text[256];
    put_size(has, static_cast<double>(free)), put_size(of, static_cast<double>(total)), put_size(needed, static_cast<double>(bytes));
    std::snprintf(text, sizeof text, "cuda:%d has %s free of %s, %s more were needed%s%.100s", the_ordinal.load(), has, of, needed,
                  purpose ? " for " : "", purpose ? purpose : "");
    return status_of(kOutOfMemory, text);
}

Status scratch(cudaStream_t stream, std::size_t bytes, void** out) {
    const cudaStream_t owner = owner_of(stream);
    const std::lock_guard lock(scratch_mutex);
    Buffer& buffer = scratch_buffers()[owner];
    if (buffer.bytes < bytes) {
#if defined(MOEPLAN_CUDA_SHIM)
        const std::size_t wanted = bytes;                     // exactly as asked, so that an overrun is seen
#else
        const std::size_t wanted = (bytes + bytes / 4 + 1048575) >> 20 << 20;
#endif
        if (buffer.data && !buffer.in_a_graph) {
            MOEPLAN_CUDA(cudaStreamSynchronize(owner));
            MOEPLAN_CUDA(cudaFree(buffer.data));
        }
        buffer = {};
        MOEPLAN_TRY(device_memory(wanted, "a kernel's scratch", &buffer.data));
        buffer.bytes = wanted;
    }
    buffer.in_a_graph |= owner != stream;
    *out = buffer.data;
    return {};
}

void release_scratch(cudaStream_t stream) {
    const std::lock_guard lock(scratch_mutex);
    const auto found = scratch_buffers().find(stream);
    if (found == scratch_buffers().end()) return;
    (void)cudaFree(found->second.data);
    scratch_buffers().erase(found);
}

}  // namespace moeplan::cuda

extern "C" __attribute__((visibility("default"))) moeplan::Status moeplan_backend(std::uint32_t abi, int ordinal, moeplan::Backend* out) {
    using namespace moeplan;
    char text[256];
    if (abi != kBackendAbi) {
        std::snprintf(text, sizeof text, "this CUDA module has interface %u, moeplan wants %u: build both from the same source", kBackendAbi, abi);
        return status_of(kFailed, text);
    }
    if (cuda::the_ordinal >= 0 && cuda::the_ordinal != ordinal) {
        std::snprintf(text, sizeof text, "this process already works on cuda:%d; one process drives one GPU (mpirun starts more)",
                      cuda::the_ordinal.load());
        return status_of(kFailed, text);
    }
    MOEPLAN_TRY(cuda::find_device(ordinal));
    cuda::the_ordinal = ordinal;
    *out = {.device = Device::cuda,
            .ordinal = ordinal,
            .allocate = cuda::allocate,
            .release = cuda::release,
            .copy = cuda::copy,
            .set_zero = cuda::set_zero,
            .synchronise = cuda::synchronise,
            .streams = &cuda::kStreams,
            .facts = &cuda::the_facts,
            .kernels = &cuda::kKernels,
            .graphs = &cuda::kGraphs,
            .choices = cuda::say_choices};
    return {};
}
