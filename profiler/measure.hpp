#pragma once
/// When a measurement may stop, and what it says then.

#include <functional>
#include <vector>

#include "core/units.hpp"

namespace moeplan {

/// What is kept of a series of samples.
struct Measured {
    Seconds median;
    double relative_spread = 0;  ///< median absolute deviation over median
    int num_samples = 0;
};
Measured summarise(std::vector<double> seconds);
/// What visits would have taken, had the machine gone at one pace in all of them.
/// @param paces  [visits] of the machine in each; empty: not known, the visits stay
/// @param pace   0: not known, the visits stay
std::vector<Measured> at_pace(std::vector<Measured> visits, const std::vector<Seconds>& paces,
                              Seconds pace);
/// The same work measured at several times: the median of its medians, which a slow spell of the
/// machine over fewer than half of them leaves alone. The spread is the larger of theirs and of
/// what they are apart; samples are added up.
Measured together(const std::vector<Measured>& visits);

/// Stop when the median is known well enough, when more samples no longer help, or when the time is
/// up: at least `least_samples`; then a standard error of the median below `noise`, or a spread
/// that did not shrink since half as many samples, or `longest` of wall time.
struct SamplingRule {
    int least_samples = 7, most_samples = 400;
    double noise = 0.01;
    Seconds longest{0.15};
};
/// @param spent  wall time of this series so far
bool settled(const std::vector<double>& seconds, Seconds spent, const SamplingRule&);

}  // namespace moeplan
