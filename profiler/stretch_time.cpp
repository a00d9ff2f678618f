/// Stretches of work on the slowest of several ranks, as a profile knows them.

#include <algorithm>
#include <charconv>
#include <cmath>

#include "profiler/curve_index.hpp"
#include "profiler/profile.hpp"

namespace moeplan {
namespace {

/// Where x lies on an ascending axis: between two places, or on the edge that it is beyond.
struct Place {
    std::size_t below = 0, above = 0;
    double share = 0;  ///< of the way from below to above
};

Place place_on(const std::vector<double>& axis, double x) {
    if (x <= axis.front()) return {};
    if (x >= axis.back()) return {axis.size() - 1, axis.size() - 1, 0};
    const auto above =
        static_cast<std::size_t>(std::upper_bound(axis.begin(), axis.end(), x) - axis.begin());
    return {above - 1, above, (x - axis[above - 1]) / (axis[above] - axis[above - 1])};
}

}  // namespace

double slowest_of(const Profile& profile, Seconds stretch, int num_ranks) {
    if (!profile.index || profile.index->stretches.slowest.empty() || !(stretch.value > 0))
        return 1;
    const auto& grid = profile.index->stretches;
    const Place ranks = place_on(grid.log_ranks, std::log(std::max(1, num_ranks))),
                length = place_on(grid.log_stretch, std::log(stretch.value));
    const auto along = [&](std::size_t row) {
        const double* line = grid.slowest.data() + row * grid.log_stretch.size();
        return line[length.below] + length.share * (line[length.above] - line[length.below]);
    };
    return along(ranks.below) + ranks.share * (along(ranks.above) - along(ranks.below));
}

double typical_of(const Profile& profile, Seconds stretch) {
    if (!profile.index || profile.index->stretches.typical.empty() || !(stretch.value > 0))
        return 1;
    const auto& grid = profile.index->stretches;
    const Place length = place_on(grid.log_stretch, std::log(stretch.value));
    return grid.typical[length.below] +
           length.share * (grid.typical[length.above] - grid.typical[length.below]);
}

std::optional<Seconds> machine_pace(const Profile& profile) {
    const auto found = profile.conditions.find(kMachinePace);
    if (found == profile.conditions.end()) return std::nullopt;
    const std::string& text = found->second;
    double seconds = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
    if (error != std::errc() || end != text.data() + text.size() || !(seconds > 0) || seconds > 1)
        return std::nullopt;
    return Seconds{seconds};
}

}  // namespace moeplan
