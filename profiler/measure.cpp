#include "profiler/measure.hpp"

#include <algorithm>
#include <cmath>

namespace moeplan {
namespace {

double median_of(std::vector<double>& values) {
    if (values.empty()) return 0;
    const std::size_t middle = values.size() / 2;
    std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(middle),
                     values.end());
    const double upper = values[middle];
    if (values.size() % 2 == 1) return upper;
    return 0.5 * (upper + *std::max_element(values.begin(),
                                            values.begin() + static_cast<std::ptrdiff_t>(middle)));
}

}  // namespace

Measured summarise(std::vector<double> seconds) {
    Measured out;
    out.num_samples = static_cast<int>(seconds.size());
    out.median = {median_of(seconds)};
    if (!(out.median.value > 0)) return out;
    for (double& value : seconds) value = std::abs(value - out.median.value);
    out.relative_spread = median_of(seconds) / out.median.value;
    return out;
}

std::vector<Measured> at_pace(std::vector<Measured> visits, const std::vector<Seconds>& paces,
                              Seconds pace) {
    if (!(pace.value > 0)) return visits;
    for (std::size_t v = 0; v < paces.size(); ++v)
        visits[v].median *= pace.value / paces[v].value;
    return visits;
}

Measured together(const std::vector<Measured>& visits) {
    std::vector<double> medians, spreads;
    int samples = 0;
    for (const Measured& visit : visits) {
        medians.push_back(visit.median.value);
        spreads.push_back(visit.relative_spread);
        samples += visit.num_samples;
    }
    Measured out = summarise(std::move(medians));
    out.relative_spread = std::max(out.relative_spread, median_of(spreads));
    out.num_samples = samples;
    return out;
}

bool settled(const std::vector<double>& seconds, Seconds spent, const SamplingRule& rule) {
    const int count = static_cast<int>(seconds.size());
    if (count < rule.least_samples) return false;
    if (count >= rule.most_samples || spent >= rule.longest) return true;
    const Measured now = summarise(seconds);
    // Standard error of a median of n normal samples: 1.253 σ/√n, σ = 1.4826 MAD.
    if (1.253 * 1.4826 * now.relative_spread / std::sqrt(count) < rule.noise) return true;
    if (count < 4 * rule.least_samples) return false;
    const Measured half = summarise({seconds.begin(), seconds.begin() + count / 2});
    return now.relative_spread > 0.9 * half.relative_spread &&
           std::abs(now.median.value / half.median.value - 1) < rule.noise;
}

}  // namespace moeplan
