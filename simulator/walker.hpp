#pragma once
/// Ops in order, each as soon as what it waits for is done: kernels by their prices, exchanges by
/// whoever derives from this.
///
/// Jobs that an exchange may run beside have a clock of their own: while the exchange holds SMs and
/// memory bandwidth of the lane they go on at a lower rate, and are timed anew at its begin and end.

#include <cstdint>
#include <vector>

#include "simulator/step_walk.hpp"

namespace moeplan {

class Walker {
  public:
    Walker(const StepGraph&, const JobPrices&, StepNetwork&);
    Walker(const Walker&) = delete;
    Walker& operator=(const Walker&) = delete;
    virtual ~Walker() = default;

  protected:
    /// Its begin is known; `finish` is to be called when its end is.
    virtual void exchange(std::uint32_t op) = 0;
    /// `due` is to be called at this time, then `drain`.
    virtual void call_at(double time, std::uint32_t lane, std::uint32_t version) = 0;

    /// When an exchange has all its ranks.
    double met(std::uint32_t op) const {
        return line_.begin[op] + (prices_.waits.empty() ? 0 : prices_.waits[op]);
    }
    void begin();  ///< all that waits for nothing
    void drain();  ///< until only exchanges are under way
    void finish(std::uint32_t op, double end) {
        line_.end[op] = end;
        line_.device[op] = end - line_.begin[op];
        resolve(op);
    }
    /// @throws std::logic_error if ops are left: the graph has a cycle
    Timeline take();
    /// A timer of a lane; one that was overtaken does nothing.
    void due(double now, std::uint32_t lane, std::uint32_t version);
    /// An exchange that jobs run beside begins, and ends.
    void hold(std::uint32_t op, double now);
    void release(std::uint32_t op, double now);

    const StepGraph& graph_;
    const JobPrices& prices_;
    StepNetwork& network_;
    Timeline line_;

  private:
    /// The device of a lane.
    struct Lane {
        double host = 0;  // when the host has issued all so far
        double sms = 0, memory = 0;  // shares held by exchanges
        int exchanges = 0;           // that hold them
        // the job that has a clock
        std::uint32_t job = 0, version = 0;
        bool running = false;
        double left = 0, since = 0, rate = 1;  // seconds at full rate; when it was so; now
        double device = 0, all = 0;            // of `all` seconds alone the device works so long
    };
    void resolve(std::uint32_t op);
    void work(std::uint32_t op);
    double device_of(const Op&, const JobPrice&) const;
    double begin_job(Lane&, std::uint32_t op, double device);
    void end_job(Lane&, std::uint32_t op);
    double rate_of(const Lane&) const;
    void time_anew(std::uint32_t lane, double now);

    struct {
        std::vector<std::uint32_t> first, to;
    } after_;                                     // ops that wait for an op
    std::vector<std::uint32_t> pending_, queue_;  // how many an op waits for; ready
    std::vector<Lane> lanes_;
    std::size_t resolved_ = 0;
};

/// The closed form: exchanges share links as wholes, by progressive filling (SharedLinks). One that
/// meets no other on its links, and that is most, takes its time alone without any solver.
Timeline walk_by_loads(const StepGraph&, const JobPrices&, StepNetwork&);
/// Any engine's. The closed form's own is the oracle of `walk_by_loads`.
Timeline walk_by_engine(const StepGraph&, const JobPrices&, StepNetwork&, NetworkEngine&);

}  // namespace moeplan
