#pragma once
/// Whose software runs a step, on what, and so what of it can overlap.

#include "simulator/step.hpp"

namespace moeplan {

/// A CPU profile: kernels of our own trainer, one after another on the thread that also
/// communicates. Nothing overlaps.
bool runs_on_cpu(const StepCase&);

/// `moeplan train`: it projects queries, keys and values apart, adds residual gradients inside the
/// norms' kernels and zeroes gradients before every step.
bool is_own_trainer(const StepCase&);

/// What the schedule asks for, or nothing on a CPU.
Overlap effective_overlap(const StepCase&);

}  // namespace moeplan
