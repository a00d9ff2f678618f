#pragma once
/// AdamW with clipping by the norm of all gradients, and the learning rate over time.

#include <cstdint>

#include "core/enum_names.hpp"
#include "model/layers/parameters.hpp"

namespace moeplan {

enum class LearningRate : std::uint8_t {
    constant,
    cosine,  ///< falls to final_share along half a cosine
    wsd      ///< stays, then falls to final_share over the last fifth, linearly (warm-up, stable,
             ///< decay)
};
template <>
const EnumNames<LearningRate>& enum_names<LearningRate>();

struct OptimizerOptions {
    double learning_rate = 3e-3;
    LearningRate schedule = LearningRate::cosine;
    int warmup_steps = 20;  ///< linear from 0
    double final_share = 0.1;
    double clip = 1;  ///< largest norm of the gradient; 0: none
    double weight_decay = 0.1, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8;
    double selection_bias_rate = 1e-3;  ///< of routings with a selection bias (DeepSeek-V3)
    bool operator==(const OptimizerOptions&) const = default;
};

/// Of step 0 … steps − 1.
double learning_rate_at(const OptimizerOptions&, int step, int steps);

/// One step of AdamW on the elements `updated` of every parameter. @param step  counts from 1
void update(Runtime&, const ParameterSet&, const OptimizerOptions&, double learning_rate,
            std::int64_t step, double gradient_scale);

}  // namespace moeplan
