#pragma once
/// What a step must be like for its graph to be built.

#include "simulator/step.hpp"

namespace moeplan {

/// Checks what the graph's arithmetic divides by, and that a placement belongs to the model.
/// Everything else a layout can get wrong is `check_layout`'s to say.
/// @throws InputError
void require_buildable(const StepCase&);

}  // namespace moeplan
