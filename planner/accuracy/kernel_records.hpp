#pragma once
/// Published kernel times, each predicted from a profile built without it: every fifth point of a
/// curve in turn, and whole curves in turn (that shape left out on every GPU of the generation).

#include "planner/accuracy/held_out.hpp"

namespace moeplan {

/// @param records  of the group "kernels"; others are ignored. Neutral calibration: benchmarks are
/// predicted as benchmarks.
HeldOutAnswers predict_kernel_records(const std::vector<CurveRecord>& records);

}  // namespace moeplan
