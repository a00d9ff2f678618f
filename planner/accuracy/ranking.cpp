#include "planner/accuracy/ranking.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "planner/accuracy/summary.hpp"

namespace moeplan {
namespace {

constexpr std::size_t kFewestRuns = 4;

std::vector<double> ranks_of(const std::vector<double>& values) {
    std::vector<std::size_t> order(values.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return values[a] < values[b]; });
    std::vector<double> ranks(values.size());
    for (std::size_t i = 0; i < order.size();) {
        std::size_t j = i;
        while (j < order.size() && values[order[j]] == values[order[i]]) ++j;
        for (std::size_t k = i; k < j; ++k)
            ranks[order[k]] = 0.5 * static_cast<double>(i + j - 1);  // the mean of i … j−1
        i = j;
    }
    return ranks;
}

}  // namespace

double rank_correlation(const std::vector<double>& a, const std::vector<double>& b) {
    const std::vector<double> x = ranks_of(a), y = ranks_of(b);
    const double mean = 0.5 * (static_cast<double>(x.size()) - 1);
    double xy = 0, xx = 0, yy = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
        xy += (x[i] - mean) * (y[i] - mean);
        xx += (x[i] - mean) * (x[i] - mean);
        yy += (y[i] - mean) * (y[i] - mean);
    }
    return xx > 0 && yy > 0 ? xy / std::sqrt(xx * yy) : 0;
}

double regret(const std::vector<double>& predicted, const std::vector<double>& measured,
              int picks) {
    std::vector<std::size_t> order(predicted.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return predicted[a] < predicted[b]; });
    order.resize(std::min(order.size(), static_cast<std::size_t>(picks)));
    double taken = measured[order.front()];
    for (const std::size_t i : order) taken = std::min(taken, measured[i]);
    return taken / *std::min_element(measured.begin(), measured.end()) - 1;
}

Ranking rank_layouts(const std::vector<AccuracyRow>& rows) {
    struct Runs {
        std::vector<double> predicted, measured;
    };
    std::map<std::pair<std::string, std::string>, Runs> groups;
    for (const AccuracyRow& row : rows) {
        if (row.metric != Metric::step_time && row.metric != Metric::step_time_of_sweep) continue;
        if (row.model.empty()) continue;
        Runs& runs =
            groups[{row.source, row.model + " on " + std::to_string(row.gpus) + " " + row.gpu +
                                    ", " + row.precision + ", " + std::to_string(row.global_batch) +
                                    " × " + std::to_string(row.seq)}];
        runs.predicted.push_back(row.predicted);
        runs.measured.push_back(row.measured);
    }
    Ranking out;
    std::vector<double> correlations;
    for (const auto& [key, runs] : groups) {
        if (runs.measured.size() < kFewestRuns) continue;
        RankedGroup group{key.first,
                          key.second,
                          runs.measured.size(),
                          rank_correlation(runs.predicted, runs.measured),
                          regret(runs.predicted, runs.measured, 1),
                          regret(runs.predicted, runs.measured, 3)};
        correlations.push_back(group.correlation);
        out.mean_regret_of_one += group.regret_of_one;
        out.mean_regret_of_three += group.regret_of_three;
        out.worst_regret_of_one = std::max(out.worst_regret_of_one, group.regret_of_one);
        out.groups.push_back(std::move(group));
    }
    if (out.groups.empty()) return out;
    const double count = static_cast<double>(out.groups.size());
    out.mean_regret_of_one /= count;
    out.mean_regret_of_three /= count;
    out.median_correlation = quantile(correlations, 0.5);
    out.worst_correlation = *std::min_element(correlations.begin(), correlations.end());
    return out;
}

Json to_json(const Ranking& ranking) {
    Json out = Json::array();
    for (const RankedGroup& group : ranking.groups)
        out.push_back(Json{{"name", group.source + ": " + group.name},
                           {"count", group.runs},
                           {"spearman", group.correlation},
                           {"regret", group.regret_of_one},
                           {"best_of_3_regret", group.regret_of_three}});
    return out;
}

}  // namespace moeplan
