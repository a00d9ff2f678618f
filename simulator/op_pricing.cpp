/// Jobs of a step graph, priced from a profile: kernels one after another in two queues, host and
/// device.

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "simulator/step_graph.hpp"

namespace moeplan {
namespace {

struct Pricer {
    const StepGraph& graph;
    const StepCase& step;
    const Profile& profile;
    HostCosts host;
    Precision wide;  // of activations: everything but the narrow products

    Precision precision_of(const KernelCall& call) const {
        return call.fp32 ? Precision::fp32 : call.narrow ? step.schedule.precision : wide;
    }

    PricedTime price(const KernelCall& call) const {
        PricedTime priced = kernel_time(profile, call.kernel, precision_of(call), call.shape);
        priced.time *= call.times;
        return priced;
    }
    PricedTime price_rows(const KernelCall& call, std::span<const std::uint32_t> rows,
                          double sum) const {
        if (const auto* grouped = std::get_if<GroupedGemm>(&call.shape)) {
            if (sum <= 0) return {Seconds{0}, Basis::measured};
            return kernel_time(profile, call.kernel, precision_of(call),
                               GroupedGemm{rows, grouped->n, grouped->k});
        }
        if (sum <= 0) return {Seconds{0}, Basis::measured};
        const Streamed& row = std::get<Streamed>(call.shape);
        return kernel_time(profile, call.kernel, precision_of(call),
                           Streamed{row.moved * sum, row.width});
    }

    /// Two queues: launches of l each, n of them spread over the job, kernels of k in all. The last
    /// kernel can start when it is launched and the ones before it are done: mixed = max over i of
    /// i·l + (n−i+1)·k/n.
    void add_host(JobPrice& price, const Work& work) const {
        if (profile.host_overlap <= 0 || work.launches <= 0) {  // host work is in the kernel times
            price.mixed = 0;
            return;
        }
        const double l = host.per_launch.value, n = work.launches;
        price.host = n * l;
        price.mixed = std::max(l + price.device, n * l + price.device / n);
        price.sync = work.syncs * host.per_sync.value;
    }
};

}  // namespace

JobPrices price_jobs(const StepGraph& graph, const StepCase& step) {
    const Profile& profile = *step.profile;
    const Pricer pricer{graph, step, profile, host_costs(profile, step.schedule.software),
                        step.schedule.precision == Precision::fp32   ? Precision::fp32
                        : step.schedule.precision == Precision::fp16 ? Precision::fp16
                                                                     : Precision::bf16};
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

    std::vector<JobPrice> plain(graph.works.size());  // of what every rank does alike
    for (std::size_t w = 0; w < graph.works.size(); ++w)
        for (const auto& call : graph.works[w].calls) {
            if (call.per_row) continue;
            const PricedTime priced = pricer.price(call);
            plain[w].device += priced.time.value;
            plain[w].by_basis[static_cast<std::size_t>(priced.basis)] += priced.time.value;
        }

    std::vector<double> rank_seconds(width);
    for (const Job& job : graph.jobs) {
        const Work& work = graph.works[job.work];
        JobPrice price = plain[job.work];
        if (job.loads >= 0) {
            const ExpertLoads& loads = graph.loads[job.loads];
            const int per_rank = loads.experts_per_rank;
            std::fill(rank_seconds.begin(), rank_seconds.end(), price.device);
            std::array<double, 4> slowest_basis{};
            double slowest = -1;
            bool alike = true;
            // equal rows cost the same: ranks of one class are priced once
            std::map<std::vector<std::uint32_t>, std::pair<double, std::array<double, 4>>> classes;
            for (std::size_t r = 0; r < width; ++r) {
                const std::span<const std::uint32_t> rows(loads.rows.data() + r * per_rank,
                                                          static_cast<std::size_t>(per_rank));
                const std::vector<std::uint32_t> key(rows.begin(), rows.end());
                auto found = classes.find(key);
                if (found == classes.end()) {
                    const double sum = std::accumulate(rows.begin(), rows.end(), 0.0);
                    double seconds = 0;
                    std::array<double, 4> basis{};
                    for (const auto& call : work.calls) {
                        if (!call.per_row) continue;
                        const PricedTime priced = pricer.price_rows(call, rows, sum);
                        seconds += priced.time.value;
                        basis[static_cast<std::size_t>(priced.basis)] += priced.time.value;
                    }
                    found = classes.emplace(key, std::pair{seconds, basis}).first;
                }
                rank_seconds[r] += found->second.first;
                alike = alike && rank_seconds[r] == rank_seconds[0];
                if (rank_seconds[r] > slowest)
                    slowest = rank_seconds[r], slowest_basis = found->second.second;
            }
            price.device = slowest;
            price.mean_device = std::accumulate(rank_seconds.begin(), rank_seconds.end(), 0.0) /
                                static_cast<double>(width);
            for (std::size_t b = 0; b < 4; ++b) price.by_basis[b] += slowest_basis[b];
            if (!alike) {
                price.by_rank = static_cast<std::int32_t>(prices.ranks.size());
                prices.ranks.push_back(rank_seconds);
            }
        } else {
            price.mean_device = price.device;
        }
        pricer.add_host(price, work);
        prices.jobs.push_back(price);
    }
    return prices;
}

}  // namespace moeplan
