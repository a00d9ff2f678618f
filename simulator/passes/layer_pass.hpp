#pragma once
/// A pass over one layer: kernels between exchanges, as a template that every micro-batch repeats.

#include <cstdint>
#include <vector>

#include "simulator/layer_shapes.hpp"
#include "simulator/software_state.hpp"
#include "simulator/step_graph.hpp"

namespace moeplan {

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

/// What a backward pass computes: gradients of its input, of its weights, or both.
enum class BackwardPart : std::uint8_t { both, input, weight };

/// Of a module's backward launches.
constexpr double share_of(BackwardPart which) { return which == BackwardPart::both ? 1 : 0.5; }

/// What every pass of one case is made from.
struct PassContext {
    explicit PassContext(const StepCase& of) : step(of), software(software_costs(of)), shapes(of) {}
    const StepCase& step;
    SoftwareCosts software;
    LayerShapes shapes;
};

}  // namespace moeplan
