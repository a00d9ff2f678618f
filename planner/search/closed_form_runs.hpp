#pragma once
/// The closed form of the most promising points, but for what the bound excludes.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "planner/search/points.hpp"

namespace moeplan {

struct ClosedFormRuns {
    std::vector<Priced> run;
    std::int64_t scouted = 0;      ///< quick looks
    std::int64_t below_bound = 0;  ///< not run, although their bound does not exclude them
};

/// Runs of one model at most: as the space says; without a number asked for, enough for one model
/// to be sure of, few for each of many.
std::size_t most_runs(const SearchSpace&, std::size_t num_models);

/// @param waiting  [models of the grid] points that are legal and fit
/// @param keep     candidates wanted: a point whose bound is above the times of so many is excluded
/// @param tell     is told the share that is done, and what is being done
ClosedFormRuns run_closed_form(const SearchGrid&, std::vector<std::vector<Point>> waiting,
                               std::size_t keep, const StepRunner&, int num_threads,
                               const std::function<void(double, const std::string&)>& tell);

}  // namespace moeplan
