// The three products of a layer of experts, launched in one of two ways:
//
// loop       one product an expert by cuBLASLt, on four streams beside the caller's between two events
// grouped    one cublasGemmGroupedBatchedEx for all (bf16 weight gradients cannot: it does not write f32 from bf16)
//
// Which is faster depends on the shape and the GPU, so it is measured: the first product of a kind, width, number of experts and mean
// number of rows (to a power of two) runs both ways, three times each, and the faster one serves that bucket from then on.
// MOEPLAN_GROUPED_GEMM=loop|grouped takes one without measuring; MOEPLAN_GROUPED_GEMM_FILE keeps choices from run to run.
//
// Result     the same bytes for the same input throughout a run: a bucket's first result is already that of its choice. Another run may
//            choose differently, and the two ways may round differently
// Work       2·rows·n·k flops

#include <algorithm>
#include <compare>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/cuda/blas.hpp"
#include "kernels/cuda/kernels.hpp"

namespace moeplan::cuda {
namespace {

constexpr int kSideStreams = 4, kTimedRuns = 3;

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
        auto* side = new SideStreams;                         // as long as the process
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

/// One expert's product, as rows [begin, begin + rows) of x and y and its own w.
Product product_of(const GroupedGemmCall& a, std::int64_t expert, std::int64_t begin, std::int64_t rows) {
    const std::int64_t size = bytes_of(a.format);
    char *x = static_cast<char*>(a.x) + begin * a.k * size, *y = static_cast<char*>(a.y) + begin * a.n * size;
    char* w = static_cast<char*>(a.w) + expert * a.n * a.k * (a.product == GroupedProduct::weight_gradient ? 4 : size);
    Product p{};
    p.format = p.out_format = a.format;
    p.varying = Varying::m;
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
            p.varying = Varying::k;
            break;
    }
    return p;
}

Status loop(const GroupedGemmCall& a, const std::int32_t* offsets, cudaStream_t stream) {
    const SideStreams* side = nullptr;
    MOEPLAN_TRY(side_streams(&side));
    const int used = static_cast<int>(std::min<std::int64_t>(kSideStreams, a.num_experts));
    // All memory first: what lacks it must not have added half of the weights' gradients.
    Workspace unused;
    for (int i = 0; i < used; ++i) MOEPLAN_TRY(workspace_of(side->streams[i], &unused));
    MOEPLAN_CUDA(cudaEventRecord(side->begin, stream));
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

enum class Way { loop, grouped };
constexpr const char* kWays[] = {"loop", "grouped"};
constexpr const char* kProducts[] = {"forward", "data_gradient", "weight_gradient"};

Status run(Way way, const GroupedGemmCall& a, const std::int32_t* offsets, cudaStream_t stream) {
    return way == Way::grouped ? grouped(a, offsets, stream) : loop(a, offsets, stream);
}

/// What a choice is made for.
struct Bucket {
    GroupedProduct product;
    NumberFormat format;
    std::int64_t num_experts, n, k;
    std::int64_t most_rows;                                   ///< an expert's mean number, rounded up to a power of two
    auto operator<=>(const Bucket&) const = default;
};
Bucket bucket_of(const GroupedGemmCall& a) {
    std::int64_t rows = 1;
    while (rows * a.num_experts < a.rows) rows *= 2;
    return {a.product, a.format, a.num_experts, a.n, a.k, rows};
}
struct Choice {
    Way way = Way::loop;
    float milliseconds[2] = {0, 0};                           ///< of each way
};
std::string line_of(const Bucket& b, const Choice& c) {
    char text[200];
    std::snprintf(text, sizeof text, "%s %s experts %lld n %lld k %lld rows %lld: %s (loop %.4g us, grouped %.4g us)",
                  kProducts[static_cast<int>(b.product)], b.format == NumberFormat::f32 ? "f32" : "bf16", static_cast<long long>(b.num_experts),
                  static_cast<long long>(b.n), static_cast<long long>(b.k), static_cast<long long>(b.most_rows), kWays[static_cast<int>(c.way)],
                  c.milliseconds[0] * 1e3, c.milliseconds[1] * 1e3);
    return text;
}

/// Choices of this process, and of earlier ones where a file keeps them.
class Choices {
  public:
    const Choice* find(const Bucket& bucket) {
        read_file_once();
        const auto found = made_.find(bucket);
        return found == made_.end() ? nullptr : &found->second;
    }
    void add(const Bucket& bucket, const Choice& choice) {
        made_[bucket] = choice;
        if (const char* file = file_name()) std::ofstream(file, std::ios::app) << device_name() << " | " << line_of(bucket, choice) << "\n";
    }
    const std::map<Bucket, Choice>& all() const { return made_; }

  private:
    static const char* file_name() {
        const char* file = std::getenv("MOEPLAN_GROUPED_GEMM_FILE");
        return file && *file ? file : nullptr;
    }
    /// A line that is not understood is one that another version wrote: it is measured again.
    void read_file_once() {
        const char* const file = file_name();
        if (!file || read_ == file) return;
        read_ = file;
        std::ifstream in(file);
        const std::string own = std::string(device_name()) + " | ";
        for (std::string line; std::getline(in, line);) {
            if (line.rfind(own, 0) != 0) continue;
            std::istringstream words(line.substr(own.size()));
            std::string product, format, label, way;
            Bucket b{};
            if (!(words >> product >> format >> label >> b.num_experts >> label >> b.n >> label >> b.k >> label >> b.most_rows)) continue;
            words.ignore(1);                                  // the colon
            words >> way;
            const auto kind = std::find(std::begin(kProducts), std::end(kProducts), product);
            if (kind == std::end(kProducts) || (way != kWays[0] && way != kWays[1])) continue;
            b.product = static_cast<GroupedProduct>(kind - std::begin(kProducts));
            b.format = format == "f32" ? NumberFormat::f32 : NumberFormat::bf16;
            Choice& choice = made_[b];
            choice.way = way == kWays[0] ? Way::loop : Way::grouped;
            double loop_us = 0, grouped_us = 0;
            if (words >> label >> loop_us >> label >> label >> grouped_us)
                choice.milliseconds[0] = static_cast<float>(loop_us * 1e-3), choice.milliseconds[1] = static_cast<float>(grouped_us * 1e-3);
        }
    }
    std::map<Bucket, Choice> made_;
    std::string read_;                                        ///< the file that was read
};
std::mutex choices_mutex;
Choices& choices() {
    static auto& all = *new Choices;
    return all;
}

/// The fastest of three runs, after one that is not counted.
Status time_way(Way way, const GroupedGemmCall& a, const std::int32_t* offsets, cudaStream_t stream, float* milliseconds) {
    static cudaEvent_t begin = nullptr, end = nullptr;
    if (!begin) MOEPLAN_CUDA(cudaEventCreateWithFlags(&begin, cudaEventDefault));
    if (!end) MOEPLAN_CUDA(cudaEventCreateWithFlags(&end, cudaEventDefault));
    MOEPLAN_TRY(run(way, a, offsets, stream));
    for (int i = 0; i < kTimedRuns; ++i) {
        MOEPLAN_CUDA(cudaEventRecord(begin, stream));
        MOEPLAN_TRY(run(way, a, offsets, stream));
        MOEPLAN_CUDA(cudaEventRecord(end, stream));
        MOEPLAN_CUDA(cudaEventSynchronize(end));
        float t = 0;
        MOEPLAN_CUDA(cudaEventElapsedTime(&t, begin, end));
        *milliseconds = i == 0 ? t : std::min(*milliseconds, t);
    }
    return {};
}

/// Runs the product both ways and keeps the faster one; a way that cuBLAS refuses is no choice. Weight gradients, which add, go into
/// memory of their own meanwhile; where there is none the loop is taken this once.
Status measure(const Bucket& bucket, GroupedGemmCall a, const std::int32_t* offsets, cudaStream_t stream, Way* out) {
    void* aside = nullptr;
    if (a.product == GroupedProduct::weight_gradient) {
        const auto bytes = static_cast<std::size_t>(a.num_experts * a.n * a.k) * sizeof(float);
        if (device_memory(bytes, "measuring weight gradients", &aside).code != kOk) return {};
        MOEPLAN_CUDA(cudaMemsetAsync(aside, 0, bytes, stream));
        a.w = aside;
    }
    Choice choice;
    const Status loop_status = time_way(Way::loop, a, offsets, stream, &choice.milliseconds[0]);
    const Status grouped_status = time_way(Way::grouped, a, offsets, stream, &choice.milliseconds[1]);
    if (aside) MOEPLAN_CUDA(cudaFree(aside));
    MOEPLAN_TRY(loop_status);
    if (grouped_status.code != kOk) choice.milliseconds[1] = std::numeric_limits<float>::infinity();
    choice.way = choice.milliseconds[1] < choice.milliseconds[0] ? Way::grouped : Way::loop;
    choices().add(bucket, choice);
    *out = choice.way;
    return {};
}

Status way_of(const GroupedGemmCall& a, const std::int32_t* offsets, cudaStream_t stream, Way* out) {
    *out = Way::loop;
    const bool can = kHaveGrouped && !(a.product == GroupedProduct::weight_gradient && a.format != NumberFormat::f32);
    if (!can) return {};
    if (const char* text = std::getenv("MOEPLAN_GROUPED_GEMM")) {
        if (std::string_view(text) == "grouped") *out = Way::grouped;
        if (std::string_view(text) == "grouped" || std::string_view(text) == "loop") return {};
    }
    const Bucket bucket = bucket_of(a);
    const std::lock_guard lock(choices_mutex);
    if (const Choice* known = choices().find(bucket)) {
        *out = known->way;
        return {};
    }
    return measure(bucket, a, offsets, stream, out);
}

}  // namespace

void say_choices(void* to, void (*say)(void* to, const char* line)) {
    const std::lock_guard lock(choices_mutex);
    for (const auto& [bucket, choice] : choices().all()) say(to, ("grouped_gemm " + line_of(bucket, choice)).c_str());
}

Status grouped_gemm(const GroupedGemmCall* a, Stream_* stream_) {
    const cudaStream_t stream = as_stream(stream_);
    if (a->format != NumberFormat::f32 && a->format != NumberFormat::bf16) return unsupported("grouped_gemm", "multiplies f32 and bf16");
    if (a->num_experts == 0 || a->rows == 0 || a->n == 0 || a->k == 0) return {};
    const std::int32_t* offsets = a->host_offsets;
    std::vector<std::int32_t> copied;
    if (!offsets) {                                           // cuBLAS wants shapes on the host: fetch them, and wait
        copied.resize(a->num_experts + 1);
        MOEPLAN_CUDA(cudaMemcpyAsync(copied.data(), a->offsets, sizeof(std::int32_t) * copied.size(), cudaMemcpyDefault, stream));
        MOEPLAN_CUDA(cudaStreamSynchronize(stream));
        offsets = copied.data();
    }
    Way way = Way::loop;
    MOEPLAN_TRY(way_of(*a, offsets, stream, &way));
    return run(way, *a, offsets, stream);
}

}  // namespace moeplan::cuda
