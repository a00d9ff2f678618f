#pragma once
/// A case made small enough for the machine at hand, so that a plan for another cluster can be
/// checked in part.

#include <string>
#include <vector>

#include "simulator/step.hpp"

namespace moeplan {

/// The machine that will run the shrunk case, and how much it should be asked to do.
struct Here {
    ClusterSpec cluster;
    std::shared_ptr<const Profile> profile;
    int num_ranks = 1;
    int largest_hidden_size = 128, most_layers = 4, largest_vocabulary = 2048;
    int longest_sequence = 256, most_experts = 64, most_micro_batches = 2;
    Precision precision = Precision::fp32;
};

struct Shrunk {
    StepCase step;
    std::vector<std::string> changes;    ///< what was made smaller, from → to
    std::vector<std::string> checked;    ///< which parts of the plan a run of this checks
    std::vector<std::string> unchecked;  ///< and which it cannot
};

/// Keeps MoE heads, top-k, activation, pools, router, the share of experts a rank holds, whether
/// experts and data are parallel and whether the optimizer is shared; narrows and shortens the rest in proportion.
Shrunk shrink(const StepCase& planned, const Here& here);

}  // namespace moeplan
