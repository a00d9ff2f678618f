#pragma once
/// Writes the ops of lanes: passes one after another, or two programs in turns, each op with what
/// it waits for.

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "simulator/graph/step_loads.hpp"
#include "simulator/passes/layer_pass.hpp"

namespace moeplan {

/// In place of the number of an op: there is none.
inline constexpr std::uint32_t kNoOp = 0xFFFFFFFF;

/// How far a lane is written, and what its next ops wait for.
struct LaneState {
    explicit LaneState(int of) : lane(of) { tail.fill(kNoOp); }
    int lane = 0;
    std::uint32_t last = kNoOp;                   // of the compute stream
    std::array<std::uint32_t, kNumStreams> tail;  // of each stream
    std::vector<std::uint32_t> wait;              // the next compute op waits for these too
    std::vector<std::uint32_t> gradients;         // exchanges before the optimizer
    std::vector<std::uint32_t> pass_ends;         // for prefetch distances
    std::int32_t under = -1;                      // exchange that runs beneath the next pass
    std::vector<std::uint32_t> open;  // exchanges that take SMs and no job has waited for yet
    const std::uint32_t* message = nullptr;  // the next compute op waits for what is sent here
};

/// What a slot of the schedule does, step by step: passes of layers, and what lies between them.
struct ProgramStep {
    const LayerPass* pass = nullptr;
    int layer = 0, moe_layer = -1;
    std::function<void(LaneState&)> other;  ///< where there is no pass
};
struct Program {
    int micro_batch = 0;
    /// Where the op stands that sends what the first kernel needs, once the sender's lane is
    /// written; null: it needs nothing.
    const std::uint32_t* message = nullptr;
    std::vector<ProgramStep> steps;
};

class LaneWriter {
  public:
    /// Adds to the graph's ops, edges, jobs and exchanges. Its `exact_overlap` and shares of SMs
    /// must be known.
    LaneWriter(StepGraph& graph, const StepLoads& loads) : graph_(graph), loads_(loads) {}

    /// Passes one after another.
    void run(LaneState&, const Program&);
    /// Two programs in turns: one goes on until its tokens travel, then the other does.
    void take_turns(LaneState&, const Program& one, const Program& other);
    /// One pass. @param layer, moe_layer, micro_batch  what its ops are of
    void write(LaneState&, const LayerPass&, int layer, int moe_layer, int micro_batch);
    /// An exchange of the lane that waits for `before`. @return its op
    std::uint32_t exchange(LaneState&, ExchangeDemand, Stream, Part, Phase, int layer,
                           int micro_batch, const std::vector<std::uint32_t>& before);
    /// The first op of a slot waits for what was sent, whenever the sender's ops are written.
    void receive(LaneState&, std::uint32_t op);
    /// The next chunk lies on the same stage: what ends here is its message.
    void hand_over(LaneState&, std::uint32_t& sent);

    /// An exchange of this lane and another, both already written: it waits for all that these ops
    /// of the two wait for, and both wait for it.
    void meet_before(int lane, std::uint32_t one, std::uint32_t other, ExchangeDemand, Part);
    /// Edges from what was sent to what waits for it, once all lanes are written.
    void connect_messages();

    const StepGraph& graph() const { return graph_; }

  private:
    /// A pass at work on a lane: its items one after another, each with its own waits.
    struct Running {
        const LayerPass* pass = nullptr;
        int layer = 0, moe_layer = -1, micro_batch = 0;
        std::uint32_t entry = kNoOp;     // what came before the pass
        std::vector<std::uint32_t> ids;  // of the items so far
        bool done() const { return ids.size() == pass->items.size(); }
    };
    /// A program at work beside another.
    struct Track;

    static Running begin(const LaneState&, const LayerPass&, int layer, int moe_layer,
                         int micro_batch);
    void add_item(LaneState&, Running&);
    static void end(LaneState&, const Running&);
    void go_on(LaneState&, Track&);

    std::uint32_t job(std::uint32_t work, std::int32_t loads);
    std::uint32_t exchange_id(const ExchangeDemand&);
    std::uint32_t add_op(LaneState&, Op, const std::vector<std::uint32_t>& before);
    void mark_company(LaneState&, std::uint32_t id, const std::vector<std::uint32_t>& before);

    StepGraph& graph_;
    const StepLoads& loads_;
    std::map<std::pair<std::uint32_t, std::int32_t>, std::uint32_t> job_ids_;  // work, loads
    std::map<std::tuple<int, int, int, double, std::int32_t, bool>, std::uint32_t> exchange_ids_;
    std::vector<std::pair<std::uint32_t, const std::uint32_t*>> receives_;  // receiver, sender
};

}  // namespace moeplan
