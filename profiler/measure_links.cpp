#include "profiler/measure_links.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <string>

namespace moeplan {
namespace {

using Clock = std::chrono::steady_clock;

struct Exchange {
    const char* name;
    std::function<void(std::int64_t bytes)> run;
};

/// From here on a message is not hidden by latency, and what its buffers lie in counts.
constexpr std::int64_t kLarge = 16 << 10;

/// Brings the buffers of an exchange on a CPU into the state in which a step finds them: what is
/// sent has just been written, all else was touched long ago and is out of the caches.
class StepState {
  public:
    StepState(const Backend& backend, void* sent) : backend_(backend), sent_(sent) {
        if (backend.device != Device::cpu) return;
        check(backend.allocate(kBytes, &scratch_), "allocate");
    }
    StepState(const StepState&) = delete;
    StepState& operator=(const StepState&) = delete;
    ~StepState() { backend_.release(scratch_); }
    bool applies(std::int64_t bytes) const { return scratch_ && bytes >= kLarge; }
    void operator()(std::int64_t bytes) const {
        check(backend_.set_zero(scratch_, kBytes, nullptr), "set_zero");
        check(backend_.set_zero(sent_, static_cast<std::size_t>(bytes), nullptr), "set_zero");
    }

  private:
    static constexpr std::size_t kBytes = std::size_t{64} << 20;  // more than a machine's caches
    const Backend& backend_;
    void *sent_, *scratch_ = nullptr;
};

}  // namespace

std::vector<LinkCurve> measure_links(const Backend& backend, const Communicator& ranks,
                                     const LinkOptions& options) {
    std::vector<LinkCurve> curves;
    const int size = ranks.size();
    if (size < 2) return curves;
    const auto most = static_cast<std::int64_t>(options.largest.value);
    void *send = nullptr, *receive = nullptr;
    check(backend.allocate(static_cast<std::size_t>(most), &send), "allocate");
    check(backend.allocate(static_cast<std::size_t>(most), &receive), "allocate");
    check(backend.set_zero(send, static_cast<std::size_t>(most), nullptr), "set_zero");
    check(backend.set_zero(receive, static_cast<std::size_t>(most), nullptr), "set_zero");
    const auto shares = [&](std::int64_t bytes) {
        return std::vector<std::int64_t>(static_cast<std::size_t>(size), bytes / size);
    };
    const auto floats = [&](std::int64_t bytes) { return std::max<std::int64_t>(1, bytes / 4); };
    const std::vector<Exchange> exchanges = {
        {"send_recv",
         [&](std::int64_t bytes) {  // there and back between ranks 0 and 1
             if (ranks.rank() == 0) ranks.send(send, bytes, 1), ranks.receive(receive, bytes, 1);
             if (ranks.rank() == 1) ranks.receive(receive, bytes, 0), ranks.send(send, bytes, 0);
         }},
        {"all_reduce",
         [&](std::int64_t bytes) { ranks.all_reduce(send, floats(bytes), NumberFormat::f32); }},
        {"all_gather",
         [&](std::int64_t bytes) {
             ranks.all_gather_v(send, bytes / size, receive, shares(bytes));
         }},
        {"reduce_scatter",
         [&](std::int64_t bytes) {
             ranks.reduce_scatter(send, receive, floats(bytes / size), NumberFormat::f32);
         }},
        {"all_to_all",
         [&](std::int64_t bytes) {
             ranks.all_to_all_v(send, shares(bytes), receive, shares(bytes));
         }},
    };
    const StepState as_in_a_step(backend, send);
    std::vector<std::int64_t> sizes;
    for (std::int64_t bytes = 64; bytes <= most; bytes *= 4) sizes.push_back(bytes);
    const double share =
        options.budget.value / static_cast<double>(exchanges.size() * sizes.size());
    std::size_t done = 0;
    bool stopped = false;
    for (const Exchange& exchange : exchanges) {
        LinkCurve curve{exchange.name,
                        size,
                        Basis::measured,
                        "measured on this machine between processes, see conditions",
                        {"bytes", "median_s", "relative_spread", "num_samples"},
                        {}};
        const double round_trip = std::string_view(exchange.name) == "send_recv" ? 2 : 1;
        for (const std::int64_t bytes : sizes) {
            stopped =
                stopped || ranks.all_reduce_max(options.stop && options.stop->load() ? 1 : 0) > 0;
            if (stopped) break;
            const bool prepared = as_in_a_step.applies(bytes);
            const auto once = [&](int repeats) {
                if (prepared) as_in_a_step(bytes);
                ranks.barrier();
                const auto begin = Clock::now();
                for (int i = 0; i < repeats; ++i) exchange.run(bytes);
                return std::chrono::duration<double>(Clock::now() - begin).count() / repeats;
            };
            // Short exchanges repeat, so that a sample is well above the clock's resolution and the
            // barrier's jitter.
            const double first = ranks.all_reduce_max(once(3));
            const int repeats =
                prepared ? 1
                         : static_cast<int>(std::clamp(200e-6 / std::max(first, 1e-8), 1.0, 200.0));
            SamplingRule rule;
            rule.longest = {share};
            std::vector<double> seconds;
            const auto begin = Clock::now();
            const auto spent = [&] {
                return Seconds{std::chrono::duration<double>(Clock::now() - begin).count()};
            };
            for (int batch = rule.least_samples;
                 ranks.all_reduce_max(settled(seconds, spent(), rule) ? 0 : 1) > 0; batch = 5)
                for (int i = 0; i < batch; ++i) seconds.push_back(once(repeats));
            const Measured mine = summarise(seconds);
            const double slowest = ranks.all_reduce_max(mine.median.value) / round_trip;
            curve.rows.push_back({static_cast<double>(bytes), slowest, mine.relative_spread,
                                  static_cast<double>(mine.num_samples)});
            if (ranks.rank() == 0 && options.progress)
                options.progress(static_cast<double>(++done) /
                                     static_cast<double>(exchanges.size() * sizes.size()),
                                 exchange.name);
        }
        if (!curve.rows.empty()) curves.push_back(std::move(curve));
    }
    backend.release(send);
    backend.release(receive);
    return curves;
}

}  // namespace moeplan
