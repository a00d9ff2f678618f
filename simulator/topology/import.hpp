#pragma once
/// Clusters from the files people have, and to SimGrid's.

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "simulator/cluster_spec.hpp"

namespace moeplan {

/// What a file of one node cannot say.
struct ImportWords {
    std::optional<std::string> gpu;       ///< a shipped GPU; else recognised, or assumed and said so
    std::optional<int> num_nodes;         ///< else 1, or what the file holds
};

/// Own JSON, SimGrid platform XML, NCCL topology XML (dump or template) or `nvidia-smi topo -m` text: told by content.
/// What had to be taken for granted stands in `assumed`.
/// @throws InputError with file and line
ClusterSpec import_cluster(const std::filesystem::path& file, const ImportWords& words = {});

struct XmlElement;
ClusterSpec import_nccl_topology(const XmlElement& system, const std::string& file, const ImportWords& words);
ClusterSpec import_simgrid_platform(const XmlElement& platform, const std::string& file, const ImportWords& words);
ClusterSpec import_topo_matrix(std::string_view text, const std::string& file, const ImportWords& words);

/// A node as its links show it, before GPU and cluster are known.
struct NodeShape {
    int num_gpus = 0;
    std::vector<std::vector<int>> nvlinks;   ///< [num_gpus, num_gpus] direct links
    int links_to_switch = 0;                 ///< of each GPU
    int num_nics = 0;
    std::optional<BytesPerSecond> nvlink_rate, nic_rate;   ///< of all links of a GPU to the switch, or of one direct link; of one NIC
    int gpus_per_domain = 0;                 ///< 0: the node
    /// [num_gpus, num_nics] how far a NIC is from a GPU, in any measure; empty: not known.
    std::vector<std::vector<int>> nic_distance;
};
/// The nearest NIC of every GPU, as many GPUs to each of equally near ones. Empty if that is what NICs in order are: GPU g
/// beside NIC g·nics/gpus.
std::vector<int> nearest_nics(const std::vector<std::vector<int>>& distance);
/// The cluster of `num_nodes` such nodes; datasheet values of `gpu`'s shipped system where the shape is silent.
ClusterSpec cluster_of_nodes(const NodeShape& node, const std::string& gpu, int num_nodes, std::vector<std::string> assumed);

/// Platform XML version 4.1 with every link and every route stated. @throws InputError above 512 GPUs
std::string to_simgrid_xml(const ClusterSpec& cluster);

}  // namespace moeplan
