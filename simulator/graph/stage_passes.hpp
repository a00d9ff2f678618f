#pragma once
/// The passes that stages repeat for every micro-batch, each made once.

#include <array>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "simulator/passes/layer_passes.hpp"

namespace moeplan {

/// Passes of the layers and ends of one case, made when they are first asked for. References stay
/// valid.
class StagePasses {
  public:
    /// @param splits_backward  gradients of inputs and of weights are passes of their own, too
    StagePasses(const StepCase&, std::vector<Work>& works, bool splits_backward);

    const LayerPass& forward(const LayerSpec& layer) { return of(layer).forward; }
    const LayerPass& backward(const LayerSpec& layer, BackwardPart part) {
        return of(layer).backward[static_cast<std::size_t>(part)];
    }
    const LayerPass& embedding(bool forward) const {
        return forward ? embedding_forward_ : embedding_backward_;
    }
    const LayerPass& head_forward() const { return head_forward_; }
    const LayerPass& head_backward(BackwardPart part) const {
        return head_backward_[static_cast<std::size_t>(part)];
    }
    /// Of a multi-token-prediction module.
    const LayerPass& mtp_projection_forward();
    const LayerPass& mtp_projection_backward(BackwardPart);
    /// Of a lane: what it holds, no two lanes alike. @see LayerPasses::optimizer
    LayerPass optimizer(double owned, double local) const { return make_.optimizer(owned, local); }

    const PassContext& context() const { return make_.context(); }

  private:
    struct OfLayer {
        LayerPass forward;
        std::array<LayerPass, 3> backward;  // [BackwardPart]; parts only where they are split
    };
    const OfLayer& of(const LayerSpec&);

    LayerPasses make_;
    bool splits_backward_;
    LayerPass embedding_forward_, embedding_backward_, head_forward_;
    std::array<LayerPass, 3> head_backward_;  // [BackwardPart]
    std::vector<std::pair<LayerSpec, std::unique_ptr<OfLayer>>> layers_;
    std::optional<LayerPass> mtp_forward_;
    std::array<std::optional<LayerPass>, 3> mtp_backward_;  // [BackwardPart]
};

}  // namespace moeplan
