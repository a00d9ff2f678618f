#pragma once
/// Parameters that the ranks of a stage hold, apart by who holds copies of them.

#include <array>
#include <vector>

#include "simulator/graph/pipeline_shape.hpp"
#include "simulator/graph/step_loads.hpp"

namespace moeplan {

/// Beside the layers 0 …: what the ends of the model hold.
inline constexpr int kEmbedding = -1, kHead = -2;

/// Parameters of a rank: those whose replicas are the data-parallel ranks, and experts, whose
/// replicas are fewer.
struct HeldParameters {
    double dense = 0, expert = 0;
    double copied = 0;  ///< of `expert`: what other ranks of the expert group hold too
    HeldParameters& operator+=(const HeldParameters&);
};

/// Parameters that the ranks of a group hold replicas of: data_context or expert_data.
struct GroupParameters {
    Group group = Group::data_context;
    double count = 0;
};
std::array<GroupParameters, 2> by_group(const HeldParameters&);

class StageParameters {
  public:
    /// @param stage_ranks  ranks of a stage, replicas included
    StageParameters(const StepCase&, const PipelineShape&, const StepLoads&, int stage_ranks);

    /// Of one rank. @param layer  of the model, or kEmbedding, kHead
    HeldParameters of_layer(int layer) const;
    HeldParameters of_lane(int lane) const;
    /// Tensors of a rank as our own trainer keeps them, those below a matrix in one lump for each
    /// layer, as far as there are replicas to exchange with. Their sum is `of_lane`.
    std::vector<GroupParameters> tensors_of_lane(int lane) const;
    /// kEmbedding, layers and kHead that lie on a lane, in the order of the model's forward.
    std::vector<int> layers_of(int lane) const;
    /// Ranks of a data_context or expert_data group.
    int replicas_of(Group) const;

  private:
    HeldParameters of_head() const;
    void add_tensors(int layer, std::vector<GroupParameters>& out) const;

    const StepCase& step_;
    const PipelineShape& pipeline_;
    const StepLoads& loads_;
    int stage_ranks_;
};

}  // namespace moeplan
