#pragma once
/// Where the time of a step goes: the parts of its critical path, which sum to it, and what the
/// same stage's streams do in all.

#include "simulator/step_walk.hpp"

namespace moeplan {

/// The stage whose kernels take longest, for which the others wait; the first of those that differ
/// by no more than sums round.
int busiest_lane(const StepGraph&, const Timeline&);

/// Walks the critical path of one stage back from the end of the step. Work of other stages that it
/// waited for is bubble. The parts telescope: each covers what lies between the end of what came
/// before and its own end. They sum to the step's time to its last bit.
TimeBreakdown exposed_parts(const StepGraph&, const Timeline&, int lane);

/// What the stage's streams do, waited for or hidden.
/// @param exposed  of the same stage, for its bubble
TimeBreakdown busy_parts(const StepGraph&, const JobPrices&, const Timeline&, int lane,
                         const TimeBreakdown& exposed);

}  // namespace moeplan
