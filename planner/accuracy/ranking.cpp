#include "planner/accuracy/ranking.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

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

namespace {

struct Runs {
    std::vector<std::size_t> rows;
    std::vector<double> predicted, measured;
};
struct SweepKey {
    std::string source, family, name, software;
    auto operator<=>(const SweepKey&) const = default;
};
using Sweeps = std::map<SweepKey, Runs>;

bool is_a_step(const AccuracyRow& row) {
    return (row.metric == Metric::step_time || row.metric == Metric::step_time_of_sweep) &&
           !row.model.empty();
}

void add(Sweeps& sweeps, const std::vector<AccuracyRow>& rows, std::size_t i, SweepOf of) {
    const AccuracyRow& row = rows[i];
    std::string name = row.model + " on " + std::to_string(row.gpus) + " " + row.gpu + ", " +
                       row.precision;
    double tokens = 1;
    if (of == SweepOf::layouts)
        name += ", " + std::to_string(row.global_batch) + " × " + std::to_string(row.seq);
    else
        tokens = 1.0 * row.global_batch * row.seq;
    Runs& runs = sweeps[{row.source, row.source + (row.sweep.empty() ? "" : ", " + row.sweep), name,
                         row.software}];
    runs.rows.push_back(i);
    runs.predicted.push_back(row.predicted / tokens);
    runs.measured.push_back(row.measured / tokens);
}

RankingSummary summary_of(const std::string& family, const std::vector<RankedGroup>& groups) {
    RankingSummary out;
    out.family = family;
    std::vector<double> correlations;
    for (const RankedGroup& group : groups) {
        if (!family.empty() && group.family != family) continue;
        out.of = group.of;
        ++out.sweeps;
        out.runs += group.runs;
        correlations.push_back(group.correlation);
        out.mean_regret_of_one += group.regret_of_one;
        out.mean_regret_of_three += group.regret_of_three;
        out.worst_regret_of_one = std::max(out.worst_regret_of_one, group.regret_of_one);
    }
    if (out.sweeps == 0) return out;
    out.mean_regret_of_one /= static_cast<double>(out.sweeps);
    out.mean_regret_of_three /= static_cast<double>(out.sweeps);
    out.median_correlation = quantile(correlations, 0.5);
    out.worst_correlation = *std::min_element(correlations.begin(), correlations.end());
    return out;
}

}  // namespace

Ranking rank_layouts(const std::vector<AccuracyRow>& rows) {
    Ranking out;
    std::set<std::size_t> taken;
    std::set<std::string> families;
    for (const SweepOf of : {SweepOf::layouts, SweepOf::sizes}) {
        Sweeps sweeps;
        for (std::size_t i = 0; i < rows.size(); ++i)
            if (is_a_step(rows[i]) && !taken.contains(i)) add(sweeps, rows, i, of);
        for (const auto& [key, runs] : sweeps) {
            if (runs.rows.size() < kFewestRuns) continue;
            taken.insert(runs.rows.begin(), runs.rows.end());
            const std::string family =
                key.family + (of == SweepOf::sizes ? ", time a token" : "");
            families.insert(family);
            out.groups.push_back({key.source, family, key.name, of, runs.rows.size(),
                                  rank_correlation(runs.predicted, runs.measured),
                                  regret(runs.predicted, runs.measured, 1),
                                  regret(runs.predicted, runs.measured, 3)});
        }
    }
    for (const std::string& family : families)
        out.families.push_back(summary_of(family, out.groups));
    out.all = summary_of("", out.groups);
    return out;
}

Json to_json(const Ranking& ranking) {
    Json out = Json::array();
    for (const RankedGroup& group : ranking.groups)
        out.push_back(Json{{"name", group.source + ": " + group.name},
                           {"family", group.family},
                           {"of", std::string(name_of(group.of))},
                           {"count", group.runs},
                           {"spearman", group.correlation},
                           {"regret", group.regret_of_one},
                           {"best_of_3_regret", group.regret_of_three}});
    return out;
}

Json families_json(const Ranking& ranking) {
    Json out = Json::array();
    const auto put = [&](const RankingSummary& family, const std::string& name) {
        out.push_back(Json{{"family", name},
                           {"sweeps", family.sweeps},
                           {"runs", family.runs},
                           {"median_spearman", family.median_correlation},
                           {"lowest_spearman", family.worst_correlation},
                           {"mean_regret", family.mean_regret_of_one},
                           {"worst_regret", family.worst_regret_of_one},
                           {"mean_best_of_3_regret", family.mean_regret_of_three}});
    };
    for (const RankingSummary& family : ranking.families) put(family, family.family);
    if (ranking.all.sweeps > 0) put(ranking.all, "all");
    return out;
}

template <>
const EnumNames<SweepOf>& enum_names<SweepOf>() {
    static const EnumNames<SweepOf> names = {{SweepOf::layouts, "layouts"},
                                             {SweepOf::sizes, "sizes"}};
    return names;
}

}  // namespace moeplan
