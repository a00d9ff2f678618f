#pragma once
/// What a stage does in a slot of the schedule: the passes of a chunk's layers, waits for
/// parameters, gradients, and messages to the stages beside it.

#include <cstdint>
#include <vector>

#include "simulator/graph/data_parallel.hpp"
#include "simulator/graph/lane_writer.hpp"
#include "simulator/graph/pipeline_shape.hpp"
#include "simulator/graph/stage_passes.hpp"
#include "simulator/step_order.hpp"

namespace moeplan {

/// Makes the programs of all stages and keeps the messages between them.
class StagePrograms {
  public:
    StagePrograms(const StepCase&, const PipelineShape&, const StepLoads&, StagePasses&,
                  DataParallel&, LaneWriter&);

    /// The slot's program; it may run once, on its lane's state.
    /// @param weights_left  [chunks] passes that still add to the chunk's gradients; counted down
    Program of(int lane, const Slot&, std::vector<int>& weights_left);

  private:
    /// A slot's chunk in the model.
    struct Place {
        const LayerChunk& chunk;
        int virtual_stage;
        bool first, last;  ///< of the model's virtual stages
        bool leads_down;
    };
    Place place_of(int lane, const Slot&) const;
    Program forward(int lane, const Slot&);
    Program backward(int lane, const Slot&, std::vector<int>& weights_left);
    void add_mtp_forward(Program&);
    void add_mtp_backward(Program&, BackwardPart);
    void add_message(Program&, int lane, const Slot&, bool to_next);
    void add_hand_over(Program&, std::uint32_t& sent);
    void add_parameters(Program&, int layer, const Slot&);
    void send(LaneState&, Group, Phase, const Slot&, std::uint32_t& sent);
    std::uint32_t& sent(std::vector<std::uint32_t>& by, int virtual_stage, const Slot&);
    int last_layer() const { return static_cast<int>(step_.model.layers.size()) - 1; }

    const StepCase& step_;
    const PipelineShape& pipeline_;
    const StepLoads& loads_;
    StagePasses& passes_;
    DataParallel& data_parallel_;
    LaneWriter& writer_;
    std::vector<std::uint32_t> forward_sends_, backward_sends_;  // [virtual stage, micro-batch]
};

}  // namespace moeplan
