#include "planner/scout.hpp"

#include <algorithm>
#include <array>

namespace moeplan {
namespace {

/// The kind of layer that most layers are.
const LayerSpec& common_layer(const ModelSpec& model) {
    const LayerSpec *moe = nullptr, *dense = nullptr;
    for (const LayerSpec& layer : model.layers)
        (std::holds_alternative<MoeFeedForward>(layer.feed_forward) ? moe : dense) = &layer;
    const int num_moe = num_moe_layers(model);
    const bool mostly_moe = 2 * num_moe >= static_cast<int>(model.layers.size());
    return mostly_moe && moe ? *moe : dense ? *dense : *moe;
}

}  // namespace

Seconds scout_step(const StepCase& step, const StepRunner& runner) {
    const int pp = step.layout.pipeline_parallel_size;
    const int stages = pp * step.schedule.virtual_pipeline_size;
    const int all_micro_batches = step.schedule.num_micro_batches;
    const int all_layers = static_cast<int>(step.model.layers.size());

    // Interleaved schedules come in groups of pp micro-batches; the others are linear from the
    // first on.
    const int group = step.schedule.virtual_pipeline_size > 1 ? pp : 1;
    // Where micro-batches differ, more of them make up the slope.
    const auto* synthetic = std::get_if<SyntheticRouting>(&step.routing);
    const int wide = synthetic && synthetic->kind == "balanced" ? 2 : 4;
    const bool fewer_micro_batches = all_micro_batches > wide * group;
    const bool fewer_layers = all_layers > 2 * stages && step.schedule.stage_layers.empty();
    const std::array<int, 2> micro_batches = {fewer_micro_batches ? group : all_micro_batches,
                                              wide * group};
    const std::array<int, 2> layers = {fewer_layers ? stages : all_layers, 2 * stages};
    const long long cost =
        static_cast<long long>(fewer_micro_batches ? (1 + wide) * group : all_micro_batches) *
        (fewer_layers ? 3 * stages : all_layers);
    if (cost >= static_cast<long long>(all_micro_batches) * all_layers)
        return runner(step).step_time;

    StepCase small = step;
    const auto time = [&](int m, int l) {
        small.schedule.num_micro_batches = m;
        if (fewer_layers)
            small.model.layers.assign(static_cast<std::size_t>(l), common_layer(step.model));
        return runner(small).step_time;
    };
    // Along micro-batches at one number of layers.
    const auto at_layers = [&](int l) {
        const Seconds first = time(micro_batches[0], l);
        if (!fewer_micro_batches) return first;
        const Seconds each = (time(micro_batches[1], l) - first) /
                             static_cast<double>(micro_batches[1] - micro_batches[0]);
        return first + each * static_cast<double>(all_micro_batches - micro_batches[0]);
    };
    const Seconds few = at_layers(layers[0]);
    if (!fewer_layers) return few;
    const Seconds each = (at_layers(layers[1]) - few) / static_cast<double>(layers[1] - layers[0]);
    return few + each * static_cast<double>(all_layers - layers[0]);
}

}  // namespace moeplan
