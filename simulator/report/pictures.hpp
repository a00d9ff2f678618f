#pragma once
/// What a page or a Chrome trace draws of a walk: the bars of its timeline, and how busy its
/// busiest links are.

#include <vector>

#include "simulator/step_walk.hpp"

namespace moeplan {

/// A bar for each op on the drawn ranks of its stage: where all do the same the first, else also
/// those with most and least to do.
/// @param busy  [world_size] StepReport::busy_by_rank
std::vector<TimelineBar> timeline_bars(const StepGraph&, const JobPrices&, const Timeline&,
                                       const std::vector<Seconds>& busy);

/// Of the busiest links, the share of their bandwidth in use over time.
std::vector<LinkHistory> link_history(const StepGraph&, const Timeline&, StepNetwork&);

}  // namespace moeplan
