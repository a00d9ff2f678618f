// Times every kernel of the GPU over a grid of shapes, cold and warm, and writes a profile that `moeplan --profile` reads.
//
//   gpu_profile OUT.json [SECONDS]        exit status 0, or 3 without a GPU
//
// Cold: twice the L2 cache is overwritten before each run, as a real step would between two uses of a tensor. Warm: ten runs
// back to back. Median of at least 7 samples; relative spread = median of |t − median| over median. The file is written anew
// after every point of the grid's order, largest gain first, so that a run cut short leaves a useful profile.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "core/errors.hpp"
#include "kernels/kernel_rows.hpp"

namespace moeplan {
namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

struct Sample { double median = 0, spread = 0; int count = 0; };
Sample summary(std::vector<double> t) {
    std::sort(t.begin(), t.end());
    const double median = t[t.size() / 2];
    std::vector<double> away;
    for (const double x : t) away.push_back(std::abs(x - median));
    std::sort(away.begin(), away.end());
    return {median, away[away.size() / 2] / median, static_cast<int>(t.size())};
}

class Timer {
  public:
    explicit Timer(const Backend& gpu) : gpu_(gpu), flush_bytes_(2 * gpu.facts->l2_bytes + (64u << 20)) {
        check(gpu.streams->create_stream(&stream_), "create_stream");
        check(gpu.streams->create_event(&begin_), "create_event");
        check(gpu.streams->create_event(&end_), "create_event");
        check(gpu.allocate(flush_bytes_, &flush_), "allocate");
    }
    Sample time(const PreparedKernel& kernel, bool cold, double limit_s) {
        const int group = cold ? 1 : 10;
        for (int i = 0; i < 3; ++i) check(kernel.run(stream_), "warm-up");
        check(gpu_.synchronise(stream_), "synchronise");
        std::vector<double> samples;
        const auto start = std::chrono::steady_clock::now();
        while (samples.size() < 7 || (seconds_since(start) < limit_s && samples.size() < 50 && summary(samples).spread > 0.005)) {
            if (cold) check(gpu_.set_zero(flush_, flush_bytes_, stream_), "flush");
            check(gpu_.streams->record(begin_, stream_), "record");
            for (int i = 0; i < group; ++i) check(kernel.run(stream_), "run");
            check(gpu_.streams->record(end_, stream_), "record");
            check(gpu_.streams->wait(end_), "wait");
            double t = 0;
            check(gpu_.streams->elapsed(begin_, end_, &t), "elapsed");
            samples.push_back(t / group);
        }
        return summary(samples);
    }

  private:
    const Backend& gpu_;
    std::size_t flush_bytes_;
    Stream_* stream_ = nullptr;
    Event_ *begin_ = nullptr, *end_ = nullptr;
    void* flush_ = nullptr;
};

struct Point { std::string kernel; KernelProblem problem; };

std::vector<std::uint32_t> rows_of(const char* kind, std::int64_t rows, int experts) {
    std::vector<double> share(experts, 1.0);
    if (std::string(kind) == "zipf")
        for (int e = 0; e < experts; ++e) share[e] = 1.0 / (e + 1);
    if (std::string(kind) == "hot") share[0] = experts;
    if (std::string(kind) == "half")
        for (int e = 0; e < experts; e += 2) share[e] = 0;
    double sum = 0;
    for (const double s : share) sum += s;
    std::vector<std::uint32_t> out(experts);
    for (int e = 0; e < experts; ++e) out[e] = static_cast<std::uint32_t>(std::llround(rows * share[e] / sum));
    return out;
}

/// The shape of docs/kernels.md first, then what an interpolation needs around it.
std::vector<Point> grid() {
    std::vector<Point> points;
    const auto add = [&](const char* kernel, auto set) {
        Point p{kernel, {}};
        p.problem.format = NumberFormat::bf16;
        set(p.problem);
        points.push_back(std::move(p));
    };
    const auto streamed = [&](double scale) {
        const auto rows = [&](double n) { return std::max<std::int64_t>(1, std::llround(n * scale)); };
        for (const char* k : {"copy", "residual_add", "rms_norm_forward", "rms_norm_backward", "embedding_forward", "embedding_backward"})
            add(k, [&](KernelProblem& p) { p.rows = rows(16384), p.width = 2048; });
        for (const char* k : {"swiglu_forward", "swiglu_backward", "gelu_forward", "gelu_backward", "relu_forward", "relu_backward"})
            add(k, [&](KernelProblem& p) { p.rows = rows(131072), p.width = 1408; });
        for (const char* k : {"router_forward", "router_backward", "permutation_map", "document_pool"})
            add(k, [&](KernelProblem& p) { p.rows = rows(65536), p.num_experts = 64, p.top_k = 2, p.num_documents = 16; });
        for (const char* k : {"permute_forward", "permute_backward", "unpermute_forward", "unpermute_backward"})
            add(k, [&](KernelProblem& p) { p.rows = rows(65536), p.width = 512, p.num_experts = 64, p.top_k = 2; });
        for (const char* k : {"rope_forward", "rope_backward"})
            add(k, [&](KernelProblem& p) { p.rows = rows(16384), p.num_heads = 32, p.head_size = 128; });
        for (const char* k : {"cross_entropy_forward", "cross_entropy_backward"})
            add(k, [&](KernelProblem& p) { p.rows = rows(4096), p.width = 50304; });
        for (const char* k : {"adamw", "gradient_norm"}) add(k, [&](KernelProblem& p) { p.rows = rows(16384), p.width = 2048; });
    };
    const auto gemm = [&](std::int64_t m, std::int64_t n, std::int64_t k) {
        add("gemm", [&](KernelProblem& p) { p.m = m, p.n = n, p.k = k; });
    };
    const auto grouped = [&](const char* kind, std::int64_t rows, int experts, std::int64_t n, std::int64_t k, GroupedProduct product) {
        add("grouped_gemm", [&](KernelProblem& p) { p.group_rows = rows_of(kind, rows, experts), p.n = n, p.k = k, p.product = product; });
    };
    streamed(1);
    gemm(16384, 2048, 2048), gemm(8192, 8192, 8192);
    for (const auto product : {GroupedProduct::forward, GroupedProduct::data_gradient, GroupedProduct::weight_gradient})
        grouped("uniform", 131072, 64, 2816, 512, product), grouped("uniform", 131072, 64, 512, 1408, product);
    for (const std::int64_t s : {1024, 4096})
        for (const char* k : {"attention_forward", "attention_backward"})
            add(k, [&](KernelProblem& p) { p.batch = 16384 / s, p.sequence = s, p.num_heads = 16, p.num_kv_heads = 16, p.head_size = 128; });
    for (const char* kind : {"zipf", "hot", "half"}) grouped(kind, 131072, 64, 2816, 512, GroupedProduct::forward);
    for (const std::int64_t rows : {64, 128, 256, 512, 1024, 4096})
        grouped("uniform", rows * 64, 64, 2816, 512, GroupedProduct::forward), grouped("uniform", rows * 8, 8, 14336, 4096, GroupedProduct::forward);
    streamed(0.125);
    for (const std::int64_t m : {64, 128, 129, 256, 512, 1024, 2048, 4096, 16384})
        for (const auto [n, k] : {std::pair<std::int64_t, std::int64_t>{2048, 2048}, {4096, 4096}, {14336, 4096}, {4096, 14336}, {1408, 512}, {512, 512}})
            gemm(m, n, k);
    streamed(0.01);
    return points;
}

std::string columns_of(const std::string& kernel) {
    if (kernel == "gemm") return R"("m", "n", "k")";
    if (kernel == "grouped_gemm") return R"("m", "n", "k", "num_experts")";
    if (kernel.starts_with("attention")) return R"("batch", "sequence", "num_heads", "num_kv_heads", "head_size")";
    return R"("bytes", "width")";
}
std::string shape_of(const std::string& kernel, const KernelProblem& p, double bytes) {
    char text[160];
    if (kernel == "gemm") std::snprintf(text, sizeof text, "%lld, %lld, %lld", (long long)p.m, (long long)p.n, (long long)p.k);
    else if (kernel == "grouped_gemm") {
        long long rows = 0;
        for (const auto r : p.group_rows) rows += r;
        std::snprintf(text, sizeof text, "%lld, %lld, %lld, %zu", rows / (long long)p.group_rows.size(), (long long)p.n, (long long)p.k, p.group_rows.size());
    } else if (kernel.starts_with("attention"))
        std::snprintf(text, sizeof text, "%lld, %lld, %lld, %lld, %lld", (long long)p.batch, (long long)p.sequence, (long long)p.num_heads,
                      (long long)p.num_kv_heads, (long long)p.head_size);
    else
        std::snprintf(text, sizeof text, "%.17g, %lld", bytes, (long long)std::max(p.width, p.num_experts));
    return text;
}

/// Only uniform forward products enter the profile's table: the others are figures of their own in the log.
bool in_profile(const Point& p) {
    if (p.kernel != "grouped_gemm") return true;
    return p.problem.product == GroupedProduct::forward &&
           std::adjacent_find(p.problem.group_rows.begin(), p.problem.group_rows.end(), std::not_equal_to<>()) == p.problem.group_rows.end();
}

struct Measured { std::map<std::string, std::vector<std::string>> rows; double best_flops = 0, best_bytes = 0, launch = 0; };

void write(const std::string& file, const DeviceFacts& facts, const Measured& m) {
    std::ofstream out(file + ".part");
    char text[512];
    std::snprintf(text, sizeof text,
                  "{\n \"$schema\": \"moeplan/profile.schema.json\", \"version\": 1, \"name\": \"measured\", \"device\": \"%s\", \"driver\": \"%s\",\n"
                  " \"source\": \"measured by scripts/gpu-run: cold caches, bf16; roofline: best rates of this run\", \"clocks_mhz\": %.0f, \"conditions\": {},\n",
                  facts.name, facts.driver, facts.clock_hz / 1e6);
    out << text;
    std::snprintf(text, sizeof text,
                  " \"roofline\": { \"peak\": { \"bf16\": \"%.6g TFlop/s\" }, \"memory_bandwidth\": \"%.6g GB/s\", \"num_sms\": %d, \"l2\": \"%.6g MB\" },\n"
                  " \"host\": { \"per_launch\": \"%.3g us\", \"per_sync\": \"%.3g us\" }, \"host_overlap\": 1,\n \"kernels\": [",
                  m.best_flops / 1e12, m.best_bytes / 1e9, facts.num_sms, facts.l2_bytes / 1e6, m.launch * 1e6, m.launch * 1e6);
    out << text;
    bool first = true;
    for (const auto& [kernel, rows] : m.rows) {
        out << (first ? "" : ",") << "\n  { \"kernel\": \"" << kernel << "\", \"precision\": \"bf16\", \"basis\": \"measured\", \"source\": \"gpu-run\",\n    \"columns\": ["
            << columns_of(kernel) << ", \"median_s\", \"relative_spread\", \"num_samples\"], \"rows\": [";
        for (std::size_t i = 0; i < rows.size(); ++i) out << (i ? ", " : "") << "[" << rows[i] << "]";
        out << "] }";
        first = false;
    }
    out << "\n ],\n \"links\": []\n}\n";
    out.close();
    std::rename((file + ".part").c_str(), file.c_str());
}

int run(const std::string& file, double limit_s) {
    const auto start = std::chrono::steady_clock::now();
    const Backend& gpu = backend_for(Device::cuda);
    Timer timer(gpu);
    Measured measured;
    const auto points = grid();
    std::printf("%-22s %-34s %12s %8s %12s %10s %10s\n", "kernel", "shape", "cold us", "spread", "warm us", "TFlop/s", "GB/s");
    {
        // Launch overhead: a kernel of one element, warm.
        KernelProblem p;
        p.rows = 1, p.width = 8, p.format = NumberFormat::bf16;
        const PreparedKernel one(gpu, "residual_add", p);
        measured.launch = timer.time(one, false, 0.1).median;
    }
    std::size_t done = 0;
    for (const Point& point : points) {
        if (seconds_since(start) > limit_s) break;
        try {
            const KernelRow* row = find_kernel_row(point.kernel);
            const PreparedKernel kernel(gpu, point.kernel, point.problem);
            const Sample cold = timer.time(kernel, true, 0.2), warm = timer.time(kernel, false, 0.1);
            const double flops = row->flops(point.problem).value, bytes = row->bytes(point.problem).value;
            const std::string shape = shape_of(point.kernel, point.problem, bytes);
            std::printf("%-22s %-34s %12.2f %7.2f%% %12.2f %10.1f %10.0f\n", point.kernel.c_str(), shape.c_str(), cold.median * 1e6, cold.spread * 100,
                        warm.median * 1e6, flops / cold.median / 1e12, bytes / cold.median / 1e9);
            std::fflush(stdout);
            measured.best_flops = std::max({measured.best_flops, flops / cold.median, flops / warm.median});
            if (flops == 0) measured.best_bytes = std::max(measured.best_bytes, bytes / cold.median);
            char times[96];
            std::snprintf(times, sizeof times, ", %.9g, %.4g, %d", cold.median, cold.spread, cold.count);
            if (in_profile(point)) measured.rows[point.kernel].push_back(shape + times);
        } catch (const EnvironmentError& e) {
            std::printf("%-22s left out: %s\n", point.kernel.c_str(), e.what());
        }
        write(file, *gpu.facts, measured);
        ++done;
    }
    std::printf("%zu of %zu points in %.0f s\n", done, points.size(), seconds_since(start));
    return 0;
}

}  // namespace
}  // namespace moeplan

int main(int argc, char** argv) {
    if (argc < 2) {
        std::fprintf(stderr, "usage: gpu_profile OUT.json [SECONDS]\n");
        return 2;
    }
    try {
        return moeplan::run(argv[1], argc > 2 ? std::atof(argv[2]) : 200);
    } catch (const moeplan::EnvironmentError& e) {
        std::fprintf(stderr, "gpu_profile: %s\n", e.what());
        return 3;
    }
}
