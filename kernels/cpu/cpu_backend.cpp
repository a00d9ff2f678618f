/// The CPU's memory, clocks and table of kernels.
#include "kernels/cpu/cpu_backend.hpp"

#include <sched.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>
#include <string>
#include <vector>

#include "core/memory_steps.hpp"
#include "kernels/cpu/cpu_kernels.hpp"

namespace moeplan {

struct Event_ {
    std::chrono::steady_clock::time_point when;
};

namespace {

constexpr std::size_t kAlignment = 64;
std::atomic<std::uint64_t> bytes_now{0}, bytes_peak{0};

/// The block's size stands in front of it.
Status allocate(std::size_t bytes, void** out) {
    static const bool large_steps = (take_memory_in_large_steps(), true);
    static_cast<void>(large_steps);
    const std::size_t whole = (bytes + 2 * kAlignment - 1) / kAlignment * kAlignment;
    void* block = std::aligned_alloc(kAlignment, whole);
    if (!block) {
        *out = nullptr;
        return status_of(kOutOfMemory,
                         "out of memory: " + std::to_string(bytes) + " bytes asked for");
    }
    std::memcpy(block, &bytes, sizeof bytes);
    *out = static_cast<char*>(block) + kAlignment;
    const std::uint64_t now = bytes_now += bytes;
    std::uint64_t peak = bytes_peak;
    while (now > peak && !bytes_peak.compare_exchange_weak(peak, now)) {
    }
    return {};
}

Status release(void* pointer) {
    if (!pointer) return {};
    char* block = static_cast<char*>(pointer) - kAlignment;
    std::size_t bytes = 0;
    std::memcpy(&bytes, block, sizeof bytes);
    bytes_now -= bytes;
    std::free(block);
    return {};
}

Status copy(void* to, const void* from, std::size_t bytes, Stream_*) {
    if (bytes) std::memmove(to, from, bytes);
    return {};
}
Status set_zero(void* to, std::size_t bytes, Stream_*) {
    if (bytes) std::memset(to, 0, bytes);
    return {};
}
Status synchronise(Stream_*) { return {}; }

Status create_stream(Stream_** out) {
    *out = nullptr;
    return {};
}
Status release_stream(Stream_*) { return {}; }
Status create_event(Event_** out) {
    *out = new Event_;
    return {};
}
Status release_event(Event_* event) {
    delete event;
    return {};
}
Status record(Event_* event, Stream_*) {
    event->when = std::chrono::steady_clock::now();
    return {};
}
Status wait(Event_*) { return {}; }
Status elapsed(const Event_* begin, const Event_* end, double* seconds) {
    *seconds = std::chrono::duration<double>(end->when - begin->when).count();
    return {};
}

Status follow(Stream_*, Stream_*) { return {}; }  // all work has run when a call returns

/// The best instruction set of this CPU, or what $MOEPLAN_CPU asks for (baseline, avx2, avx512)
/// where the CPU has it.
const char* instruction_set() {
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool has_avx512 =
        has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
    const char* asked = std::getenv("MOEPLAN_CPU");
    const std::string wanted = asked ? asked : "avx512";
    if (wanted == "avx512" && has_avx512) return "avx512";
    if (wanted != "baseline" && has_avx2) return "avx2";
    return "baseline";
}

KernelSet make_kernels(const std::string& set) {
    KernelSet out;
    if (set == "avx512")
        cpu::avx512::fill(out);
    else if (set == "avx2")
        cpu::avx2::fill(out);
    else
        cpu::baseline::fill(out);
    out.permutation_map = cpu::permutation_map;
    out.gemm = cpu::gemm;
    out.grouped_gemm = cpu::grouped_gemm;
    out.route_forward = cpu::route_forward;
    out.expert_activation_forward = cpu::expert_activation_forward;
    out.expert_activation_backward = cpu::expert_activation_backward;
    out.residual_rms_norm_forward = cpu::residual_rms_norm_forward;
    out.cross_entropy_in_place = cpu::cross_entropy_in_place;
    out.adamw_tensors = cpu::adamw_tensors;
    out.gradient_norms = cpu::gradient_norms;
    return out;
}

void put(char* field, std::size_t size, const std::string& text) {
    std::memset(field, 0, size);
    std::memcpy(field, text.data(), std::min(size - 1, text.size()));
}

DeviceFacts make_facts(const std::string& set) {
    DeviceFacts facts;
    std::string name = "unknown CPU", line;
    std::ifstream cpus("/proc/cpuinfo");
    while (std::getline(cpus, line)) {
        const auto colon = line.find(": ");
        if (colon == std::string::npos) continue;
        if (line.starts_with("model name")) name = line.substr(colon + 2);
        if (line.starts_with("cpu MHz") && facts.clock_hz == 0)
            facts.clock_hz = std::atof(line.c_str() + colon + 2) * 1e6;
    }
    put(facts.name, sizeof facts.name, name);
    put(facts.driver, sizeof facts.driver, "oneDNN sgemm, loops in " + set);
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGE_SIZE);
    facts.memory_bytes = pages > 0 && page > 0 ? std::uint64_t(pages) * std::uint64_t(page) : 0;
    const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    facts.l2_bytes = cache > 0 ? std::uint64_t(cache) : 32u << 20;
    cpu_set_t cores;
    CPU_ZERO(&cores);
    facts.num_sms = sched_getaffinity(0, sizeof cores, &cores) == 0
                        ? CPU_COUNT(&cores)
                        : int(sysconf(_SC_NPROCESSORS_ONLN));
    return facts;
}

}  // namespace

namespace cpu {

void* scratch(int slot, std::size_t bytes) {
    struct Block {
        void* memory = nullptr;
        std::size_t size = 0;
        ~Block() { std::free(memory); }
    };
    thread_local std::array<Block, 20> blocks;
    Block& block = blocks[std::size_t(slot)];
    if (block.size < bytes) {
        std::free(block.memory);
        block.size = 0;
        const std::size_t whole = (bytes + bytes / 4 + kAlignment - 1) / kAlignment * kAlignment;
        block.memory = std::aligned_alloc(kAlignment, whole);
        if (!block.memory) throw std::bad_alloc();
        block.size = whole;
    }
    return block.memory;
}

}  // namespace cpu

const Backend& cpu_backend() {
    static const StreamSet streams = {create_stream, release_stream, create_event, release_event,
                                      record,        wait,           elapsed,      follow};
    static const std::string set = instruction_set();
    static const DeviceFacts facts = make_facts(set);
    static const KernelSet kernels = make_kernels(set);
    static const Backend backend = {Device::cpu, 0,           allocate, release, copy,
                                    set_zero,    synchronise, &streams, &facts,  &kernels};
    return backend;
}

AllocatorUse cpu_allocator_use() { return {bytes_now.load(), bytes_peak.load()}; }
void reset_cpu_allocator_peak() { bytes_peak = bytes_now.load(); }

}  // namespace moeplan
