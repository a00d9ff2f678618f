#pragma once
/// Bands of error from predictions that did not know the source they are judged on.

#include <string>
#include <vector>

#include "planner/accuracy/evaluate.hpp"
#include "profiler/error_band.hpp"

namespace moeplan {

/// The value below which a share q of the weight lies, linear between the middles of neighbours.
double weighted_quantile(std::vector<std::pair<double, double>> values_and_weights, double q);

/// One band a kind (dense or MoE, narrow or not) from step times with `predicted_source_left_out`.
/// n rows of a source weigh √n together, so that no large sweep decides alone. Which side a source
/// errs to is its machine's, and a source not seen may err to the other: a band is as wide both
/// ways, to the 80 % quantile of |ln(measured / predicted)|. A kind with fewer
/// than 8 rows or 2 sources takes in the other precisions of its architecture, then every row.
/// A source not seen yet scatters by √(1 + 1/n) more than the n that tell how much they scatter (the
/// variance of a prediction from n drawn values is σ²·(1 + 1/n)): the band is as much wider.
/// @param without  a source that does not count; empty: all do
std::vector<ErrorBand> error_bands(const std::vector<AccuracyRow>&,
                                   const std::string& without = "");

/// Gives each row the interval of a planner that has never seen its source.
void add_intervals(std::vector<AccuracyRow>&);

}  // namespace moeplan
