#pragma once
/// How many tokens, of how many bytes, a rank works on at once.

#include <cstdint>

#include "simulator/step.hpp"

namespace moeplan {

/// Sizes that the whole step shares.
struct LayerShapes {
    explicit LayerShapes(const StepCase&);
    std::int64_t sequences = 1;  ///< micro_batch_size
    std::int64_t tokens = 0;     ///< of one context-parallel rank, whole width: b·s/cp
    std::int64_t split_tokens =
        0;  ///< outside tensor-parallel regions: tokens/tp with sequence parallelism
    std::int64_t routed_tokens = 0;  ///< that one rank routes: tokens/tp
    Bytes element;                   ///< of an activation
};

}  // namespace moeplan
