#pragma once
/// Which parts of the model lie on which stage, and which way messages go between them.

#include <vector>

#include "model/stage_layers.hpp"
#include "simulator/step.hpp"

namespace moeplan {

/// A pipeline's stages (lanes), their chunks of layers, and virtual stages: how far into the model
/// a chunk lies.
class PipelineShape {
  public:
    explicit PipelineShape(const StepCase&);

    int num_stages() const { return step_.layout.pipeline_parallel_size; }
    int num_chunks() const { return num_chunks_; }  ///< of a stage
    const std::vector<LayerChunk>& chunks_of(int lane) const { return chunks_[lane]; }

    /// This schedule, with more than one stage.
    bool is(Pipeline) const;
    /// Gradients of inputs and of weights are passes of their own.
    bool splits_backward() const;
    /// Micro-batches take turns on every stage (model/stage_layers.hpp), which a CPU cannot.
    bool takes_turns() const;

    int virtual_stage_of(int lane, int chunk) const;
    int last_virtual_stage() const;
    bool holds_embedding(int lane) const { return holds(lane, 0); }
    bool holds_head(int lane) const { return holds(lane, last_virtual_stage()); }
    /// The first and the last layers of the model on one stage.
    bool ends_meet() const;

    /// Whether a chunk's next layers lie on the stage after this one, else on the one before.
    bool leads_down(int chunk) const;
    /// The stage where a V turns round needs no message.
    bool turns_round(int lane) const;

  private:
    bool holds(int lane, int virtual_stage) const;

    const StepCase& step_;
    int num_chunks_ = 1;
    std::vector<std::vector<LayerChunk>> chunks_;  // [stages][chunks]
};

}  // namespace moeplan
