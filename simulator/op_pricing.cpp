/// Jobs of a step graph, priced from a profile: kernels one after another in two queues, host and
/// device.

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "profiler/work_floor.hpp"
#include "simulator/software_state.hpp"
#include "simulator/step_graph.hpp"
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

    /// What a call adds to its kernel: a recipe that gains less, small kernels beside it, an older
    /// attention.
    PricedTime adjusted(const KernelCall& call, PricedTime priced) const {
        priced.time *= call.times / call.rate;
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
    PricedTime price_rows(const KernelCall& call, std::span<const std::uint32_t> rows,
                          double sum) const {
        if (sum <= 0) return {Seconds{0}, Basis::measured};
        if (const auto* grouped = std::get_if<GroupedGemm>(&call.shape))
            return adjusted(call, kernel_time(profile, call.kernel, precision_of(call),
                                              GroupedGemm{rows, grouped->n, grouped->k}));
        const Streamed& row = std::get<Streamed>(call.shape);
        return adjusted(call, kernel_time(profile, call.kernel, precision_of(call),
                                          Streamed{row.moved * sum, row.width}));
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

/// With sharded parameters every layer waits for the slowest rank of all: kernels take this much
/// longer than their mean, the more the more GPUs there are.
double waits_for_slowest(const StepCase& step) {
    if (step.schedule.sharding != Sharding::zero3 || step.profile->host_overlap <= 0) return 1;
    const double doublings = std::log2(world_size(step.layout) / 8.0);
    return 1 + step.profile->calibration[Constant::sharding_loss] * std::max(0.0, doublings);
}

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

    const double waiting = waits_for_slowest(step);
    std::vector<JobPrice> plain(graph.works.size());             // of what every rank does alike
    std::vector<std::vector<double>> calls(graph.works.size());  // seconds of each; 0: by rows
    for (std::size_t w = 0; w < graph.works.size(); ++w)
        for (const auto& call : graph.works[w].calls) {
            calls[w].push_back(0);
            if (call.per_row) continue;
            const PricedTime priced = pricer.price(call);
            calls[w].back() = priced.time.value * waiting;
            plain[w].device += calls[w].back();
            plain[w].by_basis[static_cast<std::size_t>(priced.basis)] += calls[w].back();
        }

    /// Of the calls that work on rows, on ranks with the same rows.
    struct RowSeconds {
        double sum = 0;
        std::vector<double> calls;
        std::array<double, 4> basis{};
    };
    std::vector<double> rank_seconds(width);
    for (const Job& job : graph.jobs) {
        const Work& work = graph.works[job.work];
        JobPrice price = plain[job.work];
        if (job.loads >= 0) {
            const ExpertLoads& loads = graph.loads[job.loads];
            const int per_rank = loads.experts_per_rank;
            std::fill(rank_seconds.begin(), rank_seconds.end(), price.device);
            const RowSeconds* slowest = nullptr;
            bool alike = true;
            // equal rows cost the same: ranks of one class are priced once
            std::map<std::vector<std::uint32_t>, RowSeconds> classes;
            for (std::size_t r = 0; r < width; ++r) {
                const std::span<const std::uint32_t> rows(loads.rows.data() + r * per_rank,
                                                          static_cast<std::size_t>(per_rank));
                const std::vector<std::uint32_t> key(rows.begin(), rows.end());
                auto found = classes.find(key);
                if (found == classes.end()) {
                    const double sum = std::accumulate(rows.begin(), rows.end(), 0.0);
                    RowSeconds seconds;
                    seconds.calls = calls[job.work];
                    for (std::size_t c = 0; c < work.calls.size(); ++c) {
                        if (!work.calls[c].per_row) continue;
                        const PricedTime priced = pricer.price_rows(work.calls[c], rows, sum);
                        seconds.calls[c] = priced.time.value * waiting;
                        seconds.sum += seconds.calls[c];
                        seconds.basis[static_cast<std::size_t>(priced.basis)] += seconds.calls[c];
                    }
                    found = classes.emplace(key, std::move(seconds)).first;
                }
                rank_seconds[r] += found->second.sum;
                alike = alike && rank_seconds[r] == rank_seconds[0];
                if (!slowest || found->second.sum > slowest->sum) slowest = &found->second;
            }
            price.device += slowest->sum;
            price.mean_device = std::accumulate(rank_seconds.begin(), rank_seconds.end(), 0.0) /
                                static_cast<double>(width);
            for (std::size_t b = 0; b < 4; ++b) price.by_basis[b] += slowest->basis[b];
            if (!alike) {
                price.by_rank = static_cast<std::int32_t>(prices.ranks.size());
                prices.ranks.push_back(rank_seconds);
            }
            pricer.add_host(price, work, slowest->calls);
        } else {
            price.mean_device = price.device;
            pricer.add_host(price, work, calls[job.work]);
        }
        prices.jobs.push_back(price);
    }
    return prices;
}

}  // namespace moeplan
