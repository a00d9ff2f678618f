#pragma once
/// What the model runs on: GPUs, the links between them, and how they are joined.

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/json.hpp"
#include "core/number_format.hpp"
#include "core/units.hpp"

namespace moeplan {

struct GpuSpec {
    std::string name;                          ///< id of the shipped profile that fits: "h100-sxm"
    std::map<Precision, FlopsPerSecond> peak;  ///< dense, no structured sparsity
    Bytes memory;
    BytesPerSecond memory_bandwidth;
    int num_sms = 0;
    Bytes l2;
    bool operator==(const GpuSpec&) const = default;
};
/// What a link or a memory can be: beyond, a unit was mistaken.
constexpr bool is_a_rate(BytesPerSecond rate) { return rate.value >= 1e3 && rate.value <= 1e15; }
constexpr bool is_a_latency(Seconds time) { return time.value >= 0 && time.value <= 10; }
inline constexpr const char* kRatesOfLinks = "a rate from 1 kB/s to 1 PB/s";
inline constexpr const char* kLatenciesOfLinks = "a time from 0 to 10 s";

struct LinkSpec {
    Seconds latency;           ///< of an empty message, one way
    BytesPerSecond bandwidth;  ///< datasheet rate of one direction: of one GPU's ports (scale_up),
                               ///< of one NIC (scale_out)
    double efficiency = 1;     ///< share of that rate which large messages reach; stated with its
                               ///< source in the cluster file
    BytesPerSecond usable() const { return bandwidth * efficiency; }
    bool operator==(const LinkSpec&) const = default;
};
struct NvSwitch {
    int gpus_per_domain = 8;
    bool operator==(const NvSwitch&) const = default;
};  ///< 72: a domain of many nodes
struct CubeMesh {
    bool operator==(const CubeMesh&) const = default;
};  ///< DGX-1
struct RailFatTree {
    int num_nics = 8;             ///< of one node
    double oversubscription = 1;  ///< leaf uplinks carry 1/oversubscription of the leaf's downlinks
    bool pxn = true;              ///< other rails are reached over NVLink and the peer's NIC
    int nodes_per_leaf = 0;       ///< 0: one leaf a rail holds all nodes
    std::vector<int> nic_of_gpu;  ///< [gpus_per_node] the NIC, and so the rail, beside each GPU;
                                  ///< empty: in order, evenly
    bool operator==(const RailFatTree&) const = default;
};
/// Extended generalised fat tree: level l switches have down[l] children, whatever is below has
/// up[l] parents, each over links[l] parallel cables of scale_out (empty: 1). Every GPU is a leaf
/// port; there are product(down) of them.
struct FatTree {
    std::vector<int> down, up, links;
    bool operator==(const FatTree&) const = default;
};
struct Fabric {
    std::variant<NvSwitch, CubeMesh> scale_up;
    std::variant<RailFatTree, FatTree> scale_out;
    bool operator==(const Fabric&) const = default;
};
struct LinkGraph;  ///< links and routes: simulator/link_graph.hpp
using Topology =
    std::variant<Fabric, std::shared_ptr<const LinkGraph>>;  ///< described, or imported whole

struct ClusterSpec {
    std::string name;
    int num_nodes = 1, gpus_per_node = 8;
    GpuSpec gpu;
    LinkSpec scale_up, scale_out;
    Topology topology = Fabric{};
    std::string source;
    Seconds collective_launch;  ///< of one collective: kernel launch and the handshake before its
                                ///< first byte
    bool in_switch_reduction = false;  ///< the scale-up switch reduces and multicasts (NVLS)
    /// Share of the usable rate that one collective or algorithm reaches at large sizes, by its
    /// name ("nvls", "all_to_all"); absent: 1. A profile's measured curve of that collective takes
    /// its place.
    std::map<std::string, double> collective_efficiency;
    std::vector<std::string> assumed;  ///< what an importer had to take for granted
};
int num_gpus(const ClusterSpec&);
int gpus_per_domain(
    const ClusterSpec&);  ///< of one NVLink domain, as described (a last domain may hold fewer)
int nodes_per_rack(const ClusterSpec&);  ///< 18 for NVL72; 1 where a domain is a node
/// The same cluster with another number of nodes. @throws InputError for an imported graph, whose
/// size is its own
ClusterSpec resized(ClusterSpec, int num_nodes);

ClusterSpec cluster_from_json(const JsonReader&);  ///< @throws InputError
Json to_json(const ClusterSpec&);
/// A shipped name with an optional size ("dgx-h100:16" nodes, "gb200-nvl72:2" racks), a file of any
/// kind we read, or "localhost".
ClusterSpec load_cluster(const std::string& name_or_file);
/// `--gpu H --nodes N --gpus-per-node G [--nics-per-node, --nic-gbps]`.
ClusterSpec make_cluster(const std::string& gpu, int nodes, int gpus_per_node,
                         std::optional<int> nics_per_node, std::optional<double> nic_gbps);
std::vector<std::string> shipped_clusters();
/// This machine as a cluster of CPU ranks: one "GPU" a core, memory shared out; read from /proc
/// alone.
ClusterSpec localhost_cluster();

}  // namespace moeplan
