#pragma once
/// The passes of one case: forward and backward of every kind of layer, of the model's ends, and
/// the optimizer.

#include <vector>

#include "simulator/passes/layer_pass.hpp"

namespace moeplan {

/// Makes the passes of one case; kernels go to `works`.
class LayerPasses {
  public:
    LayerPasses(const StepCase& step, std::vector<Work>& works) : context_(step), works_(works) {}
    const PassContext& context() const { return context_; }

    LayerPass forward(const LayerSpec&) const;
    LayerPass backward(const LayerSpec&, BackwardPart) const;
    LayerPass embedding(bool forward) const;
    LayerPass head(bool forward, BackwardPart) const;  ///< final norm, logits, cross-entropy
    /// Two norms, a product of [2·hidden] → [hidden].
    LayerPass mtp_projection(bool forward, BackwardPart) const;
    /// @param owned  parameters whose state this rank updates; @param local  parameters whose
    /// gradients it holds
    LayerPass optimizer(double owned, double local) const;

  private:
    PassContext context_;
    std::vector<Work>& works_;
};

}  // namespace moeplan
