#pragma once
/// One layer's forward and backward as kernels between exchanges: a template that every micro-batch
/// repeats.

#include <cstdint>
#include <string>
#include <vector>

#include "simulator/software_state.hpp"
#include "simulator/step_graph.hpp"

namespace moeplan {

/// Sizes that the whole step shares.
struct LayerShapes {
    explicit LayerShapes(const StepCase&);
    std::int64_t sequences = 1;  ///< micro_batch_size
    std::int64_t tokens = 0;     ///< of one context-parallel rank, whole width: b·s/cp
    std::int64_t split_tokens =
        0;  ///< outside tensor-parallel regions: tokens/tp with sequence parallelism
    std::int64_t routed_tokens = 0;  ///< that one rank routes: tokens/tp
    Bytes element;                   ///< of an activation
};

/// A CPU profile: kernels of our own trainer, one after another on the thread that also
/// communicates. Nothing overlaps.
bool runs_on_cpu(const StepCase&);
bool is_own_trainer(const StepCase&);  ///< `moeplan train`
/// What the schedule asks for, or nothing on a CPU.
Overlap effective_overlap(const StepCase&);

/// One item of a pass: kernels, or an exchange. `after` names items of the same pass; −1 is what
/// came before the pass.
struct PassItem {
    bool exchange = false;
    std::uint32_t work = 0;  ///< index of StepGraph::works
    ExchangeDemand demand;   ///< stage and loads are filled in per micro-batch
    Stream stream = Stream::compute;
    Part part = Part::compute;
    Phase phase = Phase::forward;
    bool routed = false;  ///< depends on where the tokens went
    int under = -1;       ///< item whose exchange runs beside this work
    std::vector<int> after;
};
struct LayerPass {
    std::vector<PassItem> items;
};

enum class BackwardPart : std::uint8_t { both, input, weight };

/// Makes the passes of one case; kernels go to `works`.
class LayerPasses {
  public:
    LayerPasses(const StepCase& step, std::vector<Work>& works)
        : step_(step), software_(software_costs(step)), shapes_(step), works_(works) {}
    const SoftwareCosts& software() const { return software_; }

    LayerPass forward(const LayerSpec&);
    LayerPass backward(const LayerSpec&, BackwardPart);
    LayerPass embedding(bool forward);
    LayerPass head(bool forward, BackwardPart);  ///< final norm, logits, cross-entropy
    LayerPass mtp_projection(bool forward,
                             BackwardPart);  ///< two norms, a product of [2·hidden] → [hidden]
    /// @param owned  parameters whose state this rank updates; @param local  parameters whose
    /// gradients it holds
    LayerPass optimizer(double owned, double local);

  private:
    class Pass;
    void attention_forward(Pass&, const LayerSpec&, Phase);
    void attention_backward(Pass&, const LayerSpec&, BackwardPart);
    void attention_core(Pass&, const AttentionShape&, double share, bool forward);
    void row_product(Pass&, std::int64_t tokens, std::int64_t k, const char* name);
    void column_gradients(Pass&, std::int64_t tokens,
                          const std::vector<std::pair<std::int64_t, std::int64_t>>& shapes,
                          BackwardPart, const char* name);
    void dense_forward(Pass&, const DenseFeedForward&, Phase);
    void dense_backward(Pass&, const DenseFeedForward&, BackwardPart);
    void moe_forward(Pass&, const MoeFeedForward&, Phase);
    void moe_backward(Pass&, const MoeFeedForward&, BackwardPart);
    /// How rows reach their experts in this step.
    struct ExpertWay {
        bool behind_shared = false, behind_micro_batch = false;  ///< what hides the exchange
        bool permutes_first = true;  ///< else rows are ordered by expert where they arrive
        bool sorts = false;
        double router_forward = 1, router_backward = 1, activation = 1;  ///< factors of bytes
    };
    ExpertWay expert_way(const MoeFeedForward&) const;
    bool maps_rows() const;  ///< the maps from tokens to rows are priced
    void expert_exchange(Pass&, const ExpertWay&, Bytes row, Part, bool to_experts);
    void gather_parameters(Pass&, bool forward);
    void keep_random_states(Pass&, const LayerSpec&, bool forward);
    void shared_forward(Pass&, const MoeFeedForward&);
    void shared_backward(Pass&, const MoeFeedForward&, BackwardPart);

    const StepCase& step_;
    SoftwareCosts software_;
    LayerShapes shapes_;
    std::vector<Work>& works_;
};

}  // namespace moeplan
