#pragma once
/// What the jobs of a step graph take, priced from a profile: kernels one after another in two
/// queues, host and device.

#include <array>
#include <cstdint>
#include <vector>

#include "simulator/step_graph.hpp"

namespace moeplan {

/// Time of a job on the slowest rank of its lane: its kernels as one max-plus matrix over (host
/// time H, device time D), simulator/two_queues.hpp.
struct JobPrice {
    double device = 0, host = 0, mixed = 0;
    double sync_first = 0;   ///< > 0: the host waits for what came before, and this long more
    double sync = 0;         ///< > 0: then the host waits for the device, and this long more
    double mean_device = 0;  ///< over the ranks of the lane
    double undisturbed = 1;  ///< share of `device` without what disturbed kernels in their measured
                             ///< medians (simulator/rank_waits.hpp)
    double streamed =
        0;  ///< share of `device` in kernels that memory bandwidth bounds, else SMs do
    std::array<double, 4> by_basis{};  ///< seconds of `device` by Basis
    std::int32_t by_rank = -1;         ///< row of JobPrices::ranks; −1: every rank alike
};
struct JobPrices {
    std::vector<JobPrice> jobs;
    std::vector<std::vector<double>> ranks;     ///< [rows][width] device seconds
    std::vector<std::vector<double>> slowdown;  ///< [lanes][width] stragglers; empty: none
    std::vector<double> waits;  ///< [ops] seconds that an exchange waits for the slowest of ranks
                                ///< whose work is the same (simulator/rank_waits.hpp); empty: none
};
JobPrices price_jobs(const StepGraph&, const StepCase&);

}  // namespace moeplan
