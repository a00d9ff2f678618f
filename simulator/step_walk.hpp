#pragma once
/// The walk that both fidelities share: ops in order, kernels by their prices, exchanges by
/// whichever engine carries them.

#include <cstdint>
#include <functional>
#include <vector>

#include "simulator/link_graph.hpp"
#include "simulator/network.hpp"
#include "simulator/step_graph.hpp"

namespace moeplan {

/// Begin and end of every op, load of every link.
struct Timeline {
    std::vector<double> begin, end;  ///< [ops] seconds; of the slowest rank
    std::vector<double> device;  ///< [ops] time that the device worked; exchanges: end − begin
    double step_time = 0;
    std::vector<Bytes> carried;  ///< [links]
    std::uint64_t events = 0;    ///< exchanges and timers of the engine
    NetworkModel model = NetworkModel::closed_form;
};

/// Exchanges of a step, as flows; each demand is made once, when it is first needed.
class StepNetwork {
  public:
    /// @throws InputError for a link fault that names no link
    StepNetwork(const StepCase&, const StepGraph&);
    StepNetwork(const StepNetwork&) = delete;
    StepNetwork& operator=(const StepNetwork&) = delete;
    const LinkGraph& links() const { return links_; }
    const Exchange& exchange(std::uint32_t demand);
    double alone(std::uint32_t demand);  ///< seconds, with the links to itself
    const std::vector<std::string>& folded() const { return folded_; }

  private:
    Exchange group_exchange(const ExchangeDemand&, const std::vector<int>& ranks, int group) const;
    const StepCase& step_;
    const StepGraph& graph_;
    LinkGraph links_;
    std::vector<std::unique_ptr<Exchange>> made_;  // [demands]
    std::vector<double> alone_;
    std::vector<std::string> folded_;
    struct Fold {
        Collective kind;
        Group group;
        std::uint16_t stage;
        bool one = false;
    };
    std::vector<Fold> folds_;
    bool said_ = false;
};

Timeline walk(const StepGraph&, const StepCase&, const JobPrices&, StepNetwork&, NetworkModel);

Timeline walk_closed_form(const StepGraph&, const StepCase&);
Timeline simulate_flows(const StepGraph&, const StepCase&);
Timeline simulate_flows(const StepGraph&, const StepCase&, const JobPrices&, StepNetwork&);
StepReport report(const StepCase&, const StepGraph&, const JobPrices&, const Timeline&,
                  StepNetwork&, Fidelity);

}  // namespace moeplan
