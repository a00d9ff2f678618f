#pragma once
/// What data parallelism adds to the lanes: gradients reduced, parameters gathered, the optimizer
/// (ZeRO, Rajbhandari et al. 2020).

#include <cstdint>
#include <vector>

#include "simulator/graph/lane_writer.hpp"
#include "simulator/graph/stage_parameters.hpp"
#include "simulator/graph/stage_passes.hpp"
#include "simulator/step_order.hpp"

namespace moeplan {

class DataParallel {
  public:
    DataParallel(const StepCase&, const SoftwareCosts&, const StageParameters&, LaneWriter&);

    /// ZeRO-1/2 with overlap: the parameters that the last step updated arrive while the first
    /// micro-batch runs forward. Before anything else of a lane.
    void start_lane(LaneState&);
    /// The next kernel of the lane waits for a layer's parameters; with ZeRO-3 they are gathered
    /// here. @param layer  of the model, or kEmbedding, kHead
    void wait_for_parameters(LaneState&, int layer, const Slot&);
    /// The gradients of one layer after its last backward (or, ZeRO-2/3, after each):
    /// reduce-scatter where the optimizer is sharded, else all-reduce.
    /// @param last_time  no later pass adds to them
    void synchronise_gradients(LaneState&, int layer, const Slot&, bool last_time);
    /// Gradients that waited for the end, the optimizer, and parameters that nothing hides.
    void finish_lane(LaneState&, const StagePasses&);

    /// First op of a finished lane's optimizer.
    std::uint32_t optimizer_start(int lane) const {
        return optimizer_start_[static_cast<std::size_t>(lane)];
    }
    double gradient_bytes() const;  ///< of an element, as it is reduced

  private:
    bool shards_optimizer() const { return step_.schedule.sharding != Sharding::none; }
    bool shards_parameters() const { return step_.schedule.sharding == Sharding::zero3; }
    bool tensor_by_tensor() const;
    double parameter_bytes() const;
    Collective reduction() const;
    std::uint32_t exchange(LaneState&, Collective, Group, double bytes, Phase, int layer,
                           int micro_batch, const std::vector<std::uint32_t>& before);
    void reduce(LaneState&, const HeldParameters&, int layer, int micro_batch);
    void reduce_waiting(LaneState&);
    std::vector<std::uint32_t> gather(LaneState&, int layer, int micro_batch, Phase,
                                      const std::vector<std::uint32_t>& before);
    void gather_updated(LaneState&);
    std::vector<std::uint32_t>& gathers_of(int layer);

    const StepCase& step_;
    const SoftwareCosts& software_;
    const StageParameters& parameters_;
    LaneWriter& writer_;
    std::vector<std::vector<std::uint32_t>> gathers_;  // [layers + 2] of this lane, not waited for
    std::vector<std::uint32_t> optimizer_start_;       // [lanes]
    HeldParameters waiting_;  // whose gradients are reduced at the end of this lane
};

}  // namespace moeplan
