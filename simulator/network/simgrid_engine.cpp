/// SimGrid as the engine of flows. This is the only file that knows it.
///
/// Stated, not left to defaults (which describe TCP over a WAN): model CM02, no cross-traffic, no
/// TCP window, link latencies zero (a latency would also be the sharing weight) with α in a timer
/// before the flow. An uncontended flow is then exactly α + size / bandwidth. No actors, no static
/// graph of activities: a flow is created from a timer in maestro context when its turn comes
/// (docs/collectives.md has the pitfalls that decide this).

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <simgrid/kernel/Timer.hpp>
#include <simgrid/kernel/routing/NetPoint.hpp>
#include <simgrid/kernel/routing/NetZoneImpl.hpp>
#include <simgrid/s4u.hpp>
#include <stdexcept>

#include "simulator/network/engine.hpp"

namespace moeplan {
namespace {

namespace sg = simgrid::s4u;
namespace routing = simgrid::kernel::routing;

/// A zone whose routes are those of a link graph: a function, no table. Hosts are made first, so
/// their ids are GPU numbers.
class GraphZone : public routing::NetZoneImpl {
  public:
    GraphZone(const std::string& name, const LinkGraph& graph)
        : NetZoneImpl(name), append_route_(graph.append_route) {}
    std::vector<simgrid::kernel::resource::StandardLinkImpl*> links;

  private:
    void get_local_route(const routing::NetPoint* source, const routing::NetPoint* destination,
                         routing::Route* route, double* latency) override {
        route_.clear();
        append_route_(static_cast<int>(source->id()), static_cast<int>(destination->id()), route_);
        for (const auto link : route_) route->link_list_.push_back(links[link]);
        if (latency) *latency += 0;
    }
    void get_graph(const s_xbt_graph_t*, std::map<std::string, xbt_node_t, std::less<>>*,
                   std::map<std::string, xbt_edge_t, std::less<>>*) override {}

    std::function<Seconds(int, int, std::vector<std::uint32_t>&)> append_route_;
    std::vector<std::uint32_t> route_;
};

class SimGridEngine;

/// A payload is a whole number of bytes in SimGrid. Parts of a collective are not: count in units
/// of 2⁻²⁰ bytes, so that a flow of a kilobyte is still exact to 5e-10, and one of 17 TB still fits
/// 64 bits.
constexpr double kUnits = 1 << 20;

/// SimGrid's one engine of this process, and the graph that its platform was made of.
struct Platform {
    std::unique_ptr<sg::Engine> engine;
    std::vector<Link> links;
    std::vector<sg::Host*> gpus;
    SimGridEngine* user = nullptr;
};
Platform& platform() {
    static Platform* const one =
        new Platform;  // never destroyed: SimGrid tears itself down at exit
    return *one;
}

class SimGridEngine final : public StagedEngine {
  public:
    explicit SimGridEngine(const LinkGraph& graph) : StagedEngine(graph) {
        Platform& at = platform();
        if (!at.engine)
            make_platform(at, graph);
        else if (at.links != graph.links ||
                 at.gpus.size() != static_cast<std::size_t>(graph.num_gpus))
            throw std::logic_error(
                "SimGrid has one engine a process, and it already holds another platform: run this "
                "one in a process of its own");
        if (at.user) throw std::logic_error("SimGrid's engine of this process is in use");
        at.user = this;
        start_ = sg::Engine::get_clock();
    }
    ~SimGridEngine() override { platform().user = nullptr; }

    Seconds now() const override { return Seconds{sg::Engine::get_clock() - start_}; }

    Timer after(Seconds delay, Then then) override {
        const Timer id = next_timer_++;
        auto* timer = simgrid::kernel::timer::Timer::set(sg::Engine::get_clock() + delay.value,
                                                         [this, id, then = std::move(then)] {
                                                             timers_.erase(id);
                                                             finished_.clear();
                                                             ++counts_.timers_fired;
                                                             then();
                                                         });
        timers_.emplace(id, timer);
        return id;
    }
    void cancel(Timer id) override {
        if (const auto at = timers_.find(id); at != timers_.end()) {
            at->second->remove();
            timers_.erase(at);
        }
    }
    void run() override {
        platform().engine->run();
        finished_.clear();
        check_complete();
    }

    void completed(std::size_t slot) {
        // SimGrid still holds a raw pointer while it tells us: release the activity at the next
        // timer.
        Live live = std::move(live_[slot]);
        free_.push_back(slot);
        finished_.push_back(std::move(live.comm));
        if (--*live.parts == 0) flow_finished(live.exchange);
    }

  private:
    struct Live {
        sg::CommPtr comm;
        std::uint64_t exchange = 0;
        std::shared_ptr<int> parts;
    };

    static void make_platform(Platform& at, const LinkGraph& graph) {
        // SimGrid reads its own flags from argv: it gets ours, never the user's.
        std::array<std::string, 2> words = {"moeplan", "--log=root.thres:warning"};
        std::array<char*, 3> argv = {words[0].data(), words[1].data(), nullptr};
        int argc = 2;
        at.engine = std::make_unique<sg::Engine>(&argc, argv.data());
        for (const char* flag : {"network/model:CM02", "network/crosstraffic:0",
                                 "network/TCP-gamma:1e30", "surf/precision:1e-12"})
            sg::Engine::set_config(flag);
        auto* zone =
            new GraphZone("cluster", graph);  // the first zone made is the root; SimGrid owns it
        for (int gpu = 0; gpu < graph.num_gpus; ++gpu)
            at.gpus.push_back(
                zone->get_iface()->create_host(fmt::format("gpu{}", gpu), 1.0)->seal());
        for (std::size_t i = 0; i < graph.links.size(); ++i)
            zone->links.push_back(
                zone->get_iface()
                    ->create_link(fmt::format("link{}", i), graph.links[i].bandwidth.value * kUnits)
                    ->set_latency(0.0)
                    ->seal()
                    ->get_impl());
        zone->get_iface()->seal();
        at.links = graph.links;
        sg::Activity::on_completion_cb([](const sg::Activity& activity) {
            if (auto* user = platform().user)
                if (const auto* comm = dynamic_cast<const sg::Comm*>(&activity))
                    user->completed(reinterpret_cast<std::uintptr_t>(comm->get_data<void>()) - 1);
        });
    }

    void post(std::uint64_t id, const Exchange& exchange, const ExchangeStage& stage) override {
        // SimGrid has no weights for flows: a weight of k is k equal flows (docs/collectives.md).
        const int parts = std::max(1, static_cast<int>(std::lround(exchange.weight)));
        // All are made before the first begins: at every completion SimGrid 3.32 goes through a
        // list of all that live, which is half of its time (docs/simgrid.md, §1), and twice as slow
        // where what it keeps of a flow under way lies in between.
        std::vector<sg::CommPtr> made;
        made.reserve(stage.flows.size() * static_cast<std::size_t>(parts));
        for (const Flow& flow : stage.flows)
            for (int part = 0; part < parts; ++part)
                made.push_back(sg::Comm::sendto_init(platform().gpus[flow.source],
                                                     platform().gpus[flow.destination]));
        auto next = made.begin();
        for (const Flow& flow : stage.flows) {
            const auto left = std::make_shared<int>(parts);
            for (int part = 0; part < parts; ++part) {
                const std::size_t slot = free_.empty() ? live_.size() : free_.back();
                if (free_.empty())
                    live_.emplace_back();
                else
                    free_.pop_back();
                const sg::CommPtr& comm = *next++;
                // At least one unit: SimGrid never starts an empty flow.
                comm->set_payload_size(static_cast<std::uint64_t>(std::max(
                    1.0, std::round(flow.bytes.value / exchange.efficiency / parts * kUnits))));
                comm->set_data(reinterpret_cast<void*>(slot + 1));
                live_[slot] = {comm, id, left};
                comm->vetoable_start();
            }
        }
    }

    double start_ = 0;
    Timer next_timer_ = 0;
    std::unordered_map<Timer, simgrid::kernel::timer::Timer*> timers_;
    std::vector<Live> live_;
    std::vector<std::size_t> free_;
    std::vector<sg::CommPtr> finished_;
};

}  // namespace

std::unique_ptr<NetworkEngine> make_simgrid_engine(const LinkGraph& graph) {
    return std::make_unique<SimGridEngine>(graph);
}

}  // namespace moeplan
