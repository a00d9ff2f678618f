#pragma once
/// Published times of collectives, from 1 MiB on, each predicted from link curves without it: every
/// fifth point of a curve in turn, whole curves in turn (from other numbers of ranks, else from the
/// sibling GPU on the same NVLink), and other sources from the shipped profile.

#include "planner/accuracy/held_out.hpp"

namespace moeplan {

/// @param records  of the group "collectives"; others are ignored
HeldOutAnswers predict_collective_records(const std::vector<CurveRecord>& records);

}  // namespace moeplan
