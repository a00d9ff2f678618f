#include "simulator/collective.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/errors.hpp"
#include "core/seed.hpp"
#include "profiler/profile.hpp"
#include "simulator/collective_table.hpp"
#include "simulator/collectives/collectives.hpp"
#include "tests/simulator/network/small_clusters.hpp"
#include "tests/tolerance.hpp"

namespace moeplan {
namespace {

using namespace literals;

double time_of(const LinkGraph& graph, const CollectiveCall& call) {
    return time_alone(make_exchange(graph, call)).value;
}

std::map<std::uint32_t, double> sent_by(const std::vector<StageFlows>& stages) {
    std::map<std::uint32_t, double> out;
    for (const auto& stage : stages)
        for (const Flow& flow : stage.flows) out[flow.source] += flow.bytes.value;
    return out;
}

TEST(RingAllReduce, TakesTwiceNMinusOneStepsOfLatencyAndAnNth) {
    // n = 8, S = 80 MB, α = 2 us, β = 450 GB/s: 2 · 7 · (2 us + 10 MB / β), folded into one stage
    // and step by step.
    const LinkGraph graph = build_link_graph(plain_cluster(1, 8, 2_us));
    const double expected = 2 * 7 * (2e-6 + 10e6 / 450e9);
    EXPECT_TRUE(close(
        time_of(graph, {Collective::all_reduce, first_gpus(8), 80_MB, Algorithm::ring}), expected));
    const auto rounds = ring_rounds(graph, shape_of(graph, first_gpus(8)), 80_MB, 2);
    ASSERT_EQ(rounds.size(), 14u);
    for (const auto model : {NetworkModel::closed_form, NetworkModel::fluid, NetworkModel::simgrid})
        EXPECT_TRUE(close(play_rounds(model, graph, rounds).value, expected, kFlowEngines))
            << name_of(model);
}

TEST(RingAllGather, IsHalfOfAnAllReduce) {
    // (n−1)(α + S/(n·β)), and reduce_scatter the same
    const LinkGraph graph = build_link_graph(plain_cluster(1, 8, 2_us));
    const double expected = 7 * (2e-6 + 10e6 / 450e9);
    for (const auto kind : {Collective::all_gather, Collective::reduce_scatter})
        EXPECT_TRUE(close(time_of(graph, {kind, first_gpus(8), 80_MB, Algorithm::ring}), expected));
}

TEST(RingAllReduce, AcrossNodesUsesEveryRailAndNeverChangesIt) {
    // 4 nodes × 8 GPUs: eight rings of S/8. A NIC carries 2(n−1)/n · S/8, a GPU's NVLink seven of
    // eight hops.
    const auto cluster = plain_cluster(4);
    const LinkGraph graph = build_link_graph(cluster);
    const double n = 32, S = 1e9, nic = 2 * (n - 1) / n * S / 8 / 50e9,
                 nvlink = 2 * (n - 1) / n * S * 7 / 8 / 450e9;
    EXPECT_TRUE(
        close(time_of(graph, {Collective::all_reduce, first_gpus(32), 1_GB, Algorithm::ring}),
              std::max(nic, nvlink)));
    for (const int nodes : {2, 3, 4, 5, 7}) {  // an odd number of nodes closes by a detour
        const LinkGraph some = build_link_graph(plain_cluster(nodes));
        for (const auto& ring : rings_of(some, shape_of(some, first_gpus(8 * nodes)))) {
            EXPECT_EQ(std::set<int>(ring.order.begin(), ring.order.end()).size(),
                      static_cast<std::size_t>(8 * nodes));
            for (std::size_t i = 0; i < ring.order.size(); ++i)
                EXPECT_EQ(some.relay(ring.order[i], ring.order[(i + 1) % ring.order.size()]), -1)
                    << nodes;
        }
    }
}

TEST(RingAllReduce, OnACubeMeshFillsAllSixLinks) {
    // Two rings there and back on double and single links, payload as their widths: 2 · 7/8 · S /
    // (150 GB/s).
    auto dgx1 = load_cluster("dgx1-v100");
    dgx1.scale_up = {{}, 150_GBps};
    dgx1.collective_launch = {};
    EXPECT_TRUE(close(time_of(build_link_graph(dgx1),
                              {Collective::all_reduce, first_gpus(8), 1_GB, Algorithm::ring}),
                      2 * 7.0 / 8 * 1e9 / 150e9));
}

TEST(DoubleBinaryTree, NoPortCarriesMoreThanTwicePayloadAndDepthIsLogarithmic) {
    for (const int n : {2, 3, 4, 5, 7, 8, 13, 16, 31, 64}) {
        const LinkGraph graph = build_link_graph(plain_cluster(1, n, 1_us));
        const auto stages = double_binary_tree(graph, shape_of(graph, first_gpus(n)), 80_MB);
        ASSERT_EQ(stages.size(), 1u);
        EXPECT_EQ(stages[0].flows.size(),
                  4u * static_cast<unsigned>(n - 1));  // two trees, up and down
        for (const auto& [gpu, bytes] : sent_by(stages))
            EXPECT_LE(bytes, 160e6 * (1 + kArithmetic)) << n << " " << gpu;
        // 2 · ⌈log2 n⌉ latencies
        EXPECT_TRUE(close(stages[0].latency.value, 2 * std::ceil(std::log2(n)) * 1e-6)) << n;
        if (n >= 4) {
            EXPECT_TRUE(close(time_of(graph, {Collective::all_reduce, first_gpus(n), 80_MB,
                                              Algorithm::double_binary_tree}),
                              stages[0].latency.value + 160e6 / 450e9))
                << n;
        }
    }
}

TEST(DoubleBinaryTree, LevelByLevelItIsNeverFasterThanPipelined) {
    const LinkGraph graph = build_link_graph(plain_cluster(1, 8, 1_us));
    const auto rounds = tree_rounds(graph, shape_of(graph, first_gpus(8)), 80_MB);
    EXPECT_GE(play_rounds(NetworkModel::fluid, graph, rounds).value,
              time_of(graph, {Collective::all_reduce, first_gpus(8), 80_MB,
                              Algorithm::double_binary_tree}) -
                  1e-15);
}

TEST(Nvls, MovesThePayloadAndAnNthOncePerPort) {
    // 2α + S(1 + 1/n)/β with n = 8
    auto cluster = plain_cluster(1, 8, 2_us);
    cluster.in_switch_reduction = true;
    EXPECT_TRUE(close(time_of(build_link_graph(cluster),
                              {Collective::all_reduce, first_gpus(8), 80_MB, Algorithm::nvls}),
                      4e-6 + 90e6 / 450e9));
    EXPECT_THROW(time_of(build_link_graph(plain_cluster(1)),
                         {Collective::all_reduce, first_gpus(8), 1_MB, Algorithm::nvls}),
                 InputError);
}

TEST(Hierarchical, TakesTheSlowerOfItsLevels) {
    // m = 8, N = 4: NVLink 2 · 7/8 · S/β_up, NIC 2 · 3/4 · S/8/β_out; S = 1 GB: 3.89 ms and 3.75 ms
    const LinkGraph graph = build_link_graph(plain_cluster(4));
    EXPECT_TRUE(close(
        time_of(graph, {Collective::all_reduce, first_gpus(32), 1_GB, Algorithm::hierarchical}),
        std::max(2 * 7.0 / 8 / 450, 2 * 3.0 / 4 / 8 / 50)));
}

TEST(SendRecv, IsLatencyPlusSizeOverBandwidth) {
    const LinkGraph graph = build_link_graph(plain_cluster(2, 8, 5_us));
    EXPECT_TRUE(close(time_of(graph, {Collective::send_recv, {0, 8}, 1_GB}), 5e-6 + 1.0 / 50));
    EXPECT_THROW(time_of(graph, {Collective::send_recv, {0, 8, 9}, 1_GB}), InputError);
    EXPECT_THROW(time_of(graph, {Collective::send_recv, {0, 99}, 1_GB}), InputError);
    EXPECT_THROW(time_of(graph, {Collective::all_reduce, {0, 1, 1}, 1_GB}), InputError);
}

TEST(AllToAll, BusBandwidthMeetsTheCeilingOfItsNodes) {
    // n ranks on N nodes of 8, NICs of 50 GB/s: busbw = (n−1)/(n−8) ·
    // 50: 93.75, 64.58, 56.25, 52.92 GB/s
    for (const auto& [nodes, busbw] : std::map<int, double>{
             {2, 93.75e9}, {4, 50e9 * 31 / 24}, {8, 56.25e9}, {16, 50e9 * 127 / 120}}) {
        const LinkGraph graph = build_link_graph(plain_cluster(nodes));
        const auto table =
            collective_table(graph, Collective::all_to_all, Algorithm::automatic,
                             first_gpus(8 * nodes), {8_GB}, {}, Fidelity::closed_form, nullptr);
        EXPECT_TRUE(close(table.rows[0].bus_bandwidth.value, busbw)) << nodes;
    }
}

TEST(AllToAll, EveryAlgorithmDeliversEveryByte) {
    const LinkGraph graph = build_link_graph(plain_cluster(4));
    const auto group = first_gpus(32);
    TrafficMatrix traffic(32);
    DrawStream draws{Seed{5}};
    for (auto& part : traffic.sent) part = Bytes{std::floor(draws.uniform() * 1e6)};
    for (const auto algorithm : {Algorithm::direct, Algorithm::pairwise, Algorithm::two_level}) {
        const auto shape = shape_of(graph, group);
        const auto stages = algorithm == Algorithm::direct
                                ? all_to_all_direct(graph, shape, traffic)
                            : algorithm == Algorithm::pairwise
                                ? all_to_all_pairwise(graph, shape, traffic)
                                : all_to_all_two_level(graph, shape, traffic, nullptr);
        std::vector<double> balance(32), expected(32);  // what came in less what went on
        for (const auto& stage : stages)
            for (const Flow& flow : stage.flows) {
                balance[flow.destination] += flow.bytes.value;
                balance[flow.source] -= flow.bytes.value;
            }
        for (int a = 0; a < 32; ++a)
            for (int b = 0; b < 32; ++b)
                if (a != b) {
                    expected[b] += traffic.at(a, b).value;
                    expected[a] -= traffic.at(a, b).value;
                }
        for (int rank = 0; rank < 32; ++rank)
            EXPECT_EQ(balance[rank], expected[rank]) << name_of(algorithm) << " " << rank;
    }
}

TEST(AllToAll, TwoLevelWithoutDuplicatesSendsATokenOnceANode) {
    // 2 nodes × 4. Every rank of node 0 sends 1 MB to each of node 1's four GPUs, the same token: 1
    // MB over its NIC instead of 4.
    const LinkGraph graph = build_link_graph(plain_cluster(2, 4));
    const auto group = first_gpus(8);
    TrafficMatrix traffic(8), once(8);
    for (int s = 0; s < 4; ++s) {
        for (int d = 4; d < 8; ++d) traffic.at(s, d) = 1_MB;
        once.at(s, forwarding_rank(graph, group, s, 4)) = 1_MB;
        EXPECT_EQ(forwarding_rank(graph, group, s, 4), 4 + s);
        EXPECT_EQ(forwarding_rank(graph, group, s, 6), 4 + s);
    }
    CollectiveCall call{Collective::all_to_all, group, {}, Algorithm::two_level, &traffic, &once};
    EXPECT_TRUE(close(time_of(graph, call), 1e6 / 50e9));
    call.once = nullptr;
    EXPECT_TRUE(close(time_of(graph, call), 4e6 / 50e9));
}

TEST(AllToAll, PairwiseWaitsForTheSlowestOfEachRound) {
    // 4 ranks, rank i sends i + 1 MB to each: every round's slowest part is rank 3's 4 MB. Three
    // rounds of α + 4 MB/β.
    const LinkGraph graph = build_link_graph(plain_cluster(1, 4, 2_us));
    TrafficMatrix traffic(4);
    for (int s = 0; s < 4; ++s)
        for (int d = 0; d < 4; ++d) traffic.at(s, d) = 1_MB * (s + 1);
    const CollectiveCall call{
        Collective::all_to_all, first_gpus(4), {}, Algorithm::pairwise, &traffic};
    const double expected = 3 * (2e-6 + 4e6 / 450e9);
    EXPECT_TRUE(close(time_of(graph, call), expected));
    for (const auto model : {NetworkModel::closed_form, NetworkModel::fluid, NetworkModel::simgrid})
        EXPECT_TRUE(close(play_alone(model, graph, make_exchange(graph, call)).value, expected,
                          kFlowEngines))
            << name_of(model);
}

TEST(AllToAll, TwoLevelWaitsForOneHopOfEachLevel) {
    // 2 nodes × 4, α_up = 2 us, α_out = 5 us, 1 MB a pair: a NIC carries its GPU's 4 MB for the
    // other node. 5 + 2 us + 4 MB/(50 GB/s); NVLink: 3 local and 3 forwarded parts.
    auto cluster = plain_cluster(2, 4, 2_us);
    cluster.scale_out.latency = 5_us;
    const LinkGraph graph = build_link_graph(cluster);
    EXPECT_TRUE(close(
        time_of(graph, {Collective::all_to_all, first_gpus(8), 8_MB, Algorithm::two_level}),
        7e-6 + 4e6 / 50e9));
}

TEST(Broadcast, IsOneTripOfThePayloadAlongTheRing) {
    // (n−1)α + S/β: pipelined, so every hop carries S once
    const LinkGraph graph = build_link_graph(plain_cluster(1, 8, 2_us));
    EXPECT_TRUE(close(time_of(graph, {Collective::broadcast, first_gpus(8), 90_MB}),
                      7 * 2e-6 + 90e6 / 450e9));
}

TEST(Hierarchical, GatheringIsHalfOfReducingAndGathering) {
    // m = 4, N = 8: NVLink 3/4 · S/β_up, NIC 7/8 · S/(4·β_out); latencies 3·α_up + 7·α_out.
    // S = 100 MB: 167 us and 437.5 us.
    auto cluster = plain_cluster(8, 4, 2_us);
    cluster.scale_out.latency = 5_us;
    const LinkGraph graph = build_link_graph(cluster);
    for (const auto kind : {Collective::all_gather, Collective::reduce_scatter})
        EXPECT_TRUE(close(
            time_of(graph, {kind, first_gpus(32), 100_MB, Algorithm::hierarchical}),
            3 * 2e-6 + 7 * 5e-6 + std::max(0.75 * 100e6 / 450e9, 7.0 / 8 * 100e6 / 4 / 50e9)));
    EXPECT_TRUE(close(
        time_of(graph, {Collective::all_reduce, first_gpus(32), 100_MB, Algorithm::hierarchical}),
        2 * (3 * 2e-6 + 7 * 5e-6 + 7.0 / 8 * 100e6 / 4 / 50e9)));
}

/// nccl-tests' table at both fidelities: alone on its links a collective takes the same in both.
TEST(CollectiveTable, IsTheSameAtBothFidelities) {
    const LinkGraph graph = build_link_graph(plain_cluster(2, 8, 2_us));
    for (const auto kind : {Collective::all_reduce, Collective::all_gather,
                            Collective::reduce_scatter, Collective::all_to_all,
                            Collective::broadcast}) {
        const auto table = [&](Fidelity fidelity) {
            return collective_table(graph, kind, Algorithm::automatic, first_gpus(16),
                                    {1_MB, 64_MB}, {}, fidelity, nullptr);
        };
        const auto closed = table(Fidelity::closed_form), flow = table(Fidelity::flow);
        EXPECT_EQ(closed.engine, "closed_form");
        EXPECT_EQ(flow.engine, "simgrid");
        for (std::size_t i = 0; i < 2; ++i) {
            EXPECT_TRUE(close(flow.rows[i].time.value, closed.rows[i].time.value, kFlowEngines))
                << name_of(kind);
            EXPECT_EQ(flow.rows[i].algorithm, closed.rows[i].algorithm);
        }
    }
}

/// What a switch takes in it hands out: over any fabric and group, bytes up equal bytes down, and
/// every NIC's bytes out are some NIC's bytes in.
TEST(Collectives, NoByteIsLostOrMadeOnTheWay) {
    DrawStream draws{Seed{23}};
    for (int trial = 0; trial < 60; ++trial) {
        auto cluster = plain_cluster(1 + static_cast<int>(draws.below(4)), 8);
        auto& rails = std::get<RailFatTree>(std::get<Fabric>(cluster.topology).scale_out);
        rails.num_nics = draws.below(2) == 0 ? 8 : 4;
        rails.pxn = draws.below(2) == 0;
        rails.nodes_per_leaf = static_cast<int>(draws.below(3));
        const LinkGraph graph = build_link_graph(cluster);
        std::vector<int> group;
        for (int gpu = 0; gpu < graph.num_gpus; ++gpu)
            if (draws.below(3) > 0) group.push_back(gpu);
        if (group.size() < 2) continue;
        for (const auto kind : {Collective::all_reduce, Collective::all_gather,
                                Collective::reduce_scatter, Collective::all_to_all,
                                Collective::broadcast}) {
            const Exchange exchange = make_exchange(graph, {kind, group, 64_MB});
            double up = 0, down = 0, out = 0, in = 0, spine_up = 0, spine_down = 0;
            for (const ExchangeStage& stage : exchange.stages)
                for (const LinkLoad& load : stage.loads) {
                    const std::string& name = graph.links[load.link].name;
                    const auto ends = [&](const char* what) { return name.ends_with(what); };
                    (ends("nvlink-up")     ? up
                     : ends("nvlink-down") ? down
                     : ends("spine-up")    ? spine_up
                     : ends("spine-down")  ? spine_down
                     : ends("/up")         ? out
                                           : in) += load.bytes.value;
                }
            EXPECT_TRUE(close(up, down)) << exchange.what;
            EXPECT_TRUE(close(out, in)) << exchange.what;
            EXPECT_TRUE(close(spine_up, spine_down)) << exchange.what;
        }
    }
}

TEST(Folding, KeepsTheLoadOfEveryLinkAndMakesFlowsFew) {
    // 8 nodes × 8: 64 · 63 = 4,032 messages. Kept: to a GPU from the same rail of 7 other nodes, 64
    // · 7; within a node 64 · 7.
    const LinkGraph graph = build_link_graph(plain_cluster(8));
    TrafficMatrix traffic(64);
    DrawStream draws{Seed{9}};
    for (auto& part : traffic.sent) part = Bytes{std::floor(draws.uniform() * 1e6) + 1};
    const CollectiveCall call{
        Collective::all_to_all, first_gpus(64), {}, Algorithm::direct, &traffic};
    const auto rails = make_exchange(graph, call, nullptr, Folding::rails),
               none = make_exchange(graph, call, nullptr, Folding::none);
    EXPECT_EQ(none.stages[0].flows.size(), 4032u);
    EXPECT_EQ(rails.stages[0].flows.size(), 64u * 7 + 64 * 7);
    ASSERT_EQ(rails.stages[0].loads.size(), none.stages[0].loads.size());
    for (std::size_t i = 0; i < rails.stages[0].loads.size(); ++i) {
        EXPECT_EQ(rails.stages[0].loads[i].link, none.stages[0].loads[i].link);
        EXPECT_EQ(rails.stages[0].loads[i].bytes,
                  none.stages[0].loads[i].bytes);  // whole bytes: exact
    }
    EXPECT_EQ(time_alone(rails), time_alone(none));
}

TEST(Folding, OnTheWayIsTheSameToTheLastDigit) {
    // Groups in order, strided (relays are no members), and in an order of their own; parts of no
    // whole number of bytes, some of them none.
    DrawStream draws{Seed{12}};
    auto no_pxn = plain_cluster(8);
    std::get<RailFatTree>(std::get<Fabric>(no_pxn.topology).scale_out).pxn = false;
    for (const ClusterSpec& cluster : {plain_cluster(8), no_pxn, plain_cluster(1)}) {
        const LinkGraph graph = build_link_graph(cluster);
        std::vector<std::vector<int>> groups = {first_gpus(graph.num_gpus)};
        groups.emplace_back();
        for (int gpu = 1; gpu < graph.num_gpus; gpu += 3) groups.back().push_back(gpu);
        groups.push_back(groups.front());
        for (std::size_t i = groups.back().size(); i-- > 1;)
            std::swap(groups.back()[i], groups.back()[draws.below(i + 1)]);
        for (const auto& gpus : groups) {
            const GroupShape group = shape_of(graph, gpus);
            TrafficMatrix traffic(group.num_ranks());
            for (auto& part : traffic.sent)
                part = Bytes{std::max(0.0, draws.uniform() * 1e6 - 1e5)};
            const auto direct = all_to_all_direct(graph, group, traffic),
                       on_the_way = all_to_all_folded(graph, group, traffic);
            const std::vector<Flow> expected = folded(graph, direct.front().flows),
                                    &found = on_the_way.front().flows;
            EXPECT_EQ(on_the_way.front().latency, direct.front().latency);
            ASSERT_EQ(found.size(), expected.size());
            for (std::size_t i = 0; i < found.size(); ++i) {
                EXPECT_EQ(found[i].source, expected[i].source);
                EXPECT_EQ(found[i].destination, expected[i].destination);
                EXPECT_EQ(found[i].bytes, expected[i].bytes);
            }
        }
    }
}

TEST(LinkLoads, OfAFewMessagesAreThoseOfTheirRoutes) {
    // 64 nodes have thousands of links, of which three messages touch a dozen, some of them twice.
    const LinkGraph graph = build_link_graph(plain_cluster(64));
    const std::vector<Flow> flows = {{0, 9, Bytes{0.1}}, {0, 500, Bytes{0.7}}, {17, 9, Bytes{1e9}}};
    std::map<std::uint32_t, double> expected;
    for (const Flow& flow : flows)
        for (const auto link :
             graph.route(static_cast<int>(flow.source), static_cast<int>(flow.destination)).links)
            expected[link] += flow.bytes.value;
    std::map<std::uint32_t, double> found;
    std::uint32_t last = 0;
    for (const LinkLoad& load : link_loads(graph, flows)) {
        EXPECT_TRUE(found.empty() || load.link > last);
        found[last = load.link] = load.bytes.value;
    }
    EXPECT_EQ(found, expected);
}

TEST(Collectives, MoreBandwidthIsNeverSlower) {
    DrawStream draws{Seed{11}};
    for (int trial = 0; trial < 20; ++trial) {
        auto cluster = plain_cluster(1 + static_cast<int>(draws.below(4)), 8, 2_us);
        auto faster = cluster;
        faster.scale_up.bandwidth *= 1.5;
        faster.scale_out.bandwidth *= 1.2;
        for (const auto kind :
             {Collective::all_reduce, Collective::all_gather, Collective::all_to_all}) {
            const CollectiveCall call{kind, first_gpus(num_gpus(cluster)),
                                      Bytes{std::exp(draws.uniform() * 20)}};
            EXPECT_LE(time_of(build_link_graph(faster), call),
                      time_of(build_link_graph(cluster), call));
        }
    }
}

TEST(Collectives, AMeasuredCurveIsMetExactlyAtItsPoints) {
    // all_to_all of 8 MB over 8 GPUs measured at 40 us: alone it takes that, in every engine.
    Profile profile;
    profile.name = "test";
    profile.links.push_back({"all_to_all",
                             8,
                             Basis::measured,
                             "test",
                             {"bytes", "median_s", "relative_spread", "num_samples"},
                             {{8e6, 40e-6, 0.01, 20}, {8e7, 300e-6, 0.01, 20}}});
    prepare(profile);
    const LinkGraph graph = build_link_graph(plain_cluster(1, 8, 2_us));
    const Exchange exchange =
        make_exchange(graph, {Collective::all_to_all, first_gpus(8), 8_MB}, &profile);
    EXPECT_TRUE(close(time_alone(exchange).value, 40e-6));
    for (const auto model : {NetworkModel::closed_form, NetworkModel::fluid, NetworkModel::simgrid})
        EXPECT_TRUE(close(play_alone(model, graph, exchange).value, 40e-6, kFlowEngines))
            << name_of(model);
}

TEST(Collectives, OneRankWaitsForNobody) {
    const LinkGraph graph = build_link_graph(plain_cluster(1));
    EXPECT_EQ(time_of(graph, {Collective::all_reduce, {3}, 1_GB}), 0);
    EXPECT_EQ(play_alone(NetworkModel::fluid, graph,
                         make_exchange(graph, {Collective::all_reduce, {3}, 1_GB}))
                  .value,
              0);
}

TEST(Sizes, AreReadAsNcclTestsWritesThem) {
    EXPECT_EQ(read_sizes("8589934592"), (std::vector<Bytes>{8_GiB}));
    EXPECT_EQ(read_sizes("1K,2MiB,3 MB"), (std::vector<Bytes>{1_KiB, 2_MiB, 3_MB}));
    EXPECT_EQ(read_sizes("8..64"), (std::vector<Bytes>{8_B, 16_B, 32_B, 64_B}));
    EXPECT_EQ(read_sizes("1K..1M*32"), (std::vector<Bytes>{1_KiB, 32_KiB, 1_MiB}));
    for (const char* wrong : {"", "x", "-1", "1..", "0", "1..8*1", "nan", "1e30", ","})
        EXPECT_THROW(read_sizes(wrong), InputError) << wrong;
}

}  // namespace
}  // namespace moeplan
