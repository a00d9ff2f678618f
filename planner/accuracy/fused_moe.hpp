#pragma once
/// A fused MoE layer's forward, as inference libraries run it (grouped products in Triton): two
/// grouped products over the local experts, and memory passes over the rows of *all* chosen
/// experts.

#include <cstdint>
#include <string>
#include <vector>

#include "planner/accuracy/kernel_tables.hpp"
#include "profiler/gemm_model.hpp"

namespace moeplan {

/// Tokens of each local expert as the collector of these tables makes them. Balanced: equal. Else
/// draws x = ((h^(1−α) − l^(1−α))·u + l^(1−α))^(1/(1−α)) an expert, l = 1, h = 0.8·tokens, scaled
/// to tokens · top_k in all; the rank with the most is timed.
/// No expert gets more than all tokens; what exceeds them is dropped.
/// @source ai-dynamo/aiconfigurator, collector/helper.py, _generate_power_law_distribution
std::vector<std::uint32_t> fused_moe_loads(const FusedMoePoint&, std::uint64_t seed);

/// Constants of a generation, fitted on the tables of all its GPUs (docs/profiles.md).
/// @param gpu  id of a profile
struct FusedMoeModel {
    GemmModel gemm;
    double pass_efficiency = 1;  ///< of the memory passes
};
FusedMoeModel fused_moe_model(const std::string& gpu, Precision);

/// Mean over draws of the loads.
Seconds fused_moe_time(const FusedMoeModel&, const Roofline&, const FusedMoePoint&);

}  // namespace moeplan
