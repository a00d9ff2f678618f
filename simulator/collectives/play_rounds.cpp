#include <map>
#include <memory>
#include <set>

#include "simulator/collectives/collectives.hpp"

namespace moeplan {
namespace {

/// Each flow an exchange of its own; a rank's flows of round r wait for the arrivals of round r−1
/// at that rank, and for its own flows of round r−1 to be sent (one send at a time, as one channel
/// does).
struct Play {
    NetworkEngine& engine;
    std::vector<std::vector<Exchange>> flows;  // [rounds, flows]
    std::vector<std::map<std::uint32_t, std::vector<std::size_t>>>
        from;  // [rounds] GPU → its flows
    std::vector<std::map<std::uint32_t, int>>
        waits;  // [rounds] GPU → arrivals and sends of the round before

    void release(std::size_t round, std::uint32_t gpu) {
        if (round >= flows.size()) return;
        if (--waits[round][gpu] == 0) send(round, gpu);
    }
    void send(std::size_t round, std::uint32_t gpu) {
        const auto mine = from[round].find(gpu);
        if (mine == from[round].end()) {  // nothing to say here: pass the turn on
            release_next(round, gpu);
            return;
        }
        for (const auto i : mine->second) {
            const Flow flow = flows[round][i].stages.front().flows.front();
            engine.start(flows[round][i], [this, round, flow] {
                release(round + 1, flow.destination);
                release(round + 1, flow.source);
            });
        }
    }
    void release_next(std::size_t round, std::uint32_t gpu) { release(round + 1, gpu); }
};

}  // namespace

Seconds play_rounds(NetworkModel model, const LinkGraph& graph, const std::vector<Round>& rounds) {
    const auto engine = make_engine(model, graph);
    Play play{*engine, {}, {}, {}};
    std::set<std::uint32_t> gpus;
    for (const Round& round : rounds)
        for (const Flow& flow : round.flows) gpus.insert({flow.source, flow.destination});
    for (const Round& round : rounds) {
        play.flows.emplace_back();
        play.from.emplace_back();
        for (const Flow& flow : round.flows) {
            play.from.back()[flow.source].push_back(play.flows.back().size());
            play.flows.back().push_back(
                make_exchange(graph, "flow", {{round.latency, {flow}}}, 1, 1, Folding::none));
        }
    }
    play.waits.resize(rounds.size());
    for (std::size_t r = 1; r < rounds.size(); ++r)
        for (const auto gpu : gpus) {
            int count = 0;
            for (const Flow& flow : rounds[r - 1].flows)
                count += (flow.destination == gpu) + (flow.source == gpu);
            if (!play.from[r - 1].count(gpu))
                ++count;  // its turn of the round before, with nothing to send
            play.waits[r][gpu] = count;
        }
    for (const auto gpu : gpus) engine->after(Seconds{0}, [&play, gpu] { play.send(0, gpu); });
    engine->run();
    return engine->now();
}

}  // namespace moeplan
