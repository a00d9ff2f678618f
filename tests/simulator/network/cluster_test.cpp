#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "core/errors.hpp"
#include "simulator/cluster_spec.hpp"
#include "simulator/link_graph.hpp"
#include "simulator/topology/drawing.hpp"
#include "simulator/topology/import.hpp"
#include "tests/simulator/network/small_clusters.hpp"
#include "tests/tolerance.hpp"

namespace moeplan {
namespace {

using namespace literals;
namespace fs = std::filesystem;

std::string message_of(const std::function<void()>& act) {
    try {
        act();
    } catch (const InputError& error) {
        return error.what();
    }
    return "(nothing thrown)";
}

fs::path sample(const std::string& name) { return fs::path(MOEPLAN_TEST_DATA) / "clusters" / name; }

/// A file of this process in the temporary folder, gone with the object.
struct TextFile {
    fs::path path;
    explicit TextFile(const std::string& content)
        : path(fs::temp_directory_path() / ("moeplan_cluster_" + std::to_string(::getpid()))) {
        std::ofstream(path, std::ios::binary) << content;
    }
    ~TextFile() { fs::remove(path); }
};

TEST(ClusterFiles, EveryShippedOneLoadsRoundTripsAndReachesAllPairs) {
    const auto names = shipped_clusters();
    EXPECT_GE(names.size(), 24u);
    for (const auto& name : names) {
        const ClusterSpec cluster = load_cluster(name);
        EXPECT_EQ(cluster.name, name);
        EXPECT_FALSE(cluster.source.empty()) << name;
        const Json json = to_json(cluster);
        EXPECT_EQ(to_json(cluster_from_json(JsonReader::from_value(json, name))), json) << name;
        const LinkGraph graph = build_link_graph(resized(cluster, 2 * nodes_per_rack(cluster)));
        for (int b = 1; b < graph.num_gpus; ++b) {
            EXPECT_FALSE(graph.route(0, b).links.empty()) << name << " " << b;
            EXPECT_GT(graph.route(b, 0).latency.value, 0) << name << " " << b;
        }
    }
}

TEST(ClusterFiles, ANameWithItsSizeCountsNodesAndRacks) {
    EXPECT_EQ(num_gpus(load_cluster("dgx-h100:16")), 128);
    EXPECT_EQ(num_gpus(load_cluster("gb200-nvl72:2")), 144);  // 2 racks of 18 nodes of 4
    EXPECT_EQ(load_cluster("dgx-a100:3").gpu.name, "a100-sxm-80");
    for (const char* wrong :
         {"dgx-h100:0", "dgx-h100:x", "dgx-h100:", "dgx-h100:9999999", "dgx-h1000", "localhost:2"})
        EXPECT_THROW(load_cluster(wrong), InputError) << wrong;
    EXPECT_THAT(message_of([] { load_cluster("dgx-h10"); }), testing::HasSubstr("dgx-h100"));
}

TEST(ClusterFiles, MadeUpClustersKeepTheirNodesShareOfNics) {
    const auto cluster = make_cluster("h100-sxm", 4, 8, 4, 200.0);
    EXPECT_EQ(cluster.scale_out.bandwidth, 25_GBps);
    EXPECT_EQ(std::get<RailFatTree>(std::get<Fabric>(cluster.topology).scale_out).num_nics, 4);
    EXPECT_THROW(make_cluster("h100", 1, 8, 3, {}), InputError);
    EXPECT_THROW(make_cluster("h100-sxm", 1, 8, 3, {}), InputError);
    EXPECT_EQ(num_gpus(make_cluster("gb200", 36, 4, {}, {})), 144);
    EXPECT_EQ(gpus_per_domain(make_cluster("gb200", 36, 4, {}, {})), 72);
}

TEST(ClusterFiles, ThisMachineIsAClusterOfItsCores) {
    const auto here = load_cluster("localhost");
    EXPECT_EQ(here.num_nodes, 1);
    EXPECT_GE(here.gpus_per_node, 1);
    EXPECT_GT(here.gpu.memory.value, 1e7);
    EXPECT_FALSE(here.assumed.empty());
}

TEST(ClusterFiles, AWrongValueIsNamedWithItsPlace) {
    const Json good = to_json(plain_cluster(2));
    const auto with = [&](const std::string& pointer, Json value) {
        Json changed = good;
        changed[Json::json_pointer(pointer)] = std::move(value);
        return message_of([&] { cluster_from_json(JsonReader::from_value(changed, "c.json")); });
    };
    EXPECT_THAT(with("/num_nodes", 0), testing::HasSubstr("/num_nodes is 0"));
    EXPECT_THAT(with("/scale_up/bandwidth", 450), testing::HasSubstr("/scale_up/bandwidth"));
    EXPECT_THAT(with("/scale_up/efficiency", 1.5),
                testing::HasSubstr("/scale_up/efficiency is 1.5"));
    EXPECT_THAT(with("/gpus_per_node", 1000000000), testing::HasSubstr("/gpus_per_node"));
    EXPECT_THAT(with("/topology/scale_out", Json{{"ring", Json::object()}}),
                testing::HasSubstr("rail_fat_tree"));
    EXPECT_THAT(with("/topology/scale_up/nv_switch/gpus_per_domain", 12),
                testing::HasSubstr("multiple of gpus_per_node"));
    EXPECT_THAT(with("/colour", "red"), testing::HasSubstr("colour"));
    for (const char* link : {"/scale_up", "/scale_out"}) {
        for (const char* rate : {"0 GB/s", "1e30 GB/s", "1 B/s", "-5 GB/s", "nan GB/s"})
            EXPECT_THAT(with(link + std::string("/bandwidth"), rate),
                        testing::HasSubstr(link + std::string("/bandwidth is \"") + rate))
                << rate;
        for (const char* time : {"-1 us", "3 h", "nan s"})
            EXPECT_THAT(with(link + std::string("/latency"), time),
                        testing::HasSubstr(link + std::string("/latency is \"") + time))
                << time;
    }
    EXPECT_THAT(with("/gpu/memory_bandwidth", "1e30 GB/s"),
                testing::HasSubstr("from 1 kB/s to 1 PB/s"));
}

TEST(Import, NcclDumpGivesLinksNicsAndTheGpu) {
    // 5 + 5 + 4 + 4 = 18 links of 25 GB/s to the switches; one NIC of 400 Gb/s a GPU; device 0x2335
    // is an H200.
    const auto cluster = import_cluster(sample("nccl-topo-4gpu-nvswitch.xml"), {std::nullopt, 2});
    EXPECT_EQ(cluster.gpu.name, "h200-sxm");
    EXPECT_EQ(cluster.gpus_per_node, 4);
    EXPECT_EQ(cluster.num_nodes, 2);
    EXPECT_EQ(cluster.scale_up.bandwidth, 450_GBps);
    EXPECT_EQ(cluster.scale_out.bandwidth, 50_GBps);
    EXPECT_EQ(std::get<RailFatTree>(std::get<Fabric>(cluster.topology).scale_out).num_nics, 4);
}

TEST(Import, NcclTemplateIsReadByPciClassAndSaysWhatItAssumed) {
    const auto cluster = import_cluster(sample("nccl-topo-template-no-gpu-tags.xml"));
    EXPECT_EQ(num_gpus(cluster), 1);
    EXPECT_EQ(cluster.scale_out.bandwidth, 50_GBps);
    EXPECT_GE(cluster.assumed.size(), 3u);
    EXPECT_EQ(
        import_cluster(sample("nccl-topo-template-no-gpu-tags.xml"), {"h200-sxm", {}}).gpu.name,
        "h200-sxm");
}

TEST(Import, TopoMatrixReadsAlsoWithoutItsTabs) {
    const auto cluster = import_cluster(sample("nvidia-smi-topo-h100-8nic.txt"));
    EXPECT_EQ(cluster.gpus_per_node, 8);
    EXPECT_EQ(std::get<NvSwitch>(std::get<Fabric>(cluster.topology).scale_up).gpus_per_domain, 8);
    std::ifstream in(sample("nvidia-smi-topo-h100-8nic.txt"));
    std::string text((std::istreambuf_iterator<char>(in)), {});
    std::replace(text.begin(), text.end(), '\t', ' ');
    const TextFile pasted("$ nvidia-smi topo -m\n\x1b[4m" + text);
    auto again = import_cluster(pasted.path);
    again.name = cluster.name;
    again.source = cluster.source;
    EXPECT_EQ(to_json(again), to_json(cluster));
}

TEST(Import, CubeMeshIsRecognisedFromItsMatrix) {
    // The eight rows of a DGX-1V.
    const TextFile file(
        "     GPU0 GPU1 GPU2 GPU3 GPU4 GPU5 GPU6 GPU7 CPU Affinity\n"
        "GPU0 X NV1 NV1 NV2 NV2 SYS SYS SYS 0-19\nGPU1 NV1 X NV2 NV1 SYS NV2 SYS SYS 0-19\nGPU2 "
        "NV1 NV2 X NV2 SYS SYS NV1 SYS 0-19\n"
        "GPU3 NV2 NV1 NV2 X SYS SYS SYS NV1 0-19\nGPU4 NV2 SYS SYS SYS X NV1 NV1 NV2 20-39\nGPU5 "
        "SYS NV2 SYS SYS NV1 X NV2 NV1 20-39\n"
        "GPU6 SYS SYS NV1 SYS NV1 NV2 X NV2 20-39\nGPU7 SYS SYS SYS NV1 NV2 NV1 NV2 X 20-39\n");
    const auto cluster = import_cluster(file.path);
    EXPECT_TRUE(std::holds_alternative<CubeMesh>(std::get<Fabric>(cluster.topology).scale_up));
    EXPECT_EQ(cluster.gpu.name, "v100-sxm2-32");
}

TEST(Import, DirectLinksBecomeAGraphAndPairsWithoutOneGoThroughANeighbour) {
    // A square of four GPUs, NV2 along its sides: opposite corners are two hops apart; two nodes
    // joined by their NICs.
    const TextFile file(
        "GPU0 GPU1 GPU2 GPU3 NIC0\nGPU0 X NV2 SYS NV2 PIX\nGPU1 NV2 X NV2 SYS SYS\nGPU2 SYS NV2 X "
        "NV2 SYS\nGPU3 NV2 SYS NV2 X SYS\nNIC0 PIX SYS SYS SYS X\n");
    const auto cluster = import_cluster(file.path, {"v100-sxm2-32", 2});
    const LinkGraph graph = build_link_graph(cluster);
    EXPECT_EQ(graph.num_gpus, 8);
    EXPECT_EQ(graph.route(0, 1).links.size(), 1u);
    EXPECT_EQ(graph.route(0, 2).links.size(), 2u);
    EXPECT_EQ(graph.route(0, 4).level, Level::scale_out);
    const Json json = to_json(cluster);
    EXPECT_EQ(to_json(cluster_from_json(JsonReader::from_value(json, "g"))), json);
}

TEST(Import, SimGridFatTreeKeepsItsShape) {
    const auto cluster = import_cluster(sample("simgrid-fat-tree-64.xml"));
    EXPECT_EQ(num_gpus(cluster), 64);
    EXPECT_EQ(cluster.scale_out.bandwidth, 50_GBps);
    EXPECT_EQ(cluster.gpu.peak.at(Precision::bf16).value, 400e12);
    const auto& tree = std::get<FatTree>(std::get<Fabric>(cluster.topology).scale_out);
    EXPECT_EQ(tree.down, (std::vector<int>{8, 8}));
    EXPECT_EQ(tree.up, (std::vector<int>{1, 8}));
    // Full bisection: 32 hosts of 50 GB/s on either side.
    EXPECT_TRUE(close(bisection_bandwidth(build_link_graph(cluster)).value, 32 * 50e9));
}

TEST(Import, WhatWeExportReadsBackWithTheSameRoutes) {
    for (const auto& cluster : {plain_cluster(2, 4, 3_us), load_cluster("dgx1-v100:2")}) {
        const TextFile file(to_simgrid_xml(cluster));
        const LinkGraph before = build_link_graph(cluster),
                        after = build_link_graph(import_cluster(file.path));
        ASSERT_EQ(before.num_gpus, after.num_gpus);
        ASSERT_EQ(before.links.size(), after.links.size());
        for (int a = 0; a < before.num_gpus; ++a)
            for (int b = 0; b < before.num_gpus; ++b) {
                if (a == b) continue;
                const Route there = before.route(a, b), again = after.route(a, b);
                ASSERT_EQ(there.links, again.links) << a << " " << b;
                ASSERT_TRUE(close(there.latency.value, again.latency.value)) << a << " " << b;
            }
        for (std::size_t i = 0; i < before.links.size(); ++i)
            ASSERT_EQ(before.links[i].bandwidth, after.links[i].bandwidth);
    }
    EXPECT_THROW(to_simgrid_xml(load_cluster("dgx-h100:128")), InputError);
}

TEST(Import, SimGridZonesTorusAndDragonflyAreRouted) {
    const TextFile star(
        "<platform version=\"4.1\"><zone id=\"w\" routing=\"Full\"><host id=\"a\" "
        "speed=\"1Gf\"/><host id=\"b\" speed=\"1Gf\"/><host id=\"c\" speed=\"1Gf\"/>"
        "<link id=\"l\" bandwidth=\"1GBps\" latency=\"1us\"/><link id=\"m\" bandwidth=\"8Gbps\" "
        "latency=\"2us\" sharing_policy=\"SPLITDUPLEX\"/>"
        "<route src=\"a\" dst=\"b\"><link_ctn id=\"l\"/></route><route src=\"a\" "
        "dst=\"c\"><link_ctn id=\"l\"/><link_ctn id=\"m\" direction=\"UP\"/></route>"
        "<route src=\"b\" dst=\"c\"><link_ctn id=\"m\" "
        "direction=\"UP\"/></route></zone></platform>");
    const LinkGraph graph = build_link_graph(import_cluster(star.path));
    EXPECT_EQ(graph.route(0, 1).links, graph.route(1, 0).links);  // shared both ways
    EXPECT_NE(graph.route(1, 2).links, graph.route(2, 1).links);  // split in two
    EXPECT_EQ(graph.route(0, 2).links.size(), 2u);
    EXPECT_EQ(graph.links[1].bandwidth, 1_GBps);
    const std::string head =
        "<platform version=\"4.1\"><cluster id=\"t\" prefix=\"n\" suffix=\"\" speed=\"1Gf\" "
        "bw=\"1GBps\" lat=\"1us\" ";
    const TextFile torus(
        head + "radical=\"0-11\" topology=\"TORUS\" topo_parameters=\"4,3\"/></platform>");
    EXPECT_EQ(hops(build_link_graph(import_cluster(torus.path))).most, 3);  // 4/2 + 3/2
    const TextFile fly(
        head +
        "radical=\"0-23\" topology=\"DRAGONFLY\" topo_parameters=\"3,1;2,1;2,1;2\"/></platform>");
    EXPECT_LE(hops(build_link_graph(import_cluster(fly.path))).most, 8);
}

TEST(Import, HostileFilesGiveOneMessage) {
    std::ifstream in(sample("nccl-topo-4gpu-nvswitch.xml"));
    const std::string good((std::istreambuf_iterator<char>(in)), {});
    std::string deep, bomb = "<!DOCTYPE s [<!ENTITY a \"aaaaaaaaaa\">";
    for (int i = 0; i < 100000; ++i) deep += "<a>";
    for (int i = 0; i < 9; ++i)
        bomb += std::string("<!ENTITY ") + static_cast<char>('b' + i) + " \"" + [&] {
            std::string s;
            for (int k = 0; k < 10; ++k) s += std::string("&") + static_cast<char>('a' + i) + ";";
            return s;
        }() + "\">";
    bomb += "]><system x=\"&j;\"/>";
    const std::string cluster =
        "<platform version=\"4.1\"><cluster id=\"c\" prefix=\"n\" suffix=\"\" speed=\"1Gf\" "
        "bw=\"1GBps\" lat=\"1us\" ";
    const std::vector<std::string> files = {
        "",
        "hello",
        "<",
        good.substr(0, good.size() / 2),
        deep,
        bomb,
        "<topology version=\"2.0\"><object type=\"Machine\"/></topology>",
        "<html/>",
        "<system version=\"1\"/>",
        "<platform version=\"3\"/>",
        "<platform version=\"4.1\"/>",
        cluster + "radical=\"0-99999999\"/></platform>",
        "<platform version=\"4.1\"><cluster id=\"c\" prefix=\"n\" suffix=\"\" speed=\"1Gf\" "
        "bw=\"1e30GBps\" lat=\"1us\" radical=\"0-3\"/></platform>",
        "<platform version=\"4.1\"><cluster id=\"c\" prefix=\"n\" suffix=\"\" speed=\"1Gf\" "
        "bw=\"1GBps\" lat=\"1w\" radical=\"0-3\"/></platform>",
        cluster + "radical=\"5-1\"/></platform>",
        cluster +
            "radical=\"0-7\" topology=\"FAT_TREE\" topo_parameters=\"2;8,8;1,8;1,1\"/></platform>",
        cluster + "radical=\"0-7\" topology=\"FAT_TREE\" topo_parameters=\";;;\"/></platform>",
        cluster + "radical=\"0-7\" topology=\"TORUS\" topo_parameters=\"-2,4\"/></platform>",
        "<platform version=\"4.1\"><zone id=\"z\" routing=\"Full\"><host id=\"a\" "
        "speed=\"1Gf\"/><host id=\"b\" speed=\"1Gf\"/></zone></platform>",
        "<platform version=\"4.1\"><zone id=\"z\" routing=\"Full\"><host id=\"a\" "
        "speed=\"fast\"/></zone></platform>",
        "GPU0 GPU1\nGPU0 X NV2\n",
        "GPU0 GPU1\nGPU0 X NV2\nGPU1 NV3 X\n",
        "GPU0 GPU1\nGPU0 X FOO\nGPU1 X X\n",
        "GPU0",
        "{\"name\": 1}",
        "{}",
        std::string("\0\0\0", 3)};
    for (const auto& text : files) {
        const TextFile file(text);
        const auto message = message_of([&] { import_cluster(file.path); });
        EXPECT_NE(message, "(nothing thrown)") << text.substr(0, 80);
        EXPECT_THAT(message, testing::HasSubstr("moeplan_cluster_")) << message;
        EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 0) << message;
    }
    const TextFile hwloc(files[6]);
    EXPECT_THAT(message_of([&] { import_cluster(hwloc.path); }), testing::HasSubstr("hwloc"));
    EXPECT_THROW(import_cluster("/nonexistent"), InputError);
    EXPECT_THROW(import_cluster("/"), InputError);
}

TEST(Topology, BisectionOfDescribedFabrics) {
    // One NVSwitch node: 4 ports of 450 GB/s a side. Four nodes of 8 NICs: 16 NICs of 50 GB/s.
    // Oversubscribed 4:1 with 2 nodes a leaf: a quarter.
    EXPECT_TRUE(close(bisection_bandwidth(build_link_graph(plain_cluster(1))).value, 4 * 450e9));
    EXPECT_TRUE(close(bisection_bandwidth(build_link_graph(plain_cluster(4))).value, 16 * 50e9));
    auto tapered = plain_cluster(4);
    std::get<Fabric>(tapered.topology).scale_out = RailFatTree{8, 4, true, 2};
    EXPECT_TRUE(close(bisection_bandwidth(build_link_graph(tapered)).value, 16 * 50e9 / 4));
    // The cube mesh halved between GPUs 0…3 and 4…7: links 0-4 and 1-5 are double, 2-6 and 3-7
    // single: 6 of 25 GB/s.
    auto dgx1 = load_cluster("dgx1-v100");
    dgx1.scale_up.efficiency = 1;
    EXPECT_TRUE(close(bisection_bandwidth(build_link_graph(dgx1)).value, 6 * 25e9));
}

TEST(Topology, RoutesOfTheRailFabric) {
    const LinkGraph graph = build_link_graph(plain_cluster(2, 8, 2_us));
    const auto names = [&](int a, int b) {
        std::vector<std::string> out;
        for (const auto link : graph.route(a, b).links) out.push_back(graph.links[link].name);
        return out;
    };
    using testing::ElementsAre;
    EXPECT_THAT(names(0, 5), ElementsAre("node0/gpu0/nvlink-up", "node0/gpu5/nvlink-down"));
    EXPECT_THAT(names(3, 11), ElementsAre("node0/nic3/up", "node1/nic3/down"));
    EXPECT_THAT(names(0, 13), ElementsAre("node0/gpu0/nvlink-up", "node0/gpu5/nvlink-down",
                                          "node0/nic5/up", "node1/nic5/down"));
    EXPECT_EQ(graph.relay(0, 13), 5);
    EXPECT_EQ(graph.relay(3, 11), -1);
    EXPECT_TRUE(close(graph.route(0, 5).latency.value, 2e-6));
    EXPECT_TRUE(close(graph.route(0, 13).latency.value, 4e-6));
}

/// Links on the way and latency, pair by pair: α_up = 2 us inside, α_out = 5 us outside.
TEST(Topology, HopsOfEveryFabricByHand) {
    const auto expect = [](const ClusterSpec& cluster, int fewest, int most, double mean,
                           double longest_us, const char* what) {
        const Hops way = hops(build_link_graph(cluster));
        EXPECT_EQ(way.fewest, fewest) << what;
        EXPECT_EQ(way.most, most) << what;
        EXPECT_TRUE(close(way.mean, mean)) << what << " " << way.mean << " " << mean;
        EXPECT_TRUE(close(way.longest_latency.value, longest_us * 1e-6)) << what;
    };
    const auto with = [](int nodes, int gpus, RailFatTree rails, int domain = 0) {
        auto cluster = plain_cluster(nodes, gpus, 2_us);
        cluster.scale_out.latency = 5_us;
        cluster.topology = Fabric{NvSwitch{domain > 0 ? domain : gpus}, rails};
        return cluster;
    };
    // A switch: up and down, whoever talks to whom.
    expect(with(1, 8, {8}), 2, 2, 2, 2, "one NVSwitch node");
    expect(with(1, 16, {8}), 2, 2, 2, 2, "DGX-2's sixteen");
    // Two nodes of 4 on one leaf a rail: of 7 others 3 are inside (2 links), 1 on the same rail
    // (NIC up, NIC down), 3 on other rails: by NVLink to the relay, then its rail, 4 links.
    expect(with(2, 4, {4}), 2, 4, (3 * 2 + 1 * 2 + 3 * 4) / 7.0, 2 + 5, "rails with PXN");
    // Without PXN those 3 change rails in the spine: NIC up, spine up, spine down, NIC down.
    expect(with(2, 4, {4, 1, false}), 2, 4, (3 * 2 + 1 * 2 + 3 * 4) / 7.0, 5, "rails without PXN");
    // Four nodes, two a leaf: 3 inside; the leaf's other node 2 and 3 × 4; the 2 nodes beyond: same
    // rail over the spine 4, other rails 2 + 4. Mean over 15.
    expect(with(4, 4, {4, 1, true, 2}), 2, 6,
           (3 * 2 + 2 + 3 * 4 + 2 * (4 + 3 * 6)) / 15.0, 2 + 5, "two leaves a rail");
    // 4 GPUs share 2 NICs: pairs {0, 1} and {2, 3}. From GPU 0: 3 inside; 2 of the other node on
    // its rail at 2 links, 2 on the other at 4.
    expect(with(2, 4, {2}), 2, 4, (3 * 2 + 2 * 2 + 2 * 4) / 7.0, 2 + 5, "fewer NICs than GPUs");
    // NVL72: 18 nodes of 4 are one domain, so no pair is further than the switch.
    expect(with(18, 4, {4}, 72), 2, 2, 2, 2, "one NVL72 rack");
    // A fat tree of 2 × 4 ports: 1 other under the same switch (2 links), 6 over the top (4). Both
    // halves' domains are single GPUs here.
    auto tree = with(8, 1, {1}, 1);
    std::get<Fabric>(tree.topology).scale_out = FatTree{{2, 4}, {1, 1}, {}};
    expect(tree, 2, 4, (1 * 2 + 6 * 4) / 7.0, 5, "fat tree");
    // The cube mesh: from each GPU 4 others have a link, 3 are two links away.
    auto mesh = plain_cluster(1, 8, 2_us);
    mesh.topology = Fabric{CubeMesh{}, RailFatTree{4}};
    expect(mesh, 1, 2, (4 * 1 + 3 * 2) / 7.0, 4, "DGX-1");
}

TEST(Topology, BisectionWithSharedNicsRacksAndTaperedTrees) {
    // Four nodes of 8 with 4 NICs of 50 GB/s each: 2 nodes · 4 NICs a side, 400 GB/s.
    auto shared = plain_cluster(4);
    std::get<Fabric>(shared.topology).scale_out = RailFatTree{4};
    EXPECT_TRUE(close(bisection_bandwidth(build_link_graph(shared)).value, 2 * 4 * 50e9));
    // 16 NICs a node: two a GPU, one port of 100 GB/s.
    std::get<Fabric>(shared.topology).scale_out = RailFatTree{16};
    EXPECT_TRUE(close(bisection_bandwidth(build_link_graph(shared)).value, 2 * 16 * 50e9));
    // One NVL72 rack: 36 ports of 450 GB/s a side. Two racks: the 72 NICs of one of them.
    auto rack = plain_cluster(18, 4);
    rack.topology = Fabric{NvSwitch{72}, RailFatTree{4}};
    EXPECT_TRUE(close(bisection_bandwidth(build_link_graph(rack)).value, 36 * 450e9));
    rack.num_nodes = 36;
    EXPECT_TRUE(close(bisection_bandwidth(build_link_graph(rack)).value, 72 * 50e9));
    // DGX-2: 8 of 16 GPUs a side.
    EXPECT_TRUE(close(bisection_bandwidth(build_link_graph(plain_cluster(1, 16))).value, 8 * 450e9));
    // A fat tree of 4 × 4 ports whose switches have 2 uplinks for 4 ports: two switches a side send
    // 2 · 2 · 50 GB/s.
    auto tapered = plain_cluster(16, 1);
    tapered.topology = Fabric{NvSwitch{1}, FatTree{{4, 4}, {1, 2}, {}}};
    EXPECT_TRUE(close(bisection_bandwidth(build_link_graph(tapered)).value, 2 * 2 * 50e9));
    // Three cables in place of each one.
    std::get<FatTree>(std::get<Fabric>(tapered.topology).scale_out).links = {1, 3};
    EXPECT_TRUE(close(bisection_bandwidth(build_link_graph(tapered)).value,
                      std::min(2 * 2 * 3 * 50e9, 8 * 50e9)));
}

TEST(Topology, TheNicBesideAGpuIsTheOneThatIsStated) {
    // GPUs 0 and 3 use NIC 1, GPU 1 NIC 0, GPU 2 NIC 2; NIC 3 nobody: a count that order could not
    // share out.
    auto cluster = plain_cluster(2, 4);
    auto& rails = std::get<RailFatTree>(std::get<Fabric>(cluster.topology).scale_out);
    rails.num_nics = 3;
    rails.nic_of_gpu = {1, 0, 2, 1};
    const LinkGraph graph = build_link_graph(cluster);
    EXPECT_EQ(graph.rail, (std::vector<int>{1, 0, 2, 1, 1, 0, 2, 1}));
    EXPECT_EQ(graph.links[graph.route(0, 4).links[0]].name, "node0/nic1/up");
    EXPECT_EQ(graph.relay(0, 7), -1);  // GPUs 0 and 3 share a rail
    EXPECT_EQ(graph.relay(0, 5), 1);
    const Json json = to_json(cluster);
    EXPECT_EQ(to_json(cluster_from_json(JsonReader::from_value(json, "c"))), json);
    const auto with = [&](const Json& nics) {
        Json changed = json;
        changed["topology"]["scale_out"]["rail_fat_tree"]["nic_of_gpu"] = nics;
        return message_of([&] { cluster_from_json(JsonReader::from_value(changed, "c.json")); });
    };
    EXPECT_THAT(with(Json{0, 1, 2}), testing::HasSubstr("nic_of_gpu"));
    EXPECT_THAT(with(Json{0, 1, 2, 3}), testing::HasSubstr("/nic_of_gpu/3 is 3"));
    EXPECT_THAT(with(Json{0, 1, 2, -1}), testing::HasSubstr("/nic_of_gpu/3 is -1"));
}

TEST(Import, NicsAreThoseNearestToEachGpu) {
    // Four GPUs; NIC1 is on the PCIe switch of GPU0, NIC0 on that of GPU1; GPU2 and GPU3 share NIC2.
    const TextFile matrix(
        "GPU0 GPU1 GPU2 GPU3 NIC0 NIC1 NIC2\n"
        "GPU0 X NV18 NV18 NV18 NODE PIX SYS\nGPU1 NV18 X NV18 NV18 PXB NODE SYS\n"
        "GPU2 NV18 NV18 X NV18 SYS SYS PIX\nGPU3 NV18 NV18 NV18 X SYS SYS PXB\n");
    const auto cluster = import_cluster(matrix.path);
    const auto& rails = std::get<RailFatTree>(std::get<Fabric>(cluster.topology).scale_out);
    EXPECT_EQ(rails.num_nics, 3);
    EXPECT_EQ(rails.nic_of_gpu, (std::vector<int>{1, 0, 2, 2}));
    // All equally near: in order, evenly, and nothing to state.
    EXPECT_TRUE(nearest_nics({{1, 1}, {1, 1}, {1, 1}, {1, 1}}).empty());
    // Two sockets of two GPUs and a NIC each, the NICs listed the other way round.
    EXPECT_EQ(nearest_nics({{4, 3}, {4, 3}, {3, 4}, {3, 4}}), (std::vector<int>{1, 1, 0, 0}));
    // The dump: each of its four NICs hangs beside its GPU, in order.
    const auto dump = import_cluster(sample("nccl-topo-4gpu-nvswitch.xml"));
    EXPECT_TRUE(std::get<RailFatTree>(std::get<Fabric>(dump.topology).scale_out).nic_of_gpu.empty());
}

std::map<int, int> rows_of(const Drawing& drawing) {
    std::map<int, int> rows;
    for (const auto& vertex : drawing.vertices) ++rows[vertex.row];
    return rows;
}

TEST(Drawing, JoinsADomainBelowItsGpusAndNodesAboveThem) {
    // Two nodes of 4 GPUs: two NVSwitches below; eight NICs and four leaves above. Per GPU a line
    // to the switch and one to its NIC, per NIC one to its leaf.
    const Drawing two = drawing_of(build_link_graph(plain_cluster(2, 4)));
    EXPECT_EQ(rows_of(two), (std::map<int, int>{{-1, 2}, {0, 8}, {1, 8}, {2, 4}}));
    EXPECT_EQ(two.lines.size(), 8u + 8 + 8);
    EXPECT_EQ(two.gpus_left_out, 0);
    for (const auto& vertex : two.vertices) {
        const int row = vertex.kind == VertexKind::nv_switch ? -1
                        : vertex.kind == VertexKind::gpu     ? 0
                        : vertex.kind == VertexKind::nic     ? 1
                                                             : 2;
        EXPECT_EQ(vertex.row, row) << vertex.name;
        EXPECT_EQ(vertex.node < 0, vertex.kind == VertexKind::leaf) << vertex.name;
    }
    const Drawing many = drawing_of(build_link_graph(plain_cluster(16)));
    EXPECT_EQ(many.gpus_left_out, 128 - 32);
}

TEST(Drawing, ShowsBothEndsOfWhatIsTooLarge) {
    // Two racks of 72: some of each, with both NVSwitches and the way between them.
    const Drawing racks = drawing_of(build_link_graph(load_cluster("gb200-nvl72:2")));
    int switches = 0, nics = 0;
    for (const auto& vertex : racks.vertices) {
        switches += vertex.kind == VertexKind::nv_switch;
        nics += vertex.kind == VertexKind::nic;
    }
    EXPECT_EQ(switches, 2);
    EXPECT_GT(nics, 0);
    EXPECT_EQ(racks.gpus_left_out, 2 * 72 - 32);
}

TEST(Drawing, EveryVertexHasAKindAndARow) {
    std::vector<std::pair<std::string, ClusterSpec>> clusters;
    for (const auto& name : shipped_clusters()) {
        const auto cluster = load_cluster(name);
        clusters.emplace_back(name, resized(cluster, 2 * nodes_per_rack(cluster)));
    }
    for (const char* file : {"nccl-topo-4gpu-nvswitch.xml", "nccl-topo-template-no-gpu-tags.xml",
                             "nvidia-smi-topo-h100-8nic.txt", "simgrid-fat-tree-64.xml"})
        clusters.emplace_back(file, import_cluster(sample(file)));
    for (const auto& [name, cluster] : clusters) {
        const Drawing drawing = drawing_of(build_link_graph(cluster));
        EXPECT_GE(drawing.vertices.size(), 1u) << name;
        for (const auto& vertex : drawing.vertices) {
            EXPECT_EQ(vertex.row == 0, vertex.kind == VertexKind::gpu) << name << vertex.name;
            EXPECT_EQ(vertex.row < 0, vertex.kind == VertexKind::nv_switch) << name << vertex.name;
            EXPECT_NE(name_of(vertex.kind), "unknown") << name << vertex.name;
        }
    }
}

TEST(Topology, GpusThatShareANicAlsoShareItsRate) {
    // 8 GPUs, 4 NICs: GPUs 0 and 1 leave by NIC 0.
    auto cluster = plain_cluster(2);
    std::get<Fabric>(cluster.topology).scale_out = RailFatTree{4};
    const LinkGraph graph = build_link_graph(cluster);
    EXPECT_EQ(graph.rail[0], 0);
    EXPECT_EQ(graph.rail[1], 0);
    EXPECT_EQ(graph.rail[7], 3);
    EXPECT_EQ(graph.links[graph.route(0, 8).links[0]].name,
              graph.links[graph.route(1, 9).links[0]].name);
}

}  // namespace
}  // namespace moeplan
