#pragma once
/// Does the model put layouts in the right order? Rank correlation inside groups of runs that
/// differ in layout alone, and what picking by the model costs against the best measured.

#include <string>
#include <vector>

#include "core/json.hpp"
#include "planner/accuracy/evaluate.hpp"

namespace moeplan {

/// Spearman's rank correlation; equal values share the mean of their ranks. 0 if either side is
/// constant.
double rank_correlation(const std::vector<double>& a, const std::vector<double>& b);

/// How much longer than the best measured one the best of the first `picks` predicted takes.
double regret(const std::vector<double>& predicted, const std::vector<double>& measured, int picks);

/// Runs of one model, batch and number of GPUs of one source.
struct RankedGroup {
    std::string source, name;
    std::size_t runs = 0;
    double correlation = 0, regret_of_one = 0, regret_of_three = 0;
};
struct Ranking {
    std::vector<RankedGroup> groups;
    double median_correlation = 0, worst_correlation = 0;  ///< over groups
    double mean_regret_of_one = 0, worst_regret_of_one = 0, mean_regret_of_three = 0;
};

/// Groups of four and more runs (below that an order is chance).
Ranking rank_layouts(const std::vector<AccuracyRow>&);
Json to_json(const Ranking&);  ///< `sweeps` of the answer

}  // namespace moeplan
