#pragma once
/// The walk that both fidelities share: ops in order, kernels by their prices, exchanges by
/// whichever engine carries them.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "simulator/job_prices.hpp"
#include "simulator/link_graph.hpp"
#include "simulator/network.hpp"
#include "simulator/network/group_ways.hpp"

namespace moeplan {

/// A stretch of every lane that the whole step repeats more often than the walk did.
struct Repeats {
    int times = 0;                                             ///< beyond the one that was walked
    double period = 0;                                         ///< seconds of one
    int micro_batches = 0;                                     ///< of one
    std::vector<std::pair<std::uint32_t, std::uint32_t>> ops;  ///< [lanes] first, one past the last
};

/// Begin and end of every op, load of every link.
struct Timeline {
    std::vector<double> begin, end;  ///< [ops] seconds; of the slowest rank
    std::vector<double> device;  ///< [ops] time that the device worked; exchanges: end − begin
    double step_time = 0;
    std::vector<Bytes> carried;  ///< [links]
    std::uint64_t events = 0;    ///< exchanges and timers of the engine
    NetworkModel model = NetworkModel::closed_form;
    Repeats repeats;
    /// How often an op stands for itself.
    double times(std::size_t op, int lane) const {
        if (repeats.times == 0) return 1;
        const auto& [first, last] = repeats.ops[static_cast<std::size_t>(lane)];
        return op >= first && op < last ? 1.0 + repeats.times : 1.0;
    }
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
    /// The same without the flows of an all_to_all: what each link carries, which is all that a
    /// closed form asks for.
    const Exchange& loads(std::uint32_t demand);
    double alone(std::uint32_t demand);  ///< seconds, with the links to itself
    /// Of a GPU's memory bandwidth, while an exchange lasts as long as alone: what its busiest rank
    /// sends is read and what it receives is written, once.
    double memory_share(std::uint32_t demand);
    const std::vector<std::string>& folded() const { return folded_; }

  private:
    std::optional<Seconds> measured_all_to_all(const std::vector<double>& bytes) const;
    bool crosses_domains(const std::vector<int>& ranks) const;
    bool one_a_domain(const std::vector<int>& ranks) const;
    bool leaves_by_far_adapter(const std::vector<int>& ranks) const;
    double share_between_domains(const std::vector<int>& ranks) const;
    void in_training();
    /// Bytes of an all_to_all between the ranks of a group, relays of a two-level one counted.
    struct Traffic {
        std::int32_t loads = -1;
        int stage = -1;
        Bytes payload;
        const GroupWays* ways = nullptr;
        std::vector<double> bytes;  // [n, n]
        Seconds latency;
        bool two_level = false;
    };
    Exchange group_exchange(const ExchangeDemand&, const std::vector<int>& ranks, int group) const;
    const Traffic& traffic(const ExchangeDemand&, const std::vector<int>& ranks, int group);
    std::size_t own_groups(const ExchangeDemand&) const;
    std::vector<Exchange> parts_of(
        const ExchangeDemand&,
        const std::function<Exchange(const std::vector<int>& ranks, int group)>& make);
    const StepCase& step_;
    const StepGraph& graph_;
    LinkGraph links_;
    bool pxn_;
    std::vector<std::unique_ptr<Exchange>> made_, loads_;             // [demands]
    std::map<int, Traffic> traffic_;                                  // the last of each group
    std::map<std::pair<int, int>, std::unique_ptr<GroupWays>> ways_;  // stage, group
    std::vector<double> alone_, memory_share_;
    std::vector<std::string> folded_;
    struct Fold {
        Collective kind;
        Group group;
        std::uint16_t stage;
        bool one = false;
        std::vector<std::vector<int>> groups;  // those that were kept
    };
    std::vector<Fold> folds_;
    bool said_ = false;
};

Timeline walk(const StepGraph&, const StepCase&, const JobPrices&, StepNetwork&, NetworkModel);

Timeline walk_closed_form(const StepGraph&, const StepCase&);
Timeline simulate_flows(const StepGraph&, const StepCase&);
Timeline simulate_flows(const StepGraph&, const StepCase&, const JobPrices&, StepNetwork&);
/// Micro-batches to walk in place of all of them, ascending, all of them last: where each does what
/// the others do, pipelines soon fall into a rhythm (docs/step.md).
std::vector<int> micro_batches_to_walk(const StepCase&);
/// The rhythm that the lanes of a walk had fallen into: every op of a whole period, in every lane,
/// is one of a period before moved by the same time. The shortest; none: not yet.
std::optional<Repeats> rhythm(const Timeline&, const StepGraph&, const StepCase& walked,
                              const JobPrices&);
/// The walk of so many periods more; it equals the whole walk to rounding.
void stretch(Timeline&, const StepGraph&, StepNetwork&, Repeats, int times);

StepReport report(const StepCase&, const StepGraph&, const JobPrices&, const Timeline&,
                  StepNetwork&, Fidelity);

}  // namespace moeplan
