#pragma once
/// Points of a search: combinations of a model, a layout and a schedule.

#include <cstddef>
#include <limits>
#include <vector>

#include "planner/search_space.hpp"
#include "simulator/step.hpp"

namespace moeplan {

/// One legal combination that fits, kept small: there may be millions. Its case is made when it is
/// run.
struct Point {
    std::size_t model = 0, layout = 0, schedule = 0;  ///< the schedule: index into schedules_of
    Seconds bound, scouted = {std::numeric_limits<double>::infinity()};  ///< balanced routing
    bool priced = false;
    Bytes fullest;
};

/// A combination that the closed form priced.
struct Priced {
    Point point;
    StepReport report;
};

/// The models and layouts whose combinations a search is about.
struct SearchGrid {
    const SearchSpace& space;
    const StepSchedule& schedule;  ///< to vary
    int global_batch_size = 0;
    std::vector<ParallelLayout> layouts;
    std::vector<StepCase> cases;  ///< one a model; layout and schedule are a point's
    StepCase case_of(const Point&) const;
};

}  // namespace moeplan
