#pragma once
/// What crosses the links, and the engines that share them: one program of timers and exchanges
/// runs unchanged over the closed form, over our own fluid solver and over SimGrid.
///
/// The closed form fills link shares per *exchange* (a collective advances as one), the two flow
/// engines per *flow*. That fairness entity is the only difference between them; where nothing
/// contends they agree (docs/collectives.md).

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/enum_names.hpp"
#include "core/units.hpp"
#include "simulator/link_graph.hpp"

namespace moeplan {

/// A message from one GPU to another, or several that share both ends.
struct Flow {
    std::uint32_t source = 0, destination = 0;
    Bytes bytes;
};
struct LinkLoad {
    std::uint32_t link = 0;
    Bytes bytes;
};

/// A part of an exchange: after `latency` all its flows start together; it is over when the last of
/// them is.
struct ExchangeStage {
    Seconds
        latency;  ///< of its messages, serial steps folded in; for the first stage also the launch
    std::vector<Flow> flows;      ///< source ≠ destination, bytes > 0
    std::vector<LinkLoad> loads;  ///< the same per link, by ascending link
    Seconds transfer;             ///< alone: max over links(load / bandwidth) / efficiency
};

/// One collective on one group of GPUs, ready for any engine: stages, one after the other.
struct Exchange {
    std::string what;  ///< "all_to_all (two_level) over 64 ranks"
    std::vector<ExchangeStage> stages;
    double efficiency =
        1;              ///< share of the usable bandwidth that this collective reaches at this size
    double weight = 1;  ///< against others on a shared link (queue pairs × channels)
};

/// latency + transfer, stage by stage: exact in every engine when nothing else is on the links and
/// the bottleneck link stays busy.
Seconds time_alone(const Exchange& exchange);

/// Bytes on every link that is touched, by ascending link.
std::vector<LinkLoad> link_loads(const LinkGraph& graph, std::span<const Flow> flows);

/// The same load on every link with fewer flows: flows through a PXN relay become two, flows with
/// equal ends one. 64 GPUs all to all: 4,032 flows → 960. Latency is stated by the exchange, so
/// folding cannot change it.
std::vector<Flow> folded(const LinkGraph& graph, std::span<const Flow> flows);

enum class Folding : std::uint8_t {
    rails,
    none
};  ///< none: one flow a message, the oracle of the other
/// Adds loads and transfer time to (latency, flows) pairs. Zero-byte flows and flows to oneself are
/// left out.
struct StageFlows {
    Seconds latency;
    std::vector<Flow> flows;
};
Exchange make_exchange(const LinkGraph& graph, std::string what, std::vector<StageFlows> stages,
                       double efficiency = 1, double weight = 1, Folding folding = Folding::rails);

/// The same exchange, taking `measured` when alone: latency keeps its part, at most half; the rest is the efficiency.
Exchange calibrated(Exchange exchange, Seconds measured);

/// A clock, timers and shared links. Single-threaded; every callback runs inside run(), at its
/// time, and may start more.
class NetworkEngine {
  public:
    using Then = std::function<void()>;
    using Timer = std::uint64_t;
    struct Counts {
        std::uint64_t flows_started = 0, flows_finished = 0, exchanges_started = 0,
                      exchanges_finished = 0, timers_fired = 0;
    };

    virtual ~NetworkEngine() = default;
    virtual Seconds now() const = 0;
    virtual Timer after(Seconds delay, Then then) = 0;  ///< delay ≥ 0
    virtual void cancel(Timer timer) = 0;  ///< of one that has not fired; others are ignored
    /// Plays the stages, then calls `then`. `exchange` must live until that.
    virtual void start(const Exchange& exchange, Then then) = 0;
    /// Until nothing is left to happen. @throws std::logic_error if a flow that was started did not
    /// finish
    virtual void run() = 0;
    virtual const std::vector<Bytes>& carried()
        const = 0;  ///< [links] of exchanges that were started
    virtual Counts counts() const = 0;
};

enum class NetworkModel : std::uint8_t { closed_form, fluid, simgrid };
/// The graph must outlive the engine. SimGrid has one engine a process: a second one for another
/// graph throws std::logic_error (re-execute the binary for it); for the same graph it goes on
/// where the first ended, with its own clock at 0.
std::unique_ptr<NetworkEngine> make_engine(NetworkModel model, const LinkGraph& graph);

/// Time of one exchange with the links to itself.
Seconds play_alone(NetworkModel model, const LinkGraph& graph, const Exchange& exchange);

template <>
const EnumNames<NetworkModel>& enum_names<NetworkModel>();

}  // namespace moeplan
