#pragma once
/// A quick look at a case, to decide in which order cases are worth a closer one.

#include "simulator/step.hpp"

namespace moeplan {

/// Step time read off runs of a few micro-batches and layers. A step's time is close to a + b m + c
/// l + d m l in micro-batches m and layers l of a stage: four small runs give the four numbers.
/// What is hidden behind a whole step's work (gradients) is seen less well, so this orders
/// candidates and is never reported. Cases that are small already are run as they are.
Seconds scout_step(const StepCase&, const StepRunner& runner);

}  // namespace moeplan
