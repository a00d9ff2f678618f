#include "planner/search/choose.hpp"

#include <algorithm>

#include "planner/plan.hpp"

namespace moeplan {

std::vector<std::size_t> choose(const std::vector<Priced>& run, const std::vector<double>& score,
                                std::size_t num_models, std::size_t most) {
    std::vector<std::size_t> order(run.size());
    for (std::size_t i = 0; i < run.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return score[a] < score[b]; });
    std::vector<std::size_t> chosen;
    std::vector<bool> taken(run.size(), false), seen(num_models, false);
    const auto take = [&](std::size_t i) {
        if (chosen.size() >= most || taken[i]) return;
        taken[i] = true;
        chosen.push_back(i);
    };
    for (const std::size_t i : order)
        if (!seen[run[i].point.model]) {
            seen[run[i].point.model] = true;
            take(i);
        }
    std::vector<std::vector<double>> points;
    for (const Priced& priced : run)
        points.push_back({priced.report.step_time.value, priced.point.fullest.value});
    std::vector<bool> lean(run.size(), false);
    for (const std::size_t i : not_dominated(points)) lean[i] = true;
    const std::size_t room = chosen.size() + (most - chosen.size()) / 2;
    for (const std::size_t i : order)
        if (lean[i] && chosen.size() < room) take(i);
    for (const std::size_t i : order) take(i);
    return chosen;
}

}  // namespace moeplan
