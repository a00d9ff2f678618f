#pragma once
/// Does the model put layouts in the right order? Rank correlation inside sweeps, and what picking
/// by the model costs against the best measured.

#include <cstdint>
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

/// What the runs of a sweep differ in.
enum class SweepOf : std::uint8_t {
    layouts,  ///< what a planner chooses; step times are put in order
    sizes     ///< sequence length and batch as well; times a token are
};

/// One sweep: runs of one source that share GPUs and their number, model, precision and software
/// state (release, fusions, graphs, recipe, routing); of layouts, the batch too. They differ in
/// what a planner chooses: parallel sizes, micro-batch, sharding, recomputation, dispatcher,
/// overlap.
struct RankedGroup {
    std::string source, family, name;  ///< family: the source, or its table
    SweepOf of = SweepOf::layouts;
    std::size_t runs = 0;
    double correlation = 0, regret_of_one = 0, regret_of_three = 0;
};
/// What some sweeps come to.
struct RankingSummary {
    std::string family;
    SweepOf of = SweepOf::layouts;
    std::size_t sweeps = 0, runs = 0;
    double median_correlation = 0, worst_correlation = 0;  ///< over sweeps
    double mean_regret_of_one = 0, worst_regret_of_one = 0, mean_regret_of_three = 0;
};
struct Ranking {
    std::vector<RankedGroup> groups;
    std::vector<RankingSummary> families;  ///< in the order of their names
    RankingSummary all;
};

/// Sweeps of four and more runs (below that an order is chance). Runs that no sweep of layouts
/// takes are looked at once more for sweeps of sizes.
Ranking rank_layouts(const std::vector<AccuracyRow>&);
Json to_json(const Ranking&);                      ///< `sweeps` of the answer
Json families_json(const Ranking&);                ///< `sweep_families`; the last one is all of them

template <>
const EnumNames<SweepOf>& enum_names<SweepOf>();

}  // namespace moeplan
