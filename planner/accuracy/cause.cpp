#include "planner/accuracy/cause.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/text.hpp"
#include "planner/accuracy/summary.hpp"
#include "simulator/step_fields.hpp"

namespace moeplan {
namespace {

constexpr double kLargePart = 0.15;      ///< of the step, worth naming
constexpr double kOtherRelease = 0.1;    ///< faster or slower by this in another release: said
constexpr std::size_t kFewestAlike = 3;  ///< runs that make a tendency

std::string parts_of(const AccuracyRow& row) {
    std::vector<std::pair<double, std::string>> parts;
    for_each_part(row.exposed, [&](std::string name, Seconds time) {
        if (name.ends_with("_s")) name.resize(name.size() - 2);
        std::replace(name.begin(), name.end(), '_', ' ');
        parts.emplace_back(time.value / row.exposed.total().value, name);
    });
    std::stable_sort(parts.begin(), parts.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
    std::vector<std::string> words;
    for (const auto& [share, name] : parts)
        if (share > kLargePart && words.size() < 3)
            words.push_back(fmt::format("{} {:.0f} %", name, 100 * share));
    return "predicted as " + join(words, ", ");
}

/// Runs of the same model on the same GPU in the same numbers, from any source.
std::string siblings_of(const AccuracyRow& row, const std::vector<AccuracyRow>& all) {
    std::vector<double> ratios;
    for (const AccuracyRow& other : all)
        if (other.id != row.id && other.metric == row.metric && other.model == row.model &&
            other.gpu == row.gpu && other.precision == row.precision && other.sweep == row.sweep)
            ratios.push_back(other.predicted / other.measured);
    if (ratios.size() < kFewestAlike) return "";
    const double like_it = quantile(ratios, 0.5), itself = row.predicted / row.measured;
    const bool alone = std::abs(std::log(like_it)) < 0.5 * std::abs(std::log(itself));
    return fmt::format("{} other runs of {} on {} in {} come to {:.2f} of the measured: {}",
                       ratios.size(), row.model, row.gpu, row.precision, like_it,
                       alone ? "this one stands alone (its shape, or what it does not state)"
                             : "a tendency of all of them");
}

}  // namespace

std::string likely_cause(const AccuracyRow& row, const std::vector<AccuracyRow>& all) {
    std::vector<std::string> words = {parts_of(row)};
    for (const auto& [release, ratio] : row.other_releases)
        if (std::abs(ratio - 1) > kOtherRelease)
            words.push_back(fmt::format("release {} measured {:.2f} of this time", release, ratio));
    if (const std::string siblings = siblings_of(row, all); !siblings.empty())
        words.push_back(siblings);
    if (!row.assumed.empty()) {
        std::vector<std::string> keys;
        for (const Assumption& assumption : row.assumed) keys.push_back(assumption.key);
        words.push_back("assumed " + join(keys, ", "));
    }
    return join(words, "; ");
}

}  // namespace moeplan
