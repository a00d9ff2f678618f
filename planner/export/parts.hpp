#pragma once
/// What the exports share.

#include <string>

#include "planner/export.hpp"

namespace moeplan {

inline int global_batch(const StepCase& step) {
    return step.schedule.micro_batch_size * step.schedule.num_micro_batches *
           step.layout.data_parallel_size;
}

/// Why no public framework trains this model's layers; empty if it does.
inline std::string foreign_layers(const ModelSpec& model, const std::string& system) {
    const MoeFeedForward* moe = first_moe(model);
    if (moe && moe->num_moe_heads > 1)
        return system + " has no MH-MoE layer: num_moe_heads is " +
               std::to_string(moe->num_moe_heads);
    if (moe && moe->pool) return system + " has no document-pool router (EMO)";
    return {};
}

/// The first line of every file: where it came from.
inline std::string origin(const StepCase& step, const std::string& comment) {
    return comment + " " + step.model.name + " on " + step.cluster.name + " (" +
           std::to_string(num_gpus(step.cluster)) + " GPUs), planned by moeplan\n";
}

}  // namespace moeplan
