#include "simulator/interval.hpp"

#include <algorithm>
#include <cmath>

#include "simulator/step.hpp"

namespace moeplan {

const ErrorBand* errors_of(const StepCase& step) {
    if (!step.profile || step.profile->host_overlap <= 0) return nullptr;
    const Precision precision = step.schedule.precision;
    return band_of(step.profile->calibration.errors, num_moe_layers(step.model) > 0,
                   precision == Precision::fp8 || precision == Precision::mxfp8 ||
                       precision == Precision::nvfp4);
}

std::array<Seconds, 2> interval_of(Seconds time, const ErrorBand& errors,
                                   const std::optional<std::array<Seconds, 2>>& routing) {
    double below = std::max(0.0, -errors.low), above = std::max(0.0, errors.high);
    if (routing && time.value > 0 && (*routing)[0].value > 0) {
        below = std::hypot(below, std::max(0.0, std::log(time / (*routing)[0])));
        above = std::hypot(above, std::max(0.0, std::log((*routing)[1] / time)));
    }
    return {time * std::exp(-below), time * std::exp(above)};
}

}  // namespace moeplan
