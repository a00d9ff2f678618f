#pragma once
/// What the engines share: the play of an exchange's stages, and the timers of those without a
/// clock of their own.

#include <cstdint>
#include <map>
#include <memory>
#include <queue>
#include <unordered_map>
#include <vector>

#include "simulator/network.hpp"
#include "simulator/network/flow_shares.hpp"
#include "simulator/network/shared_links.hpp"

namespace moeplan {

/// Stages one after the other: a latency, then the flows, then the next stage. Derived engines move
/// the bytes.
class StagedEngine : public NetworkEngine {
  public:
    explicit StagedEngine(const LinkGraph& graph) : graph_(graph), carried_(graph.links.size()) {}

    void start(const Exchange& exchange, Then then) override;
    const std::vector<Bytes>& carried() const override { return carried_; }
    Counts counts() const override { return counts_; }

  protected:
    struct Playing {
        const Exchange* exchange = nullptr;
        std::size_t stage = 0;
        std::uint64_t pending = 0;  // flows of the stage that are not through
        Then then;
    };
    virtual void post(std::uint64_t id, const Exchange& exchange,
                      const ExchangeStage& stage) = 0;  ///< sets pending by add_pending
    void begin_stage(std::uint64_t id);
    void end_stage(std::uint64_t id);
    void flow_finished(std::uint64_t id);
    void check_complete() const;  ///< @throws std::logic_error

    const LinkGraph& graph_;
    std::unordered_map<std::uint64_t, Playing> playing_;
    std::uint64_t next_exchange_ = 0;
    std::vector<Bytes> carried_;
    Counts counts_;
};

/// Timers and shares of links in one loop. Derived engines say whose shares: a collective's as a
/// whole (the closed form), or each flow's (the fluid model).
class FillEngine : public StagedEngine {
  public:
    explicit FillEngine(const LinkGraph& graph) : StagedEngine(graph) {}

    Seconds now() const override { return {now_}; }
    Timer after(Seconds delay, Then then) override;
    void cancel(Timer timer) override { timers_.erase(timer); }
    void run() override;

  protected:
    virtual void settle(double now) = 0;
    virtual double next_finish() = 0;
    virtual void finish(double time) = 0;  ///< ends what finishes at `time`

    std::vector<std::uint64_t> owners_;  // scratch

  private:
    struct Due {
        double time;
        Timer timer;
        bool operator>(const Due& other) const {
            return time != other.time ? time > other.time : timer > other.timer;
        }
    };
    double now_ = 0;
    Timer next_timer_ = 0;
    std::unordered_map<Timer, Then> timers_;
    std::priority_queue<Due, std::vector<Due>, std::greater<>> due_;
};

class CollectiveEngine final : public FillEngine {
  public:
    explicit CollectiveEngine(const LinkGraph& graph)
        : FillEngine(graph), links_(graph.links.size()) {}

  private:
    void post(std::uint64_t id, const Exchange& exchange, const ExchangeStage& stage) override;
    void settle(double now) override { links_.settle(now); }
    double next_finish() override { return links_.next_finish(); }
    void finish(double time) override;

    SharedLinks links_;
    std::vector<SharedLinks::Use> uses_;
};

class FluidEngine final : public FillEngine {
  public:
    explicit FluidEngine(const LinkGraph& graph);

  private:
    void post(std::uint64_t id, const Exchange& exchange, const ExchangeStage& stage) override;
    void settle(double now) override { flows_.settle(now); }
    double next_finish() override { return flows_.next_finish(); }
    void finish(double time) override;

    FlowShares flows_;
    std::vector<std::uint32_t> route_;
};

std::unique_ptr<NetworkEngine> make_simgrid_engine(const LinkGraph& graph);

}  // namespace moeplan
