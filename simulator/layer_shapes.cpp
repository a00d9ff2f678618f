#include "simulator/layer_shapes.hpp"

#include <algorithm>

namespace moeplan {

LayerShapes::LayerShapes(const StepCase& step) {
    const auto& schedule = step.schedule;
    const std::int64_t tp = step.layout.tensor_parallel_size,
                       cp = step.layout.context_parallel_size;
    sequences = schedule.micro_batch_size;
    tokens = std::max<std::int64_t>(1, sequences * schedule.sequence_length / cp);
    routed_tokens = std::max<std::int64_t>(1, tokens / tp);
    split_tokens = schedule.sequence_parallel ? routed_tokens : tokens;
    // activations stay in two bytes under every narrower recipe
    element = Bytes{schedule.precision == Precision::fp32 ? 4.0 : 2.0};
}

}  // namespace moeplan
