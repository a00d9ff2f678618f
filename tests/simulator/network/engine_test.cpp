#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/seed.hpp"
#include "simulator/collective.hpp"
#include "simulator/network.hpp"
#include "tests/simulator/network/small_clusters.hpp"
#include "tests/tolerance.hpp"

namespace moeplan {
namespace {

using namespace literals;

/// All-to-all with the given bytes a pair, in every engine and with and without folding.
void expect_everywhere(const ClusterSpec& cluster, const TrafficMatrix& traffic, double seconds) {
    const LinkGraph graph = build_link_graph(cluster);
    const CollectiveCall call{
        Collective::all_to_all, first_gpus(graph.num_gpus), {}, Algorithm::direct, &traffic};
    for (const Folding folding : {Folding::rails, Folding::none}) {
        const Exchange exchange = make_exchange(graph, call, nullptr, folding);
        EXPECT_TRUE(close(time_alone(exchange).value, seconds))
            << time_alone(exchange).value << " " << seconds;
        for (const auto model :
             {NetworkModel::closed_form, NetworkModel::fluid, NetworkModel::simgrid}) {
            const double t = play_alone(model, graph, exchange).value;
            EXPECT_TRUE(close(t, seconds, kFlowEngines))
                << name_of(model) << " " << t << " " << seconds;
        }
    }
}

TrafficMatrix per_pair(int n, Bytes bytes) {
    TrafficMatrix out(n);
    for (Bytes& part : out.sent) part = bytes;
    return out;
}

TEST(AllToAllByHand, OnACrossbarSevenEighthsOfTheBufferLeaveEveryPort) {
    // 8 GPUs, 64 MiB each: 7 · 8 MiB / (450 GB/s) = 130.489 us
    expect_everywhere(plain_cluster(1), per_pair(8, 8_MiB), 7 * 8 * 1048576.0 / 450e9);
}

TEST(AllToAllByHand, BetweenTwoNodesEveryNicCarriesEightPairsParts) {
    // 2 × 8 GPUs, 8 NICs of 50 GB/s, 4 MiB a pair: 8 · 8 pairs cross from node to node by 8 NICs. 8
    // · 4 MiB / (50 GB/s) = 671.089 us
    expect_everywhere(plain_cluster(2), per_pair(16, 4_MiB), 8 * 4 * 1048576.0 / 50e9);
}

TEST(AllToAllByHand, WithoutPxnTheSendersNicCarriesTheSame) {
    auto cluster = plain_cluster(2);
    std::get<RailFatTree>(std::get<Fabric>(cluster.topology).scale_out).pxn = false;
    expect_everywhere(cluster, per_pair(16, 4_MiB), 8 * 4 * 1048576.0 / 50e9);
}

TEST(AllToAllByHand, AHotReceiverIsThePort) {
    // As the crossbar, one receiver gets three times as much: 7 · 24 MiB / (450 GB/s) = 391.468 us
    auto traffic = per_pair(8, 8_MiB);
    for (int s = 0; s < 8; ++s) traffic.at(s, 3) *= 3;
    expect_everywhere(plain_cluster(1), traffic, 7 * 24 * 1048576.0 / 450e9);
}

TEST(AllToAllByHand, AnOversubscribedSpineIsTheBottleneck) {
    // 8 nodes, 4 a leaf, 4:1: a leaf's uplink is 4 · 50 / 4 = 50 GB/s and carries 32 sources · 4
    // nodes · 1 MiB: 128 MiB / (50 GB/s) = 2684.355 us
    auto cluster = plain_cluster(8);
    std::get<Fabric>(cluster.topology).scale_out = RailFatTree{8, 4, true, 4};
    expect_everywhere(cluster, per_pair(64, 1_MiB), 128 * 1048576.0 / 50e9);
}

TEST(FlowEngines, OneMessageTakesLatencyPlusSizeOverBandwidthExactly) {
    // α + S/β = 5 us + 1 GB / (50 GB/s) = 20.005 ms
    const LinkGraph graph = build_link_graph(plain_cluster(2, 8, 5_us));
    const Exchange message = make_exchange(graph, "message", {{5_us, {{0, 8, 1_GB}}}});
    for (const auto model : {NetworkModel::closed_form, NetworkModel::fluid, NetworkModel::simgrid})
        EXPECT_TRUE(close(play_alone(model, graph, message).value, 5e-6 + 1.0 / 50, kFlowEngines))
            << name_of(model);
}

TEST(FlowEngines, TwoMessagesOutOfOnePortShareItAndTheRestIsFasterAfterwards) {
    // 450 GB/s, 45 MB and 90 MB from GPU 0: both at half rate until 200 us, the rest of 45 MB
    // alone: 300 us.
    const LinkGraph graph = build_link_graph(plain_cluster(1));
    const Exchange small = make_exchange(graph, "small", {{{}, {{0, 1, 45_MB}}}}),
                   large = make_exchange(graph, "large", {{{}, {{0, 2, 90_MB}}}});
    for (const auto model :
         {NetworkModel::closed_form, NetworkModel::fluid, NetworkModel::simgrid}) {
        const auto engine = make_engine(model, graph);
        double ends[2] = {};
        engine->start(small, [&] { ends[0] = engine->now().value; });
        engine->start(large, [&] { ends[1] = engine->now().value; });
        engine->run();
        EXPECT_TRUE(close(ends[0], 200e-6, kFlowEngines)) << name_of(model) << " " << ends[0];
        EXPECT_TRUE(close(ends[1], 300e-6, kFlowEngines)) << name_of(model) << " " << ends[1];
        EXPECT_EQ(engine->carried()[0], 135_MB);
        EXPECT_EQ(engine->counts().flows_finished, 2u);
    }
}

TEST(FlowEngines, AnExchangeThatBeginsLaterSlowsTheOneUnderWay) {
    // 90 MB alone for 100 us (45 MB left), then both at half rate: the second's 45 MB and the
    // first's rest end together at 300 us.
    const LinkGraph graph = build_link_graph(plain_cluster(1));
    const Exchange first = make_exchange(graph, "first", {{{}, {{0, 1, 90_MB}}}}),
                   second = make_exchange(graph, "second", {{{}, {{0, 2, 45_MB}}}});
    for (const auto model :
         {NetworkModel::closed_form, NetworkModel::fluid, NetworkModel::simgrid}) {
        const auto engine = make_engine(model, graph);
        double ends[2] = {};
        engine->start(first, [&] { ends[0] = engine->now().value; });
        engine->after(100_us,
                      [&] { engine->start(second, [&] { ends[1] = engine->now().value; }); });
        const auto never = engine->after(1_s, [&] { ADD_FAILURE() << "a cancelled timer fired"; });
        engine->cancel(never);
        engine->run();
        EXPECT_TRUE(close(ends[0], 300e-6, kFlowEngines)) << name_of(model) << " " << ends[0];
        EXPECT_TRUE(close(ends[1], 300e-6, kFlowEngines)) << name_of(model) << " " << ends[1];
    }
}

TEST(ClosedForm, WeightsDivideASharedLink) {
    // Weights 3 and 1 on one 450 GB/s port, 90 MB each: rates ¾ and ¼ until 90 MB / 337.5 GB/s =
    // 266.7 us; the other has 60 MB left: 400 us.
    const LinkGraph graph = build_link_graph(plain_cluster(1));
    const Exchange heavy = make_exchange(graph, "heavy", {{{}, {{0, 1, 90_MB}}}}, 1, 3),
                   light = make_exchange(graph, "light", {{{}, {{0, 2, 90_MB}}}}, 1, 1);
    for (const auto model :
         {NetworkModel::closed_form, NetworkModel::fluid, NetworkModel::simgrid}) {
        const auto engine = make_engine(model, graph);
        double ends[2] = {};
        engine->start(heavy, [&] { ends[0] = engine->now().value; });
        engine->start(light, [&] { ends[1] = engine->now().value; });
        engine->run();
        EXPECT_TRUE(close(ends[0], 90e6 / 337.5e9, kFlowEngines))
            << name_of(model) << " " << ends[0];
        EXPECT_TRUE(close(ends[1], 400e-6, kFlowEngines)) << name_of(model) << " " << ends[1];
    }
}

/// Log-normal by destination and by pair: hot experts, and what is left to chance.
TrafficMatrix skewed(int n, double sigma, std::uint64_t seed) {
    TrafficMatrix out(n);
    DrawStream draws{Seed{seed}};
    std::vector<double> hot;
    for (int d = 0; d < n; ++d) hot.push_back(std::exp(sigma * draws.normal()));
    for (int s = 0; s < n; ++s)
        for (int d = 0; d < n; ++d)
            out.at(s, d) = Bytes{std::floor(1e6 * hot[d] * std::exp(sigma * draws.normal()))};
    return out;
}

/// SimGrid holds one platform a process, so each size is a test of its own.
class FluidSolver : public testing::TestWithParam<std::pair<int, bool>> {};

TEST_P(FluidSolver, EqualsSimGridOnUnequalAllToAlls) {
    // Two exchanges at once, so that flows end one by one and shares are settled anew for each.
    const auto [nodes, pairs] = GetParam();
    const LinkGraph graph = build_link_graph(plain_cluster(nodes));
    const int n = graph.num_gpus;
    for (std::uint64_t seed = 1; seed <= (n <= 16 ? 5u : 1u); ++seed) {
        auto one = skewed(n, 0.6, seed), other = skewed(n, 1.0, seed + 100);
        if (!pairs)  // by receiver alone
            for (TrafficMatrix* traffic : {&one, &other})
                for (int s = 1; s < n; ++s)
                    for (int d = 0; d < n; ++d) traffic->at(s, d) = traffic->at(0, d);
        const auto a = make_exchange(
            graph, {Collective::all_to_all, first_gpus(n), {}, Algorithm::direct, &one});
        const auto b = make_exchange(
            graph, {Collective::all_to_all, first_gpus(n), {}, Algorithm::direct, &other});
        std::array<std::vector<double>, 2> ends;
        for (const auto model : {NetworkModel::fluid, NetworkModel::simgrid}) {
            const auto engine = make_engine(model, graph);
            auto& end = ends[model == NetworkModel::simgrid];
            engine->start(a, [&] { end.push_back(engine->now().value); });
            if (n <= 64)
                engine->after(
                    3_us, [&] { engine->start(b, [&] { end.push_back(engine->now().value); }); });
            engine->run();
        }
        ASSERT_EQ(ends[0].size(), n <= 64 ? 2u : 1u);
        for (std::size_t i = 0; i < ends[0].size(); ++i)
            EXPECT_TRUE(close(ends[0][i], ends[1][i], kFlowEngines))
                << ends[0][i] << " " << ends[1][i];
    }
}

INSTANTIATE_TEST_SUITE_P(Sizes, FluidSolver,
                         testing::Values(std::pair{1, true}, std::pair{2, true},
                                         std::pair{8, true}, std::pair{32, false}),
                         [](const auto& info) {
                             return std::to_string(8 * info.param.first) + "_gpus_" +
                                    (info.param.second ? "by_pair" : "by_receiver");
                         });

}  // namespace
}  // namespace moeplan
