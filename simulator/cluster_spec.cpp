#include "simulator/cluster_spec.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <set>
#include <sstream>

#include "core/data_files.hpp"
#include "core/errors.hpp"
#include "core/text.hpp"
#include "simulator/topology/import.hpp"

namespace moeplan {
namespace fs = std::filesystem;
using namespace literals;

int num_gpus(const ClusterSpec& cluster) { return cluster.num_nodes * cluster.gpus_per_node; }

int gpus_per_domain(const ClusterSpec& cluster) {
    if (const auto* fabric = std::get_if<Fabric>(&cluster.topology))
        if (const auto* nv = std::get_if<NvSwitch>(&fabric->scale_up)) return nv->gpus_per_domain;
    return cluster.gpus_per_node;
}

int nodes_per_rack(const ClusterSpec& cluster) {
    return std::max(1, gpus_per_domain(cluster) / cluster.gpus_per_node);
}

ClusterSpec resized(ClusterSpec cluster, int num_nodes) {
    if (num_nodes == cluster.num_nodes) return cluster;
    if (!std::holds_alternative<Fabric>(cluster.topology))
        throw InputError("--cluster", "", std::to_string(num_nodes) + " nodes",
                         fmt::format("{} nodes: {} is an imported graph, whose size is its own",
                                     cluster.num_nodes, cluster.name));
    if (num_nodes < 1 || num_nodes > (1 << 20) / cluster.gpus_per_node)
        throw InputError("--cluster", "", std::to_string(num_nodes) + " nodes",
                         "1 … 1048576 GPUs in all");
    cluster.num_nodes = num_nodes;
    return cluster;
}

namespace {

std::optional<int> whole_number(std::string_view text) {
    int value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || value < 1) return std::nullopt;
    return value;
}

/// dgx-a100 is what people type; the larger memory is the one still sold.
std::string unaliased(const std::string& name) { return name == "dgx-a100" ? "dgx-a100-80" : name; }

std::vector<std::string> lines_of(const std::string& file) {
    std::ifstream in(file);
    std::vector<std::string> out;
    for (std::string line; std::getline(in, line);) out.push_back(line);
    return out;
}

/// Value of the first "key : value" line of a /proc file, or empty.
std::string proc_value(const std::vector<std::string>& lines, std::string_view key) {
    for (const auto& line : lines)
        if (line.compare(0, key.size(), key) == 0)
            if (const auto colon = line.find(':'); colon != std::string::npos)
                return std::string(trim(std::string_view(line).substr(colon + 1)));
    return {};
}

}  // namespace

std::vector<std::string> shipped_clusters() { return shipped_names("specs/clusters"); }

ClusterSpec load_cluster(const std::string& name_or_file) {
    std::error_code error;
    std::string name = name_or_file;
    std::optional<int> size;
    if (!fs::exists(name_or_file, error))
        if (const auto colon = name_or_file.rfind(':'); colon != std::string::npos) {
            const auto text = std::string_view(name_or_file).substr(colon + 1);
            size = whole_number(text);
            if (!size)
                throw InputError("--cluster", "", "\"" + name_or_file + "\"",
                                 "NAME or NAME:N with N = 1, 2, … nodes (racks for NVL72)");
            name = name_or_file.substr(0, colon);
        }
    if (name == "localhost") {
        if (size)
            throw InputError("--cluster", "", "\"" + name_or_file + "\"",
                             "localhost: this machine is one node");
        return localhost_cluster();
    }
    auto cluster = import_cluster(shipped_or_file("--cluster", "specs/clusters", unaliased(name)));
    if (size) {
        if (*size > (1 << 20))
            throw InputError("--cluster", "", "\"" + name_or_file + "\"", "1048576 GPUs at most");
        cluster = resized(cluster, *size * nodes_per_rack(cluster));
    }
    return cluster;
}

ClusterSpec make_cluster(const std::string& gpu, int nodes, int gpus_per_node,
                         std::optional<int> nics_per_node, std::optional<double> nic_gbps) {
    const auto wrong = [](const char* flag, const std::string& value, const std::string& expected) {
        throw InputError(flag, "", value, expected);
    };
    const auto names = shipped_clusters();
    if (std::find(names.begin(), names.end(), unaliased(gpu)) == names.end()) {
        const auto near = nearest_word(gpu, names);
        wrong("--gpu", "\"" + gpu + "\"",
              near.empty() ? "one of " + join(names, ", ")
                           : "a known GPU (\"" + near + "\" perhaps)");
    }
    if (gpus_per_node < 1 || gpus_per_node > 1024)
        wrong("--gpus-per-node", std::to_string(gpus_per_node), "1 … 1024");
    if (nodes < 1 || nodes > (1 << 20) / gpus_per_node)
        wrong("--nodes", std::to_string(nodes), "1 … 1048576 GPUs in all");
    ClusterSpec cluster = load_cluster(gpu);
    const int shipped_per_node = cluster.gpus_per_node;
    auto fabric = std::get<Fabric>(cluster.topology);
    auto rails = std::get<RailFatTree>(fabric.scale_out);
    const bool rack = nodes_per_rack(cluster) > 1;
    cluster.name = fmt::format("{}-{}x{}", gpu, nodes, gpus_per_node);
    cluster.num_nodes = nodes;
    cluster.gpus_per_node = gpus_per_node;
    if (rack && 72 % gpus_per_node == 0) {
        // The domain is the rack, however its GPUs are counted into nodes.
    } else if (std::holds_alternative<CubeMesh>(fabric.scale_up) && gpus_per_node == 8) {
        // DGX-1 as it is.
    } else {
        if (std::holds_alternative<CubeMesh>(fabric.scale_up))
            cluster.assumed.push_back(
                "a node of other than 8 GPUs: a crossbar in place of the cube mesh");
        fabric.scale_up = NvSwitch{gpus_per_node};
    }
    // The shipped share of NICs a GPU, where the user is silent.
    rails.num_nics = std::max(1, rails.num_nics * gpus_per_node / shipped_per_node);
    if (nics_per_node) {
        if (*nics_per_node < 1 || *nics_per_node > 1024)
            wrong("--nics-per-node", std::to_string(*nics_per_node), "1 … 1024");
        rails.num_nics = *nics_per_node;
    }
    if (gpus_per_node % rails.num_nics != 0 && rails.num_nics % gpus_per_node != 0) {
        if (nics_per_node)
            wrong("--nics-per-node", std::to_string(rails.num_nics),
                  fmt::format("a divisor or a multiple of {} GPUs a node", gpus_per_node));
        rails.num_nics = gpus_per_node;
    }
    if (nic_gbps) {
        if (!(*nic_gbps > 0 && *nic_gbps < 1e6))
            wrong("--nic-gbps", fmt::format("{}", *nic_gbps), "Gb/s of one port, above 0");
        cluster.scale_out.bandwidth = BytesPerSecond{*nic_gbps * 1e9 / 8};
    }
    fabric.scale_out = rails;
    cluster.topology = fabric;
    return cluster;
}

ClusterSpec localhost_cluster() {
    const auto cpu = lines_of("/proc/cpuinfo");
    const auto memory = lines_of("/proc/meminfo");
    int cores = 0;
    for (const auto& line : cpu) cores += line.compare(0, 9, "processor") == 0;
    cores = std::max(cores, 1);
    double kib = 0;
    if (const auto total = proc_value(memory, "MemTotal"); !total.empty())
        kib = std::strtod(total.c_str(), nullptr);
    if (!(kib > 0))
        throw EnvironmentError(
            "/proc/meminfo does not say how much memory this machine has; write a cluster file "
            "instead");
    std::set<std::string> flags;
    std::istringstream words(proc_value(cpu, "flags"));
    for (std::string word; words >> word;) flags.insert(word);
    double mhz = std::strtod(proc_value(cpu, "cpu MHz").c_str(), nullptr);
    if (!(mhz > 100)) mhz = 2000;
    // Two fused multiply-adds a cycle on vectors of 16 (AVX-512), 8 (AVX2) or 4 floats; bf16 dot
    // products do twice that.
    const double floats = flags.count("avx512f") ? 16 : flags.count("avx2") ? 8 : 4;
    const double fp32 = mhz * 1e6 * floats * 4;
    const bool bf16 = flags.count("avx512_bf16") || flags.count("amx_bf16");

    ClusterSpec cluster;
    cluster.name = "localhost";
    cluster.num_nodes = 1;
    cluster.gpus_per_node = cores;
    cluster.gpu.name = "cpu";
    cluster.gpu.peak = {{Precision::fp32, FlopsPerSecond{fp32}},
                        {Precision::bf16, FlopsPerSecond{bf16 ? 2 * fp32 : fp32}}};
    cluster.gpu.memory = Bytes{std::floor(kib * 1024 / cores)};
    cluster.gpu.memory_bandwidth = BytesPerSecond{std::max(20e9 / cores, 5e9)};
    cluster.gpu.num_sms = 1;
    cluster.gpu.l2 = Bytes{1 << 20};
    // Shared-memory messages of two MPI ranks, 64 B to 4 MiB: 0.2 us and 4 to 7 GB/s on a desktop
    // core.
    cluster.scale_up = {Seconds{0.5e-6}, BytesPerSecond{5e9}};
    cluster.scale_out = {Seconds{0.5e-6}, BytesPerSecond{5e9}};
    cluster.collective_launch = Seconds{1e-6};
    cluster.topology = Fabric{NvSwitch{cores}, RailFatTree{1}};
    cluster.source = "/proc/cpuinfo, /proc/meminfo";
    cluster.assumed = {
        "memory bandwidth max(20 GB/s shared out, 5 GB/s a core), links 0.5 us and 5 GB/s: profile "
        "this machine for its own"};
    return cluster;
}

}  // namespace moeplan
