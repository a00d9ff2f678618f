#include "model/optimizer.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

namespace moeplan {

template <>
const EnumNames<LearningRate>& enum_names<LearningRate>() {
    static const EnumNames<LearningRate> names = {{LearningRate::constant, "constant"},
                                                  {LearningRate::cosine, "cosine"},
                                                  {LearningRate::wsd, "wsd"}};
    return names;
}

double learning_rate_at(const OptimizerOptions& options, int step, int steps) {
    if (step < options.warmup_steps)
        return options.learning_rate * double(step + 1) / double(options.warmup_steps);
    const double peak = options.learning_rate, low = peak * options.final_share;
    const int after = std::max(1, steps - options.warmup_steps);
    const double done = std::min(1.0, double(step - options.warmup_steps) / double(after));
    switch (options.schedule) {
        case LearningRate::constant:
            return peak;
        case LearningRate::cosine:
            return low + (peak - low) * 0.5 * (1 + std::cos(std::numbers::pi * done));
        case LearningRate::wsd:
            return done < 0.8 ? peak : peak + (low - peak) * (done - 0.8) / 0.2;
    }
    return peak;
}

void update(Runtime& rt, const ParameterSet& parameters, const OptimizerOptions& options,
            double learning_rate, std::int64_t step, double gradient_scale) {
    std::vector<AdamW> tensors;
    for (Parameter* parameter : parameters.all()) {
        const Span span = parameter->updated;
        if (span.count() == 0) continue;
        AdamW call;
        call.weight = at(parameter->value.data(), span.first, parameter->value.format());
        if (parameter->master) call.master = at(parameter->master.data(), span.first, rt.stat);
        call.m = parameter->m.data();
        call.v = parameter->v.data();
        call.gradient = at(parameter->gradient.data(), span.first, rt.stat);
        call.count = span.count();
        call.step = step;
        call.learning_rate = learning_rate;
        call.beta1 = options.beta1;
        call.beta2 = options.beta2;
        call.epsilon = options.epsilon;
        call.weight_decay = parameter->decays ? options.weight_decay : 0;
        call.gradient_scale = gradient_scale;
        call.format = parameter->value.format();
        tensors.push_back(call);
    }
    rt.run(rt.kernels.adamw_tensors, AdamWTensors{tensors.data(), std::int64_t(tensors.size())},
           "adamw_tensors");
}

}  // namespace moeplan
