/// Links and the host, as a profile knows them.

#include <algorithm>
#include <cmath>

#include "profiler/curve_index.hpp"
#include "profiler/profile.hpp"

namespace moeplan {
namespace {

const CurveIndex::LinkLine* link_line(const Profile& profile, std::string_view collective,
                                      int num_ranks) {
    if (!profile.index) return nullptr;
    const CurveIndex::LinkLine* best = nullptr;
    for (const auto& line : profile.index->links)
        if (line.collective == collective &&
            (!best || std::abs(std::log(line.num_ranks / static_cast<double>(num_ranks))) <
                          std::abs(std::log(best->num_ranks / static_cast<double>(num_ranks)))))
            best = &line;
    return best;
}

double log_seconds_at(const CurveIndex::LinkLine& line, double log_bytes) {
    const auto& x = line.log_bytes;
    const auto& y = line.log_seconds;
    if (log_bytes <= x.front() || x.size() == 1) return y.front();        // below: latency
    if (log_bytes >= x.back()) return y.back() + (log_bytes - x.back());  // above: the last rate
    const auto above =
        static_cast<std::size_t>(std::upper_bound(x.begin(), x.end(), log_bytes) - x.begin());
    const double share = (log_bytes - x[above - 1]) / (x[above] - x[above - 1]);
    return y[above - 1] + share * (y[above] - y[above - 1]);
}

/// Lines of a collective next to a number of ranks, from below and from above.
struct Neighbours {
    const CurveIndex::LinkLine *below = nullptr, *above = nullptr;
};

Neighbours neighbours(const Profile& profile, std::string_view collective, int num_ranks) {
    Neighbours out;
    if (!profile.index) return out;
    for (const auto& line : profile.index->links) {
        if (line.collective != collective) continue;
        if (line.num_ranks <= num_ranks && (!out.below || line.num_ranks > out.below->num_ranks))
            out.below = &line;
        if (line.num_ranks >= num_ranks && (!out.above || line.num_ranks < out.above->num_ranks))
            out.above = &line;
    }
    return out;
}

}  // namespace

std::optional<PricedTime> link_time(const Profile& profile, std::string_view collective,
                                    Bytes message, int num_ranks) {
    const auto [below, above] = neighbours(profile, collective, num_ranks);
    if (!below || !above || !(message.value > 0)) return std::nullopt;
    const double x = std::log(message.value);
    if (below != above) {
        // Between two numbers of ranks: a straight line in the logarithms.
        const double share = std::log(num_ranks / static_cast<double>(below->num_ranks)) /
                             std::log(above->num_ranks / static_cast<double>(below->num_ranks));
        const Basis basis = std::max(std::max(below->basis, above->basis), Basis::interpolated);
        return PricedTime{
            {std::exp((1 - share) * log_seconds_at(*below, x) + share * log_seconds_at(*above, x))},
            basis};
    }
    const bool on_point = std::any_of(below->log_bytes.begin(), below->log_bytes.end(),
                                      [&](double p) { return std::abs(p - x) < 1e-9; });
    Basis basis = below->basis;
    if (basis == Basis::measured && !on_point) basis = Basis::interpolated;
    return PricedTime{{std::exp(log_seconds_at(*below, x))}, basis};
}

double link_efficiency(const Profile& profile, std::string_view collective, Bytes message,
                       int num_ranks) {
    const auto* line = link_line(profile, collective, num_ranks);
    if (!line || !(message.value > 0)) return 1;
    // The link's rate is the best that this curve reaches: what is left is how much of it a message
    // of this size gets.
    double best = 0;
    for (std::size_t i = 0; i < line->log_bytes.size(); ++i)
        best = std::max(best, std::exp(line->log_bytes[i] - line->log_seconds[i]));
    const double here = message.value / std::exp(log_seconds_at(*line, std::log(message.value)));
    return std::clamp(here / best, 1e-6, 1.0);
}

HostCosts host_costs(const Profile& profile) {
    HostCosts costs = profile.host;
    costs.per_bare_launch = costs.per_launch;
    if (profile.host_overlap > 0)
        costs.per_launch += Seconds{profile.calibration[Constant::framework_launch]};
    return costs;
}

}  // namespace moeplan
