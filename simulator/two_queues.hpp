#pragma once
/// Host and device as two queues: the host launches kernels one after another, the device runs each
/// when it was launched and the one before it is done.

#include <algorithm>
#include <limits>

namespace moeplan {

/// Any run of launches and kernels, as the max-plus matrix over (H, D), when host and device are
/// done:
///
///     H' = H + host        D' = max(D + device, H + mixed)
///
/// Default: nothing launched, nothing run.
struct TwoQueues {
    double host = 0, device = 0;
    double mixed = -std::numeric_limits<double>::infinity();
    bool operator==(const TwoQueues&) const = default;
};

/// A kernel of `time` behind a launch of `launch`: D' = max(D, H + launch) + time.
constexpr TwoQueues one_kernel(double launch, double time) { return {launch, time, launch + time}; }

/// First a, then b: the max-plus product. Associative, so a layer's kernels are multiplied once.
constexpr TwoQueues then(const TwoQueues& a, const TwoQueues& b) {
    return {a.host + b.host, a.device + b.device, std::max(a.mixed + b.device, a.host + b.mixed)};
}

}  // namespace moeplan
