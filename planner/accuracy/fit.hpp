#pragma once
/// Calibration: the constants of profiler/calibration.hpp, fitted so that predictions meet
/// measurements.
///
/// Minimises the mean over records of a robust |log(predicted / measured)|, each source counting as
/// the root of its number of records, with a weak pull towards a centre (the neutral values, or the
/// shipped ones). Gauss-Newton on scaled constants with weights renewed each round; deterministic,
/// whatever the number of threads.

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "profiler/calibration.hpp"

namespace moeplan {

/// A measurement to meet, and whose it is.
struct FitTarget {
    std::string source;
    double measured = 0;  ///< seconds
};
/// Predictions of all targets under these constants, seconds, in the order of the targets.
using PredictAll = std::function<std::vector<double>(const Calibration&)>;

struct FitOptions {
    int most_rounds = 10;
    double step = 0.02;    ///< of the finite differences, as a share of a constant's range
    double knee = 0.05;    ///< |log ratio| up to which errors count by their square
    double pull = 1e-3;    ///< weight of one range's distance from `centre`, squared
    Calibration centre;    ///< neutral
    double enough = 2e-3;  ///< relative gain of a round below which it ends
    std::function<void(const std::string&)> progress;
};

struct Fit {
    Calibration calibration;
    double loss_before = 0, loss_after = 0;
    int rounds = 0;
    /// By left-out source: constants fitted on all others.
    std::map<std::string, Calibration> left_out;
};

/// @param start  neutral, or what an earlier fit found
Fit fit_constants(const std::vector<FitTarget>&, const PredictAll&, const Calibration& start,
                  const FitOptions& = {});
/// The same, and once more with each source left out: from the fitted constants on, by the
/// derivatives found last.
Fit fit_with_sources_left_out(const std::vector<FitTarget>&, const PredictAll&,
                              const Calibration& start, const FitOptions& = {});

}  // namespace moeplan
