#include "simulator/job_prices.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <numeric>
#include <optional>
#include <span>

#include "profiler/row_kernel.hpp"
#include "profiler/work_floor.hpp"
#include "simulator/rank_waits.hpp"
#include "simulator/software_state.hpp"
#include "simulator/two_queues.hpp"

namespace moeplan {
namespace {

/// A backward pass recomputes the scores and forms four products (FlashAttention-2, §3.1).
constexpr double kBackwardWork = 2.5;

struct Pricer {
    const StepGraph& graph;
    const StepCase& step;
    const Profile& profile;
    HostCosts host;
    Precision wide;  // of activations: everything but the narrow products

    Precision precision_of(const KernelCall& call) const {
        return call.fp32 ? Precision::fp32 : call.narrow ? step.schedule.precision : wide;
    }

    bool has_host = profile.host_overlap > 0;  // else host work is in the kernel times
    SoftwareCosts software;

    double factor(const KernelCall& call) const { return call.times / call.rate; }
    /// `adjusted` where a kernel runs over each rank's rows, which no attention does.
    /// @param rows  [ranks] 0: nothing runs there
    void adjust(const KernelCall& call, std::span<const double> rows,
                std::span<double> seconds) const {
        assert(!std::holds_alternative<AttentionShape>(call.shape));
        const double times = factor(call),
                     beside = has_host
                                  ? (call.small_kernels * profile.roofline.kernel_overhead).value
                                  : 0.0;
        for (std::size_t r = 0; r < seconds.size(); ++r)
            if (rows[r] > 0) seconds[r] = seconds[r] * times + beside;
    }
    /// What a call adds to its kernel: a recipe that gains less, small kernels beside it, an older
    /// attention.
    PricedTime adjusted(const KernelCall& call, PricedTime priced) const {
        priced.time *= factor(call);
        if (!has_host) return priced;
        if (const auto* shape = std::get_if<AttentionShape>(&call.shape)) {
            const bool backward = call.kernel == "attention_backward";
            const double most = backward ? software.attention_backward : software.attention_forward;
            if (most > 0)
                priced.time =
                    std::max(priced.time, call.times * (backward ? kBackwardWork : 1) *
                                              attention_flops(*shape) / (peak_of(wide) * most));
        }
        priced.time += call.small_kernels * profile.roofline.kernel_overhead;
        return priced;
    }
    FlopsPerSecond peak_of(Precision precision) const {
        const auto found = profile.roofline.peak.find(precision);
        return found == profile.roofline.peak.end() ? profile.roofline.peak.begin()->second
                                                    : found->second;
    }
    PricedTime price(const KernelCall& call) const {
        return adjusted(call, kernel_time(profile, call.kernel, precision_of(call), call.shape));
    }

    /// The kernels of a job as one matrix over host and device.
    void add_host(JobPrice& price, const Work& work, const std::vector<double>& seconds) const {
        if (!has_host) return;
        TwoQueues all;
        for (std::size_t i = 0; i < work.calls.size(); ++i) {
            const KernelCall& call = work.calls[i];
            const Seconds launch =
                call.launches * host.per_launch + call.bare_launches * host.per_bare_launch;
            all = then(all, one_kernel(launch.value, seconds[i]));
        }
        price.host = all.host;
        price.mixed = std::max(0.0, all.mixed);
        if (work.syncs > 0) price.sync = work.syncs * host.per_sync.value + work.host.value;
        if (work.sync_first) price.sync_first = host.per_sync.value;
    }
};

/// Calls of a work whose rows differ from rank to rank, ready to be priced again and again.
struct RowCalls {
    struct Call {
        std::size_t index = 0;  // in the work's calls
        RowKernel kernel;
    };
    std::vector<Call> calls;
    RowCalls(const Pricer& pricer, const Work& work) {
        for (std::size_t c = 0; c < work.calls.size(); ++c)
            if (const KernelCall& call = work.calls[c]; call.per_row)
                calls.push_back(
                    {c, {pricer.profile, call.kernel, pricer.precision_of(call), call.shape}});
    }
};

/// Ranks of a lane, those with the same rows as the one before them told once: they cost the same.
struct RankRows {
    std::vector<std::uint32_t> rows;   // [distinct, experts_per_rank]
    std::vector<std::size_t> of_rank;  // [width] → distinct
    ExpertRows distinct;

    RankRows(const Profile& profile, const ExpertLoads& loads, std::size_t width) {
        const auto each = static_cast<std::size_t>(loads.experts_per_rank);
        rows.reserve(width * each);
        for (std::size_t r = 0; r < width; ++r) {
            const auto first = loads.rows.begin() + static_cast<std::ptrdiff_t>(r * each),
                       last = first + static_cast<std::ptrdiff_t>(each);
            if (r == 0 || !std::equal(first, last, first - static_cast<std::ptrdiff_t>(each)))
                rows.insert(rows.end(), first, last);
            of_rank.push_back(rows.size() / each - 1);
        }
        distinct = expert_rows(profile, rows, each);
    }
};
/// Bound by memory bandwidth; else by SMs.
bool is_streamed(const KernelCall& call) { return std::holds_alternative<Streamed>(call.shape); }

}  // namespace

JobPrices price_jobs(const StepGraph& graph, const StepCase& step) {
    const Profile& profile = *step.profile;
    Pricer pricer{graph, step, profile, host_costs(profile),
                  step.schedule.precision == Precision::fp32   ? Precision::fp32
                  : step.schedule.precision == Precision::fp16 ? Precision::fp16
                                                               : Precision::bf16};
    if (pricer.has_host) pricer.software = software_costs(step);
    JobPrices prices;
    const auto width = static_cast<std::size_t>(graph.width);
    // A straggler of any replica slows the one that stands for all: it is the one the others wait
    // for.
    if (!step.disturbances.stragglers.empty()) {
        prices.slowdown.assign(graph.num_lanes, std::vector<double>(width, 1.0));
        const int stage_ranks = graph.width * graph.replicas;
        for (const auto& [rank, factor] : step.disturbances.stragglers)
            prices.slowdown[rank / stage_ranks][rank % stage_ranks % graph.width] *= factor;
    }

    std::vector<JobPrice> plain(graph.works.size());             // of what every rank does alike
    std::vector<std::vector<double>> calls(graph.works.size());  // seconds of each; 0: by rows
    for (std::size_t w = 0; w < graph.works.size(); ++w)
        for (const auto& call : graph.works[w].calls) {
            calls[w].push_back(0);
            if (call.per_row) continue;
            const PricedTime priced = pricer.price(call);
            calls[w].back() = priced.time.value;
            plain[w].device += calls[w].back();
            if (is_streamed(call)) plain[w].streamed += calls[w].back();
            plain[w].by_basis[static_cast<std::size_t>(priced.basis)] += calls[w].back();
        }

    // Jobs on the same rows one after another: what is counted of the rows serves them all.
    std::vector<std::uint32_t> order(graph.jobs.size());
    std::iota(order.begin(), order.end(), 0u);
    std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
        return graph.jobs[a].loads < graph.jobs[b].loads;
    });
    std::vector<std::optional<RowCalls>> row_calls(graph.works.size());
    std::optional<RankRows> ranks;
    std::int32_t ranks_of = -1;
    std::vector<double> rank_seconds(width), sums, seconds;
    prices.jobs.resize(graph.jobs.size());
    for (const std::uint32_t j : order) {
        const Job& job = graph.jobs[j];
        const Work& work = graph.works[job.work];
        JobPrice& price = prices.jobs[j];
        price = plain[job.work];
        if (job.loads < 0) {
            price.mean_device = price.device;
            price.streamed = price.device > 0 ? price.streamed / price.device : 0;
            pricer.add_host(price, work, calls[job.work]);
            price.undisturbed = undisturbed_share(profile, calls[job.work]);
            continue;
        }
        if (ranks_of != job.loads) {
            ranks.emplace(profile, graph.loads[job.loads], width);
            ranks_of = job.loads;
        }
        if (!row_calls[job.work]) row_calls[job.work].emplace(pricer, work);
        const auto& by_rows = row_calls[job.work]->calls;
        const std::vector<double>& rows = ranks->distinct.counts.rows;
        const std::size_t distinct = rows.size();
        sums.assign(distinct, 0);
        seconds.resize(by_rows.size() * distinct);  // [calls, distinct]
        for (std::size_t c = 0; c < by_rows.size(); ++c) {
            const std::span<double> here(seconds.data() + c * distinct, distinct);
            by_rows[c].kernel.times(ranks->distinct, here);
            const KernelCall& call = work.calls[by_rows[c].index];
            pricer.adjust(call, rows, here);
            for (std::size_t d = 0; d < distinct; ++d) sums[d] += here[d];
        }
        const auto slowest = static_cast<std::size_t>(
            std::max_element(sums.begin(), sums.end()) - sums.begin());
        bool alike = true;
        for (std::size_t r = 0; r < width; ++r) {
            rank_seconds[r] = price.device + sums[ranks->of_rank[r]];
            alike = alike && rank_seconds[r] == rank_seconds[0];
        }
        price.device += sums[slowest];
        price.mean_device = std::accumulate(rank_seconds.begin(), rank_seconds.end(), 0.0) /
                            static_cast<double>(width);
        if (!alike) {
            price.by_rank = static_cast<std::int32_t>(prices.ranks.size());
            prices.ranks.push_back(rank_seconds);
        }
        std::vector<double> of_slowest = calls[job.work];
        std::array<double, 4> basis{};
        for (std::size_t c = 0; c < by_rows.size(); ++c) {
            const double time = of_slowest[by_rows[c].index] = seconds[c * distinct + slowest];
            const Basis rests = rows[slowest] > 0
                                    ? by_rows[c].kernel.time(ranks->distinct, slowest).basis
                                    : Basis::measured;
            basis[static_cast<std::size_t>(rests)] += time;
            if (is_streamed(work.calls[by_rows[c].index])) price.streamed += time;
        }
        price.streamed = price.device > 0 ? price.streamed / price.device : 0;  // seconds → share
        for (std::size_t b = 0; b < 4; ++b) price.by_basis[b] += basis[b];
        pricer.add_host(price, work, of_slowest);
        price.undisturbed = undisturbed_share(profile, of_slowest);
    }
    prices.waits = rank_waits(graph, step, prices);
    return prices;
}

}  // namespace moeplan
