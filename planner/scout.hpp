#pragma once
/// A quick look at a case, to decide in which order cases are worth a closer one.

#include "simulator/step.hpp"

namespace moeplan {

/// Step time under balanced routing, read off runs of a few micro-batches: a step's time is a + b m
/// in micro-batches m, and two small runs give both. What unbalanced routing adds is for the caller
/// to learn from cases that were run. This orders candidates and is never reported; cases of few
/// micro-batches are run whole.
Seconds scout_step(const StepCase&, const StepRunner& runner);

}  // namespace moeplan
