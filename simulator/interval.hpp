#pragma once
/// How sure a step time is: errors of the model on runs like it, and the spread of the routing.

#include <array>
#include <optional>

#include "core/units.hpp"
#include "profiler/error_band.hpp"

namespace moeplan {

struct StepCase;
/// The band of runs like this one; nullptr where none is known (a CPU, a calibration without
/// errors).
const ErrorBand* errors_of(const StepCase&);

/// 80 % around a time, from the two causes taken as independent: distances in logarithms add in
/// squares,
///
///     low = T · exp(−√(ln² e₁₀ + ln²(T/r₁₀))),   high = T · exp(√(ln² e₉₀ + ln²(r₉₀/T)))
///
/// with e the quantiles of measured / predicted and r those of the time over draws of the routing.
/// A quantile on the far side of T counts as T.
/// @param routing  10 % and 90 % over draws; empty: one draw
std::array<Seconds, 2> interval_of(Seconds time, const ErrorBand& errors,
                                   const std::optional<std::array<Seconds, 2>>& routing);

}  // namespace moeplan
