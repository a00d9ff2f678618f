#pragma once
/// Random clusters on which several collectives run at once, of unequal parts where a collective has
/// them: what the closed form and the flows are compared on, a few by a test and a thousand by
/// `benchmark_agreement`.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "core/seed.hpp"
#include "simulator/collective.hpp"
#include "simulator/network.hpp"
#include "tests/simulator/network/small_clusters.hpp"

namespace moeplan {

struct ConcurrentCase {
    ClusterSpec cluster;
    std::string what;
    std::vector<Exchange> exchanges;
    std::vector<Seconds> starts;
    double skew = 0;  ///< of all-to-alls: standard deviation of log(bytes), by receiver and by pair
};

/// Unequal parts: hot receivers, and pairs that differ by themselves.
inline TrafficMatrix unequal_traffic(int n, Bytes each, double sigma, DrawStream& draws) {
    TrafficMatrix out(n);
    std::vector<double> hot;
    for (int d = 0; d < n; ++d) hot.push_back(std::exp(sigma * draws.normal()));
    for (int s = 0; s < n; ++s)
        for (int d = 0; d < n; ++d)
            out.at(s, d) = Bytes{
                std::floor(each.value / n * hot[d] * std::exp(sigma * draws.normal())) + 1};
    return out;
}

inline ConcurrentCase concurrent_case(std::uint64_t number) {
    DrawStream draws{derive(Seed{20}, "concurrent", number)};
    const auto one_of = [&](std::initializer_list<int> values) {
        return values.begin()[draws.below(values.size())];
    };
    ConcurrentCase out;
    const int nodes = one_of({1, 2, 4, 8}), gpus = one_of({4, 8});
    out.cluster = plain_cluster(nodes, gpus, Seconds{2e-6});
    auto& rails = std::get<RailFatTree>(std::get<Fabric>(out.cluster.topology).scale_out);
    rails.num_nics = gpus / one_of({1, 1, 2});
    rails.oversubscription = one_of({1, 1, 2, 4});
    rails.nodes_per_leaf = nodes > 2 && one_of({0, 1}) ? nodes / 2 : 0;
    rails.pxn = one_of({1, 1, 0}) != 0;
    const LinkGraph graph = build_link_graph(out.cluster);
    out.what = fmt::format("{} x {} GPUs, {} NICs, {}:1{}{}", nodes, gpus, rails.num_nics,
                           rails.oversubscription, rails.nodes_per_leaf > 0 ? ", two leaves" : "",
                           rails.pxn ? "" : ", no PXN");
    out.skew = draws.uniform();
    const int count = 2 + static_cast<int>(draws.below(3));
    for (int i = 0; i < count; ++i) {
        CollectiveCall call;
        const Bytes size{std::exp(draws.uniform() * std::log(64.0)) * 1e6};
        call.bytes = size;
        TrafficMatrix traffic;
        // all GPUs, the first half of them, or one GPU of each node (replicas)
        const int group = nodes > 1 ? one_of({0, 0, 1, 2}) : one_of({0, 0, 1});
        const int all = nodes * gpus;
        for (int gpu = 0; gpu < all; ++gpu)
            if (group == 0 || (group == 1 && gpu < all / 2) || (group == 2 && gpu % gpus == 0))
                call.group.push_back(gpu);
        switch (draws.below(5)) {
            case 0:
                call.collective = Collective::all_reduce;
                call.algorithm = Algorithm::ring;
                break;
            case 1:
                call.collective = Collective::all_gather;
                call.algorithm = Algorithm::ring;
                break;
            case 2:
                call.collective = Collective::send_recv;
                call.group = {0, all - 1};
                break;
            default:
                call.collective = Collective::all_to_all;
                call.algorithm = Algorithm::direct;
                traffic = unequal_traffic(static_cast<int>(call.group.size()), size, out.skew,
                                          draws);
                call.traffic = &traffic;
        }
        out.exchanges.push_back(make_exchange(graph, call));
        out.what += "; " + out.exchanges.back().what;
        // The later ones begin while the first is under way.
        out.starts.push_back(i == 0 ? Seconds{}
                                    : time_alone(out.exchanges.front()) * draws.uniform());
    }
    return out;
}

/// When each of its exchanges is through.
inline std::vector<Seconds> ends_of(const ConcurrentCase& one, NetworkModel model) {
    const LinkGraph graph = build_link_graph(one.cluster);
    const auto engine = make_engine(model, graph);
    std::vector<Seconds> ends(one.exchanges.size());
    for (std::size_t i = 0; i < one.exchanges.size(); ++i)
        engine->after(one.starts[i], [&, i] {
            engine->start(one.exchanges[i], [&, i] { ends[i] = engine->now(); });
        });
    engine->run();
    return ends;
}

}  // namespace moeplan
