#include "profiler/measure_kernels.hpp"

#include <sys/utsname.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <thread>

#include "core/errors.hpp"
#include "core/quantity_text.hpp"
#include "core/text.hpp"
#include "core/version.hpp"
#include "kernels/machine_pace.hpp"

namespace moeplan {
namespace {

using Clock = std::chrono::steady_clock;
double since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Runs launches one by one and times them: by the host's clock on a CPU, by events on a GPU.
class Stopwatch {
  public:
    explicit Stopwatch(const Backend& backend) : backend_(backend) {
        if (backend.device == Device::cpu) return;
        check(backend.streams->create_stream(&stream_), "create_stream");
        check(backend.streams->create_event(&begin_), "create_event");
        check(backend.streams->create_event(&end_), "create_event");
    }
    Stopwatch(const Stopwatch&) = delete;
    Stopwatch& operator=(const Stopwatch&) = delete;
    ~Stopwatch() {
        if (begin_) backend_.streams->release_event(begin_);
        if (end_) backend_.streams->release_event(end_);
        if (stream_) backend_.streams->release_stream(stream_);
    }
    double time(const PreparedKernel& kernel) {
        if (backend_.device == Device::cpu) {
            const auto begin = Clock::now();
            check(kernel.run(nullptr), "kernel");
            return since(begin);
        }
        check(backend_.streams->record(begin_, stream_), "record");
        check(kernel.run(stream_), "kernel");
        check(backend_.streams->record(end_, stream_), "record");
        check(backend_.streams->wait(end_), "wait");
        double seconds = 0;
        check(backend_.streams->elapsed(begin_, end_, &seconds), "elapsed");
        return seconds;
    }
    Stream_* stream() const { return stream_; }

  private:
    const Backend& backend_;
    Stream_* stream_ = nullptr;
    Event_ *begin_ = nullptr, *end_ = nullptr;
};

/// Size of a cache of cpu0 as Linux says it, or `otherwise`.
std::size_t cache_bytes(int level_index, std::size_t otherwise) {
    std::ifstream file("/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(level_index) +
                       "/size");
    std::size_t kib = 0;
    return file >> kib && kib > 0 ? kib * 1024 : otherwise;
}

#if defined(__x86_64__)
__attribute__((target("clflushopt"))) void flush_lines_fast(const char* at, const char* end) {
    for (; at < end; at += 64) _mm_clflushopt(const_cast<char*>(at));
    _mm_sfence();
}
void flush_lines(const char* at, const char* end) {
    for (; at < end; at += 64) _mm_clflush(at);
    _mm_sfence();
}
bool has_clflushopt() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b >> 23 & 1);
}
#endif

/// Brings a kernel's buffers into the state in which a training step finds them: what was just
/// written lies where the last kernel left it; all else was touched a step ago, and is gone from
/// every cache if the step's tensors do not fit there. The caches are full of what other kernels
/// have written: each line that this one brings in sends one of theirs to memory, half of what a
/// kernel that streams has to wait for.
class Forget {
  public:
    explicit Forget(const Backend& backend) : backend_(backend) {
        const std::size_t gpu =
            backend.device == Device::cpu ? 0 : static_cast<std::size_t>(backend.facts->l2_bytes);
        // On a CPU also the pages: a step walks over far more of them than the translation buffers
        // hold.
        bytes_ = gpu > 0 ? 2 * gpu
                         : std::max<std::size_t>(2 * cache_bytes(2, std::size_t{2} << 20),
                                                 std::size_t{32} << 20);
        check(backend.allocate(bytes_, &scratch_), "allocate");
        check(backend.set_zero(scratch_, bytes_, nullptr), "set_zero");
    }
    Forget(const Forget&) = delete;
    Forget& operator=(const Forget&) = delete;
    ~Forget() { backend_.release(scratch_); }

    /// @param far  out of every cache; else out of a core's own (level 2) alone
    void operator()(const std::vector<PreparedKernel::Block>& blocks, bool far,
                    Stream_* stream) const {
        if (backend_.device != Device::cpu) {
            check(backend_.set_zero(scratch_, bytes_, stream), "set_zero");
            return;
        }
#if defined(__x86_64__)
        if (far) {
            static const bool fast = has_clflushopt();
            for (const auto& block : blocks) {
                if (block.fresh) continue;
                const char* begin = static_cast<const char*>(block.data);
                (fast ? flush_lines_fast : flush_lines)(begin, begin + block.bytes);
            }
        }
#endif
        std::memset(scratch_, next_ = !next_,
                    far ? bytes_ : std::min(bytes_, 2 * cache_bytes(2, std::size_t{2} << 20)));
        for (const auto& block : blocks) {
            if (!block.fresh) continue;
            auto* written = static_cast<volatile char*>(block.data);
            for (std::size_t at = 0; at < block.bytes; at += 64) written[at] = written[at];
        }
    }

  private:
    const Backend& backend_;
    std::size_t bytes_;
    void* scratch_ = nullptr;
    mutable bool next_ = false;
};

/// What of a step's tensors is still in a cache when they are needed again.
struct CacheState {
    Bytes
        shared;  ///< size up to which reading is as fast as from a shared cache, all ranks at once
    bool far = true;  ///< the step's tensors do not fit there
};

/// Reads arrays of 8 … 256 MiB on all ranks at once. What the processor claims is no guide: a
/// virtual machine shares it with others.
CacheState cache_state(const Backend& backend, const Communicator& ranks, Bytes working_set) {
    CacheState out;
    if (backend.device != Device::cpu) {
        out.shared = {static_cast<double>(backend.facts->l2_bytes)};
        return out;
    }
    constexpr std::size_t kLargest = std::size_t{256} << 20;
    void* memory = nullptr;
    check(backend.allocate(kLargest, &memory), "allocate");
    check(backend.set_zero(memory, kLargest, nullptr), "set_zero");
    const auto* words = static_cast<const std::uint64_t*>(memory);
    std::vector<std::pair<double, double>> rates;  // bytes, bytes per second
    volatile std::uint64_t sink = 0;
    for (std::size_t bytes = std::size_t{8} << 20; bytes <= kLargest; bytes *= 2) {
        double best = 0;
        if (ranks.size() > 1) ranks.barrier();
        for (int pass = 0; pass < 3; ++pass) {
            std::array<std::uint64_t, 8> sums{};
            const auto begin = Clock::now();
            for (std::size_t i = 0; i < bytes / 8; i += 8)
                for (std::size_t lane = 0; lane < 8; ++lane) sums[lane] += words[i + lane];
            if (pass > 0) best = std::max(best, static_cast<double>(bytes) / since(begin));
            for (const std::uint64_t sum : sums) sink = sink + sum;
        }
        rates.emplace_back(bytes,
                           ranks.size() > 1 ? ranks.all_reduce_sum(best) / ranks.size() : best);
    }
    check(backend.release(memory), "release");
    double high = 0, low = INFINITY;
    for (const auto& [bytes, rate] : rates) high = std::max(high, rate), low = std::min(low, rate);
    for (const auto& [bytes, rate] : rates)
        if (high / low < 1.3 || rate >= std::sqrt(high * low)) out.shared = {bytes};
    out.far = !(working_set.value > 0) || working_set > out.shared;
    return out;
}

struct TimedPoint {
    std::vector<Measured> cold;  ///< [visits]
    std::vector<Seconds> pace;   ///< [visits] of the machine meanwhile; empty: not known
    Measured warm;
    bool supported = true;
};

/// All ranks agree: true if any says so.
bool any_rank(const Communicator& ranks, bool mine) {
    return ranks.size() == 1 ? mine : ranks.all_reduce_max(mine ? 1 : 0) > 0;
}
double mean_over_ranks(const Communicator& ranks, double mine) {
    return ranks.size() == 1 ? mine : ranks.all_reduce_sum(mine) / ranks.size();
}

/// Samples until every rank has settled; ranks sample at the same time, since they share memory
/// bandwidth, last-level cache and clocks in the step too.
Measured sample(const Communicator& ranks, const SamplingRule& rule,
                const std::function<double()>& once) {
    std::vector<double> seconds;
    const auto begin = Clock::now();
    for (int batch = rule.least_samples; any_rank(ranks, !settled(seconds, {since(begin)}, rule));
         batch = std::max(3, batch / 2))
        for (int i = 0; i < batch; ++i) seconds.push_back(once());
    Measured mine = summarise(std::move(seconds));
    mine.median = {mean_over_ranks(ranks, mine.median.value)};
    return mine;
}

/// Rows as routing gives them: never round. A CPU's product works on blocks of rows, and what is
/// left over of each expert costs more than its share; 64 rows each would leave nothing. The mean
/// stays: 0, +1, −1, +2, −2, +3, −3 rows more, in turn.
KernelProblem with_uneven_rows(KernelProblem problem) {
    constexpr std::array<int, 7> kMore = {0, 1, -1, 2, -2, 3, -3};
    for (std::size_t e = 0; e < problem.group_rows.size(); ++e)
        if (problem.group_rows[e] > 3)
            problem.group_rows[e] += static_cast<std::uint32_t>(kMore[e % kMore.size()]);
    return problem;
}

/// One visit to a point; the first also times it back to back.
void visit(const Backend& backend, const Communicator& ranks, const KernelPoint& point,
           const MeasureOptions& options, Stopwatch& watch, const Forget& forget, bool far,
           TimedPoint& out) {
    const PreparedKernel kernel(backend, point.row,
                                backend.device == Device::cpu ? with_uneven_rows(point.problem)
                                                              : point.problem,
                                derive(options.seed, point.kernel));
    const Status first = kernel.run(watch.stream());
    if (any_rank(ranks, first.code == kUnsupported)) {
        out.supported = false;
        return;
    }
    check(first, point.kernel);
    for (int warm_up = 0; warm_up < 2; ++warm_up) watch.time(kernel);
    if (ranks.size() > 1) ranks.barrier();
    SamplingRule half = options.rule;
    half.longest *= 0.5;
    const std::vector<PreparedKernel::Block> blocks = kernel.blocks();
    out.cold.push_back(sample(ranks, half, [&] {
        forget(blocks, far, watch.stream());
        return watch.time(kernel);
    }));
    if (out.cold.size() == 1)
        out.warm = sample(ranks, half, [&] { return watch.time(kernel); });
}

struct Row {
    KernelPoint point;
    TimedPoint time;
};

/// One curve a kernel, all at one pace. `median_s` is the cold time, which a step sees.
std::vector<KernelCurve> curves_of(const std::vector<Row>& rows, Precision precision,
                                   const std::string& source, Seconds pace) {
    std::map<std::string, KernelCurve> curves;
    for (const Row& row : rows) {
        if (row.time.cold.empty()) continue;  // the device does not have it
        KernelCurve& curve = curves[row.point.kernel];
        if (curve.columns.empty()) {
            curve.kernel = row.point.kernel;
            curve.precision = precision;
            curve.basis = Basis::measured;
            curve.source = source;
            curve.columns = shape_columns(row.point.kernel);
            for (const char* column :
                 {"median_s", "relative_spread", "num_samples", "cold_s", "warm_s"})
                curve.columns.push_back(column);
        }
        const Measured used = together(at_pace(row.time.cold, row.time.pace, pace));
        std::vector<double> values = row.point.shape;
        std::vector<Measured> warm = {row.time.warm};
        if (!row.time.pace.empty()) warm = at_pace(warm, {row.time.pace.front()}, pace);
        values.insert(values.end(), {used.median.value, used.relative_spread,
                                     static_cast<double>(used.num_samples),
                                     used.median.value, warm.front().median.value});
        curve.rows.push_back(std::move(values));
    }
    std::vector<KernelCurve> out;
    for (auto& [name, curve] : curves) {
        std::sort(curve.rows.begin(), curve.rows.end());
        out.push_back(std::move(curve));
    }
    return out;
}

/// The roofline of a device that was measured: its best rates, so that efficiencies stay below
/// about one.
void measured_roofline(Profile& profile, Precision precision) {
    double rate = 0, bandwidth = 0;
    for (const KernelCurve& curve : profile.kernels) {
        if (curve.kernel.rfind("gemm", 0) == 0)
            for (const auto& row : curve.rows)
                rate = std::max(rate, 2 * row[0] * row[1] * row[2] / row[3]);
        if (curve.columns[0] == "bytes")
            for (const auto& row : curve.rows)
                if (row[0] >= 4e6) bandwidth = std::max(bandwidth, row[0] / row[2]);
    }
    if (rate > 0) profile.roofline.peak[precision] = {rate};
    if (bandwidth > 0) profile.roofline.memory_bandwidth = {bandwidth};
}

/// The pace that a profile's times are of: the median; of one that is gone on with, its own, if that
/// is known and of as many ranks. 0: not known.
Seconds pace_of(const Profile& known, const std::vector<Row>& rows, int num_ranks) {
    if (!known.kernels.empty()) {
        const auto ranks = known.conditions.find("ranks_at_once");
        const bool as_many =
            ranks != known.conditions.end() && ranks->second == std::to_string(num_ranks);
        return as_many ? machine_pace(known).value_or(Seconds{}) : Seconds{};
    }
    std::vector<double> paces;
    for (const Row& row : rows)
        for (const Seconds pace : row.time.pace) paces.push_back(pace.value);
    return summarise(std::move(paces)).median;
}

Profile assemble(const Backend& backend, const Communicator& ranks, const std::vector<Row>& rows,
                 const Profile& known, const CacheState& caches,
                 const std::vector<double>& reference) {
    const Seconds pace = pace_of(known, rows, ranks.size());
    Profile profile = known;
    const DeviceFacts& facts = *backend.facts;
    profile.name = backend.device == Device::cpu ? "localhost" : facts.name;
    profile.device = facts.name;
    profile.driver = facts.driver;
    profile.source = std::string("moeplan ") + kVersion + " profile, on this machine";
    profile.clocks_mhz = backend.device == Device::cpu ? clock_mhz() : facts.clock_hz / 1e6;
    for (const auto& [key, value] : machine_conditions(backend, ranks.size()))
        profile.conditions[key] = value;
    const std::vector<std::string> choices = choices_of(backend);
    for (std::size_t i = 0; i < choices.size(); ++i)
        profile.conditions["choice_" + std::to_string(i + 1)] = choices[i];
    profile.conditions["cache_shared_effective"] = to_text(caches.shared);
    profile.conditions["cache_state"] =
        caches.far ? "last written tensor where it lies, the rest out of every cache"
                   : "out of the core's own caches";
    profile.conditions.erase(kMachinePace);
    if (pace.value > 0) profile.conditions[kMachinePace] = exact_text(pace.value);
    if (reference.size() > 1) {
        const Measured drift = summarise(reference);
        const auto [low, high] = std::minmax_element(reference.begin(), reference.end());
        profile.conditions["reference_drift"] =
            exact_text(std::round(1e4 * (*high - *low) / drift.median.value) / 1e4);
        profile.conditions["reference_gemm_s"] = exact_text(drift.median.value);
    }
    profile.roofline.num_sms = backend.device == Device::cpu ? 1 : facts.num_sms;
    profile.roofline.l2 = caches.shared;
    profile.roofline.gemm_efficiency = 0.8, profile.roofline.attention_efficiency = 0.3,
    profile.roofline.memory_efficiency = 0.5;
    profile.host_overlap = backend.device == Device::cpu ? 0 : 1;
    for (KernelCurve& curve :
         curves_of(rows, Precision::fp32, "measured on this machine, see conditions", pace)) {
        const auto same = std::find_if(
            profile.kernels.begin(), profile.kernels.end(), [&](const KernelCurve& other) {
                return other.kernel == curve.kernel && other.precision == curve.precision &&
                       other.columns == curve.columns;
            });
        if (same == profile.kernels.end()) {
            profile.kernels.push_back(std::move(curve));
        } else {
            same->rows.insert(same->rows.end(), curve.rows.begin(), curve.rows.end());
            std::sort(same->rows.begin(), same->rows.end());
        }
    }
    measured_roofline(profile, Precision::fp32);
    if (profile.roofline.peak.empty()) profile.roofline.peak[Precision::fp32] = {1e11};
    if (!(profile.roofline.memory_bandwidth.value > 0)) profile.roofline.memory_bandwidth = {1e10};
    prepare(profile);
    return profile;
}

bool knows(const Profile& profile, const KernelPoint& point) {
    for (const KernelCurve& curve : profile.kernels)
        if (curve.kernel == point.kernel && curve.precision == Precision::fp32)
            for (const auto& row : curve.rows)
                if (row.size() >= point.shape.size() &&
                    std::equal(point.shape.begin(), point.shape.end(), row.begin()))
                    return true;
    return false;
}

/// What is not known yet. What the step really has comes first, each part in random order, so that a
/// slow drift of the machine becomes noise and no slope.
std::vector<KernelPoint> in_order(const std::vector<KernelPoint>& points, const Profile& known,
                                  Seed seed) {
    std::vector<KernelPoint> order;
    for (const KernelPoint& point : points)
        if (!knows(known, point)) order.push_back(point);
    std::sort(order.begin(), order.end());
    for (std::size_t i = order.size(); i > 1; --i)
        std::swap(order[i - 1], order[draw(seed, "order", i) % i]);
    std::stable_sort(order.begin(), order.end(), [](const KernelPoint& a, const KernelPoint& b) {
        return a.importance < b.importance;
    });
    return order;
}

/// One run of measurements. All ranks take the same branches: whatever a clock decides, they agree
/// on.
class KernelRun {
  public:
    KernelRun(const Backend& backend, const Communicator& ranks,
              const std::vector<KernelPoint>& points, const MeasureOptions& options,
              const Profile& known)
        : backend_(backend),
          ranks_(ranks),
          options_(options),
          known_(known),
          watch_(backend),
          forget_(backend),
          caches_(cache_state(backend, ranks, options.working_set)),
          order_(in_order(points, known, options.seed)),
          reference_(backend, "gemm", gemm_point("gemm", 256, 256, 256).problem, options.seed) {
        // Clocks, caches and the libraries' first calls: none of that is drift.
        const double warm_up = std::min(0.1, options.budget.value / 10);
        for (const auto start = Clock::now(); since(start) < warm_up;) watch_.time(reference_);
        if (backend.device != Device::cpu) return;  // a GPU is nobody else's
        machine_.emplace(backend, ranks, options.seed);
        pace_ = machine_->now();
    }

    /// A machine that others share has slow spells of seconds: the step's own shapes are visited
    /// again in the middle of the run and at its end, if there is time for it, and refinements get
    /// what that leaves.
    Profile go() {
        constexpr int kVisitsAgain = 2;
        constexpr double kOfFirstVisit = 0.6;  // no time back to back
        const auto essential = static_cast<std::size_t>(
            std::find_if(order_.begin(), order_.end(),
                         [](const KernelPoint& point) { return point.importance > 0; }) -
            order_.begin());
        const double budget = options_.budget.value, from = since(begin_);
        std::size_t next = time_new(0, essential, budget);
        if (next == essential) {
            const std::size_t own = rows_.size();
            const double spent = of_slowest(since(begin_)),
                         again = kOfFirstVisit * of_slowest(spent - from);
            const int visits = own > 0 ? static_cast<int>(std::clamp((budget - spent) / again, 0.0,
                                                                     double(kVisitsAgain)))
                                       : 0;
            const double refining = (budget - spent - visits * again) / std::max(1, visits);
            for (int v = 0; v < visits; ++v) {
                next = time_new(next, order_.size(), spent + (v + 1) * refining + v * again);
                for (std::size_t i = 0; i < own; ++i)
                    if (!time_row(rows_[i], budget)) break;
            }
            time_new(next, order_.size(), budget);
        }
        return ranks_.rank() == 0 ? so_far() : Profile{};
    }

  private:
    double of_slowest(double mine) const {
        return ranks_.size() > 1 ? ranks_.all_reduce_max(mine) : mine;
    }
    Profile so_far() const { return assemble(backend_, ranks_, rows_, known_, caches_, drift_); }

    /// @return false: the time is up, or we were told to stop
    bool time_row(Row& row, double until) {
        constexpr std::size_t kReferenceEvery = 20;
        if (any_rank(ranks_, (options_.stop && options_.stop->load()) || since(begin_) > until))
            return false;
        if (timed_++ % kReferenceEvery == 0) {
            std::vector<double> series;
            for (int s = 0; s < 15; ++s) series.push_back(watch_.time(reference_));
            drift_.push_back(summarise(series).median.value);
        }
        visit(backend_, ranks_, row.point, options_, watch_, forget_, caches_.far, row.time);
        if (machine_) {
            const Seconds before = pace_;
            pace_ = machine_->now();
            if (row.time.supported) row.time.pace.push_back((before + pace_) * 0.5);
        }
        if (ranks_.rank() != 0) return true;
        if (options_.progress)
            options_.progress(std::min(1.0, since(begin_) / options_.budget.value),
                              row.point.kernel);
        if (options_.keep && since(last_kept_) > 2) {
            options_.keep(so_far());
            last_kept_ = Clock::now();
        }
        return true;
    }

    /// First visits to order[first … last). @return the first that the time did not allow
    std::size_t time_new(std::size_t first, std::size_t last, double until) {
        for (std::size_t i = first; i < last; ++i) {
            rows_.push_back({order_[i], {}});
            if (!time_row(rows_.back(), until)) {
                rows_.pop_back();
                return i;
            }
            if (!rows_.back().time.supported) rows_.pop_back();
        }
        return last;
    }

    const Clock::time_point begin_ = Clock::now();
    const Backend& backend_;
    const Communicator& ranks_;
    const MeasureOptions& options_;
    const Profile& known_;
    Stopwatch watch_;
    const Forget forget_;
    const CacheState caches_;
    const std::vector<KernelPoint> order_;
    const PreparedKernel reference_;
    std::optional<MachinePace> machine_;
    Seconds pace_;  ///< of the machine after what was timed last
    std::vector<double> drift_;
    std::vector<Row> rows_;
    std::size_t timed_ = 0;
    Clock::time_point last_kept_ = begin_;
};

}  // namespace

Profile measure_kernels(const Backend& backend, const Communicator& ranks,
                        const std::vector<KernelPoint>& points, const MeasureOptions& options,
                        const Profile& known) {
    return KernelRun(backend, ranks, points, options, known).go();
}

// ---- held-out points
// --------------------------------------------------------------------------------------------------

namespace {

PricedTime price_row(const Profile& profile, const KernelCurve& curve,
                     const std::vector<double>& row) {
    const auto at = [&](std::size_t i) { return std::llround(row[i]); };
    if (curve.columns[0] == "bytes")
        return kernel_time(profile, curve.kernel, curve.precision,
                           Streamed{{row[0]}, curve.columns[1] == "width" ? at(1) : 0});
    if (curve.columns[0] == "batch")
        return kernel_time(profile, curve.kernel, curve.precision,
                           AttentionShape{at(0), at(1), at(2), at(3), at(4), std::nullopt});
    if (curve.columns[3] == "num_experts") {
        const std::vector<std::uint32_t> loads(static_cast<std::size_t>(at(3)),
                                               static_cast<std::uint32_t>(at(0)));
        return kernel_time(profile, curve.kernel, curve.precision,
                           GroupedGemm{loads, at(1), at(2)});
    }
    return kernel_time(profile, curve.kernel, curve.precision, Gemm{at(0), at(1), at(2)});
}

HeldOutError summarise_errors(const std::string& kernel, std::vector<double> errors) {
    HeldOutError out{kernel, static_cast<int>(errors.size()), 0, 0};
    if (errors.empty()) return out;
    std::sort(errors.begin(), errors.end());
    out.median = errors[errors.size() / 2];
    out.p90 = errors[std::min(errors.size() - 1, errors.size() * 9 / 10)];
    return out;
}

}  // namespace

std::vector<HeldOutError> held_out_errors(const Profile& profile, Seed seed) {
    Profile rest = profile;
    std::vector<std::pair<std::size_t, std::vector<double>>> held;
    for (std::size_t c = 0; c < rest.kernels.size(); ++c) {
        KernelCurve& curve = rest.kernels[c];
        std::vector<std::vector<double>> kept;
        std::vector<double> low(curve.columns.size(), INFINITY),
            high(curve.columns.size(), -INFINITY);
        for (const auto& row : curve.rows)
            for (std::size_t i = 0; i < row.size(); ++i)
                low[i] = std::min(low[i], row[i]), high[i] = std::max(high[i], row[i]);
        for (std::size_t r = 0; r < curve.rows.size(); ++r) {
            const auto& row = curve.rows[r];
            // The ends of the axis along which efficiency is interpolated must stay: beyond them
            // nothing is claimed.
            const std::size_t along = curve.columns[0] == "batch" ? 1 : 0;
            const bool interior = row[along] > low[along] && row[along] < high[along];
            if (interior && draw(derive(seed, "held out", c), curve.kernel, r) % 5 == 0)
                held.emplace_back(c, row);
            else
                kept.push_back(row);
        }
        curve.rows = std::move(kept);
    }
    prepare(rest);
    std::map<std::string, std::vector<double>> errors;
    std::vector<double> all;
    for (const auto& [c, row] : held) {
        const KernelCurve& curve = profile.kernels[c];
        const auto column = std::find(curve.columns.begin(), curve.columns.end(), "median_s") -
                            curve.columns.begin();
        const double measured = row[static_cast<std::size_t>(column)];
        const double error = std::abs(price_row(rest, curve, row).time.value / measured - 1);
        errors[curve.kernel].push_back(error);
        all.push_back(error);
    }
    std::vector<HeldOutError> out;
    for (auto& [kernel, list] : errors) out.push_back(summarise_errors(kernel, std::move(list)));
    out.push_back(summarise_errors("all", std::move(all)));
    return out;
}

// ---- the machine
// ------------------------------------------------------------------------------------------------------

double clock_mhz() {
    std::ifstream file("/proc/cpuinfo");
    for (std::string line; std::getline(file, line);)
        if (line.rfind("cpu MHz", 0) == 0)
            if (const auto colon = line.find(':'); colon != std::string::npos)
                return std::strtod(line.c_str() + colon + 1, nullptr);
    return 0;
}

std::map<std::string, std::string> machine_conditions(const Backend& backend, int num_ranks) {
    std::map<std::string, std::string> out;
    out["ranks_at_once"] = std::to_string(num_ranks);
    out["cores"] = std::to_string(std::thread::hardware_concurrency());
    out["device_driver"] = backend.facts->driver;
    if (std::ifstream load("/proc/loadavg"); load) {
        std::string one;
        load >> one;
        out["load_average"] = one;
    }
    utsname name{};
    if (uname(&name) == 0) out["operating_system"] = std::string(name.sysname) + " " + name.release;
    return out;
}

}  // namespace moeplan
