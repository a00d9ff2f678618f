#pragma once
/// Ops in order, each as soon as what it waits for is done: kernels by their prices, exchanges by
/// whoever derives from this.

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

    void begin();  ///< all that waits for nothing
    void drain();  ///< until only exchanges are under way
    void finish(std::uint32_t op, double end) {
        line_.end[op] = end;
        line_.device[op] = end - line_.begin[op];
        resolve(op);
    }
    /// @throws std::logic_error if ops are left: the graph has a cycle
    Timeline take();

    const StepGraph& graph_;
    const JobPrices& prices_;
    StepNetwork& network_;
    Timeline line_;

  private:
    void resolve(std::uint32_t op);
    void work(std::uint32_t op);

    struct {
        std::vector<std::uint32_t> first, to;
    } after_;                                     // ops that wait for an op
    std::vector<std::uint32_t> pending_, queue_;  // how many an op waits for; ready
    std::vector<double> host_;                    // [lanes] when the host has issued all so far
    std::size_t resolved_ = 0;
};

/// The closed form: exchanges share links as wholes, by progressive filling (SharedLinks). One that
/// meets no other on its links, and that is most, takes its time alone without any solver.
Timeline walk_by_loads(const StepGraph&, const JobPrices&, StepNetwork&);
/// Any engine's. The closed form's own is the oracle of `walk_by_loads`.
Timeline walk_by_engine(const StepGraph&, const JobPrices&, StepNetwork&, NetworkEngine&);

}  // namespace moeplan
