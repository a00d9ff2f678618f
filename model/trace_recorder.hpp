#pragma once
/// From the choices of every rank's MoE layers to one routing trace: rank 0 gathers a step and
/// writes it.

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/communicator.hpp"
#include "model/layers/moe.hpp"
#include "model/text/token_data.hpp"
#include "traces/routing_trace.hpp"

namespace moeplan {

class TraceRecorder {
  public:
    /// @param header  as the trace will say; rank 0 opens the file @throws InputError
    TraceRecorder(const std::filesystem::path& file, const TraceHeader& header,
                  const Communicator& world, const RankPlace& place, bool gates);

    /// One micro-batch, by one of the ranks that see its tokens.
    /// @param choices      [MoE layers of our stage]
    /// @param first_layer  of all MoE layers, our first
    void add(int micro_batch, const TokenBatch& batch, std::vector<MoeChoices> choices,
             int first_layer);
    /// Collective: the step goes to the file.
    void end_step(int step, double loss);
    void finish();

  private:
    const Communicator& world_;
    RankPlace place_;
    bool gates_;
    std::unique_ptr<TraceWriter> writer_;  ///< rank 0
    TraceHeader header_;
    TraceStep mine_;
};

}  // namespace moeplan
