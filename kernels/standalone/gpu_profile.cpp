// Times every kernel of the GPU over a grid of shapes, cold and warm, and writes a profile that `moeplan --profile` reads.
//
//   gpu_profile OUT.json [SECONDS] [--figures FILE] [--tiny]        exit status 0, or 3 without a GPU
//
// --figures: what the kernels are held to (docs/gpu-run.md): memory-bound kernels as a share of the copy's bandwidth, grouped products as
// a share of cuBLAS's rate on one dense product of the same flops, an MH-MoE sub-layer as a share of its roofline floor.
// --tiny: two points of every kernel, for a device that is none (tests/shim).
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

// moe_layer.cpp
extern "C" {
const char* moeplan_error();
int moeplan_layer(std::int64_t tokens, std::int64_t hidden, std::int64_t heads, std::int64_t experts, std::int64_t top_k, std::int64_t inner, void** out);
int moeplan_layer_forward(void* layer);
int moeplan_layer_backward(void* layer);
}

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
    /// @param own_stream  false: the default stream
    Timer(const Backend& gpu, bool own_stream, bool tiny) : gpu_(gpu), flush_bytes_(2 * gpu.facts->l2_bytes + (tiny ? 0 : 64u << 20)), tiny_(tiny) {
        if (own_stream) check(gpu.streams->create_stream(&stream_), "create_stream");
        check(gpu.streams->create_event(&begin_), "create_event");
        check(gpu.streams->create_event(&end_), "create_event");
        check(gpu.allocate(flush_bytes_, &flush_), "allocate");
    }
    Sample time(const PreparedKernel& kernel, bool cold, double limit_s) {
        return time([&](Stream_* stream) { check(kernel.run(stream), "run"); }, cold, limit_s);
    }
    /// @param run  puts its work on the stream it is given, or on the default one and this timer's is that
    template <class Run>
    Sample time(Run run, bool cold, double limit_s) {
        const int group = cold ? 1 : 10;
        for (int i = 0; i < 3; ++i) run(stream_);
        check(gpu_.synchronise(stream_), "synchronise");
        std::vector<double> samples;
        const auto start = std::chrono::steady_clock::now();
        while (samples.size() < (tiny_ ? 2 : 7) || (!tiny_ && seconds_since(start) < limit_s && samples.size() < 50 && summary(samples).spread > 0.005)) {
            if (cold) check(gpu_.set_zero(flush_, flush_bytes_, stream_), "flush");
            check(gpu_.streams->record(begin_, stream_), "record");
            for (int i = 0; i < group; ++i) run(stream_);
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
    bool tiny_;
    Stream_* stream_ = nullptr;
    Event_ *begin_ = nullptr, *end_ = nullptr;
    void* flush_ = nullptr;
};

/// Which figure a point gives, beside its row of the profile.
enum class Figure { none, copy, streamed, dense, grouped };
struct Point {
    std::string kernel;
    KernelProblem problem;
    Figure figure = Figure::none;
};

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
        // The fused rows at the shapes of what they fuse; the optimizer's over 16 tensors.
        add("route_forward", [&](KernelProblem& p) { p.rows = rows(65536), p.width = 512, p.num_experts = 64, p.top_k = 2; });
        for (const char* k : {"expert_activation_forward", "expert_activation_backward"})
            add(k, [&](KernelProblem& p) { p.rows = rows(131072), p.width = 1408, p.num_experts = 64; });
        add("residual_rms_norm_forward", [&](KernelProblem& p) { p.rows = rows(16384), p.width = 2048; });
        add("cross_entropy_in_place", [&](KernelProblem& p) { p.rows = rows(4096), p.width = 50304; });
        for (const char* k : {"adamw_tensors", "gradient_norms"}) add(k, [&](KernelProblem& p) { p.rows = 16, p.width = rows(1024) * 2048; });
    };
    const auto gemm = [&](std::int64_t m, std::int64_t n, std::int64_t k) {
        add("gemm", [&](KernelProblem& p) { p.m = m, p.n = n, p.k = k; });
    };
    const auto grouped = [&](const char* kind, std::int64_t rows, int experts, std::int64_t n, std::int64_t k, GroupedProduct product) {
        add("grouped_gemm", [&](KernelProblem& p) { p.group_rows = rows_of(kind, rows, experts), p.n = n, p.k = k, p.product = product; });
    };
    streamed(1);
    for (Point& p : points) p.figure = p.kernel == "copy" ? Figure::copy : Figure::streamed;
    gemm(131072, 2816, 512);
    points.back().figure = Figure::dense;
    for (const auto product : {GroupedProduct::forward, GroupedProduct::data_gradient, GroupedProduct::weight_gradient})
        for (const auto& [n, k] : {std::pair<std::int64_t, std::int64_t>{2816, 512}, {512, 1408}}) {
            grouped("uniform", 131072, 64, n, k, product);
            points.back().figure = Figure::grouped;
        }
    gemm(16384, 2048, 2048), gemm(8192, 8192, 8192);
    for (const std::int64_t s : {1024, 4096})
        for (const char* k : {"attention_forward", "attention_backward"})
            add(k, [&](KernelProblem& p) { p.batch = 16384 / s, p.sequence = s, p.num_heads = 16, p.num_kv_heads = 16, p.head_size = 128; });
    for (const char* kind : {"zipf", "hot", "half"}) grouped(kind, 131072, 64, 2816, 512, GroupedProduct::forward);
    for (const std::int64_t rows : {64, 128, 256, 512, 1024, 4096})
        grouped("uniform", rows * 64, 64, 2816, 512, GroupedProduct::forward), grouped("uniform", rows * 8, 8, 14336, 4096, GroupedProduct::forward);
    streamed(0.125);
    for (const std::int64_t m : {64, 128, 129, 256, 512, 1024, 2048, 4096, 16384})
        for (const auto& [n, k] : {std::pair<std::int64_t, std::int64_t>{2048, 2048}, {4096, 4096}, {14336, 4096}, {4096, 14336}, {1408, 512}, {512, 512}})
            gemm(m, n, k);
    streamed(0.01);
    return points;
}

/// Every kernel at two sizes that the shim runs in a moment.
std::vector<Point> tiny_grid() {
    std::vector<Point> points;
    const std::vector<Point> whole = grid();
    for (const std::int64_t size : {4, 8})
        for (const KernelRow& row : kernel_rows()) {
            if (std::none_of(whole.begin(), whole.end(), [&](const Point& p) { return p.kernel == row.name; })) continue;
            Point p{std::string(row.name), {}};
            KernelProblem& q = p.problem;
            q.format = NumberFormat::bf16;
            q.rows = 4 * size, q.width = 8 * size, q.num_experts = size, q.top_k = 2, q.num_documents = 2;
            q.m = q.n = q.k = 4 * size;
            q.group_rows = rows_of("uniform", 4 * size, 4);
            q.batch = 1, q.sequence = 4 * size, q.num_heads = q.num_kv_heads = 2, q.head_size = 8;
            if (size == 4)
                p.figure = row.name == "copy" ? Figure::copy : row.name == "gemm" ? Figure::dense : row.name == "grouped_gemm" ? Figure::grouped
                                                                                                                              : Figure::streamed;
            points.push_back(std::move(p));
        }
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
    if (p.kernel == "permutation_map") return false;          // a profile has no such kernel: it prices rows that move data
    for (const char* fused : {"route_forward", "expert_activation_forward", "expert_activation_backward", "residual_rms_norm_forward",
                              "cross_entropy_in_place", "adamw_tensors", "gradient_norms"})
        if (p.kernel == fused) return false;                  // steps are priced by the rows that they fuse; figures.json has these
    if (p.kernel != "grouped_gemm") return true;
    return p.problem.product == GroupedProduct::forward &&
           std::adjacent_find(p.problem.group_rows.begin(), p.problem.group_rows.end(), std::not_equal_to<>()) == p.problem.group_rows.end();
}

struct Measured { std::map<std::string, std::vector<std::string>> rows; double best_flops = 0, best_bytes = 0, launch = 0; };

void write(const std::string& file, const Backend& gpu, const Measured& m) {
    const DeviceFacts& facts = *gpu.facts;
    std::ofstream out(file + ".part");
    char text[512];
    std::snprintf(text, sizeof text,
                  "{\n \"$schema\": \"moeplan/profile.schema.json\", \"version\": 1, \"name\": \"measured\", \"device\": \"%s\", \"driver\": \"%s\",\n"
                  " \"source\": \"measured by scripts/gpu-run: cold caches, bf16; roofline: best rates of this run\", \"clocks_mhz\": %.0f, \"conditions\": {",
                  facts.name, facts.driver, facts.clock_hz / 1e6);
    out << text;
    const std::vector<std::string> choices = choices_of(gpu);
    for (std::size_t i = 0; i < choices.size(); ++i) out << (i ? "," : "") << "\n  \"choice_" << i + 1 << "\": \"" << choices[i] << "\"";
    out << " },\n";
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

/// What the kernels are held to, as far as it is known: the file is whole after every point.
struct Figures {
    double copy_bytes = 0;                                  ///< a second, the copy at the example shape
    std::vector<std::pair<std::string, double>> streamed;   ///< bytes a second at the example shape
    double dense_flops = 0;                                 ///< a second, one product of the grouped ones' flops
    std::vector<std::pair<std::string, double>> grouped;    ///< flops a second
    double layer_s = 0, layer_both_s = 0, layer_floor_s = 0;
};

void write(const std::string& file, const DeviceFacts& facts, const Figures& f, bool tiny) {
    if (file.empty()) return;
    std::ofstream out(file + ".part");
    out.precision(6);
    out << "{\n \"device\": \"" << facts.name << "\", \"driver\": \"" << facts.driver << "\", \"clocks_mhz\": " << facts.clock_hz / 1e6
        << (tiny ? ",\n \"tiny\": true" : "") << ",\n \"conditions\": \"bf16, cold caches, median; example shape of docs/kernels.md\",\n \"copy_bytes_per_second\": "
        << f.copy_bytes << ",\n \"memory_bound\": [";
    for (std::size_t i = 0; i < f.streamed.size(); ++i)
        out << (i ? "," : "") << "\n  { \"kernel\": \"" << f.streamed[i].first << "\", \"bytes_per_second\": " << f.streamed[i].second
            << ", \"share_of_copy\": " << (f.copy_bytes > 0 ? f.streamed[i].second / f.copy_bytes : 0) << " }";
    out << "\n ],\n \"dense_flops_per_second\": " << f.dense_flops << ",\n \"grouped\": [";
    for (std::size_t i = 0; i < f.grouped.size(); ++i)
        out << (i ? "," : "") << "\n  { \"product\": \"" << f.grouped[i].first << "\", \"flops_per_second\": " << f.grouped[i].second
            << ", \"share_of_dense\": " << (f.dense_flops > 0 ? f.grouped[i].second / f.dense_flops : 0) << " }";
    out << "\n ],\n \"layer\": { \"forward_s\": " << f.layer_s << ", \"forward_and_backward_s\": " << f.layer_both_s << ", \"forward_floor_s\": " << f.layer_floor_s
        << ", \"floor_over_forward\": " << (f.layer_s > 0 ? f.layer_floor_s / f.layer_s : 0) << " }\n}\n";
    out.close();
    std::rename((file + ".part").c_str(), file.c_str());
}

struct LayerShape { std::int64_t tokens = 16384, hidden = 2048, heads = 4, experts = 64, top_k = 2, inner = 1408; };

/// Σ over the kernels of a sub-layer's forward pass of max(flops / rate, bytes / bandwidth): unfused, as design has it.
double layer_floor(const LayerShape& s, double flops_rate, double bytes_rate) {
    const std::int64_t units = s.tokens * s.heads, width = s.hidden / s.heads, rows = units * s.top_k;
    double floor = 0;
    const auto add = [&](const char* name, auto set) {
        KernelProblem p;
        p.format = NumberFormat::bf16;
        set(p);
        const KernelRow* row = find_kernel_row(name);
        floor += std::max(row->flops(p).value / flops_rate, row->bytes(p).value / bytes_rate);
    };
    const auto per_expert = std::vector<std::uint32_t>(std::size_t(s.experts), std::uint32_t(rows / s.experts));
    for (int i = 0; i < 2; ++i) add("gemm", [&](KernelProblem& p) { p.m = s.tokens, p.n = p.k = s.hidden; });
    add("gemm", [&](KernelProblem& p) { p.m = units, p.n = s.experts, p.k = width; });
    add("router_forward", [&](KernelProblem& p) { p.rows = units, p.num_experts = s.experts, p.top_k = s.top_k; });
    add("permute_forward", [&](KernelProblem& p) { p.rows = units, p.width = width, p.num_experts = s.experts, p.top_k = s.top_k; });
    add("grouped_gemm", [&](KernelProblem& p) { p.group_rows = per_expert, p.n = 2 * s.inner, p.k = width; });
    add("swiglu_forward", [&](KernelProblem& p) { p.rows = rows, p.width = s.inner; });
    add("grouped_gemm", [&](KernelProblem& p) { p.group_rows = per_expert, p.n = width, p.k = s.inner; });
    add("unpermute_forward", [&](KernelProblem& p) { p.rows = units, p.width = width, p.num_experts = s.experts, p.top_k = s.top_k; });
    return floor;
}

void time_layer(const Backend& gpu, const std::string& file, Figures& figures, const Measured& measured, bool tiny) {
    LayerShape shape;
    if (tiny) shape = {32, 32, 2, 8, 2, 16};
    const auto done = [](int status) {
        if (status != 0) throw EnvironmentError(moeplan_error());
    };
    void* layer = nullptr;
    done(moeplan_layer(shape.tokens, shape.hidden, shape.heads, shape.experts, shape.top_k, shape.inner, &layer));
    Timer timer(gpu, false, tiny);
    figures.layer_s = timer.time([&](Stream_*) { done(moeplan_layer_forward(layer)); }, true, 2).median;
    figures.layer_floor_s = layer_floor(shape, measured.best_flops, measured.best_bytes);
    std::printf("MH-MoE sub-layer, forward: %.1f us; floor at this run's best rates %.1f us, that is %.0f %%\n", figures.layer_s * 1e6,
                figures.layer_floor_s * 1e6, 100 * figures.layer_floor_s / figures.layer_s);
    write(file, *gpu.facts, figures, tiny);
    figures.layer_both_s = timer.time([&](Stream_*) { done(moeplan_layer_forward(layer)), done(moeplan_layer_backward(layer)); }, true, 2).median;
    std::printf("MH-MoE sub-layer, forward and backward: %.1f us\n", figures.layer_both_s * 1e6);
    write(file, *gpu.facts, figures, tiny);
}

constexpr const char* kProducts[] = {"forward", "data_gradient", "weight_gradient"};

struct Words { std::string profile, figures; double limit_s = 200; bool tiny = false; };

int run(const Words& words) {
    const auto start = std::chrono::steady_clock::now();
    const Backend& gpu = backend_for(Device::cuda);
    Timer timer(gpu, true, words.tiny);
    Measured measured;
    Figures figures;
    const auto points = words.tiny ? tiny_grid() : grid();
    std::printf("%-22s %-34s %12s %8s %12s %10s %10s\n", "kernel", "shape", "cold us", "spread", "warm us", "TFlop/s", "GB/s");
    {
        // Launch overhead: a kernel of one element, warm.
        KernelProblem p;
        p.rows = 1, p.width = 8, p.format = NumberFormat::bf16;
        const PreparedKernel one(gpu, "residual_add", p);
        measured.launch = timer.time(one, false, 0.1).median;
    }
    std::size_t done = 0;
    bool layer_done = false;
    for (const Point& point : points) {
        if (seconds_since(start) > words.limit_s) break;
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
            if (point.figure == Figure::copy) figures.copy_bytes = bytes / cold.median;
            if (point.figure == Figure::streamed) figures.streamed.emplace_back(point.kernel, bytes / cold.median);
            if (point.figure == Figure::dense) figures.dense_flops = flops / cold.median;
            if (point.figure == Figure::grouped) figures.grouped.emplace_back(std::string(kProducts[int(point.problem.product)]) + " " + shape, flops / cold.median);
        } catch (const EnvironmentError& e) {
            std::printf("%-22s left out: %s\n", point.kernel.c_str(), e.what());
        }
        write(words.profile, gpu, measured);
        write(words.figures, *gpu.facts, figures, words.tiny);
        // The sub-layer once the kernels it is made of are known, before the rest of the grid.
        ++done;
        if (!layer_done && (done == points.size() || (figures.dense_flops > 0 && point.figure == Figure::none))) {
            layer_done = true;
            try {
                time_layer(gpu, words.figures, figures, measured, words.tiny);
            } catch (const EnvironmentError& e) {
                std::printf("MH-MoE sub-layer left out: %s\n", e.what());
            }
        }
    }
    for (const std::string& line : choices_of(gpu)) std::printf("%s\n", line.c_str());
    std::printf("%zu of %zu points in %.0f s\n", done, points.size(), seconds_since(start));
    return 0;
}

}  // namespace
}  // namespace moeplan

int main(int argc, char** argv) {
    moeplan::Words words;
    for (int i = 1; i < argc; ++i) {
        const std::string word = argv[i];
        if (word == "--tiny") words.tiny = true;
        else if (word == "--figures" && i + 1 < argc) words.figures = argv[++i];
        else if (words.profile.empty() && !word.starts_with("-")) words.profile = word;
        else if (const double seconds = std::atof(word.c_str()); seconds > 0) words.limit_s = seconds;
        else {
            std::fprintf(stderr, "gpu_profile: %s: expected OUT.json [SECONDS] [--figures FILE] [--tiny]\n", word.c_str());
            return 2;
        }
    }
    if (words.profile.empty()) {
        std::fprintf(stderr, "usage: gpu_profile OUT.json [SECONDS] [--figures FILE] [--tiny]\n");
        return 2;
    }
    try {
        return moeplan::run(words);
    } catch (const moeplan::EnvironmentError& e) {
        std::fprintf(stderr, "gpu_profile: %s\n", e.what());
        return 3;
    }
}
