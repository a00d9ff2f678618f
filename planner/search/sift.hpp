#pragma once
/// Which combinations are legal and fit, and what refused the others.

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "model/check.hpp"
#include "planner/plan.hpp"
#include "planner/search/points.hpp"

namespace moeplan {

/// What became of the combinations of one model and one layout.
struct Outcome {
    std::map<std::string, Refused> refused;
    std::vector<Point> points;
    std::int64_t combinations = 0, legal = 0;
    double least_need = std::numeric_limits<double>::infinity();  ///< of those that do not fit
    std::string least_need_at;
};

/// Adds to a rule's count; its first example is kept.
void count_refused(std::map<std::string, Refused>& refused, const std::string& rule,
                   std::int64_t count, const std::string& example,
                   const std::vector<std::string>& nearest = {});

/// Legality, memory and bound of all schedules of one model and layout.
/// @param step    of the model and layout; its schedule is varied
/// @param model, layout  indexes for the points
/// @param limit   memory of a GPU
/// @param bound   empty: none
Outcome sift(const SearchSpace&, StepCase& step, std::size_t model, std::size_t layout,
             int global_batch, Bytes limit, const std::function<Seconds(const StepCase&)>& bound);

/// The smallest cluster of the same nodes on which something fits, in words.
std::string nearest_fit(const SearchSpace&, const StepCase& base,
                        const std::vector<ResizedModel>& models, int global_batch, Bytes limit);

}  // namespace moeplan
