/// NCCL's topology XML: what NCCL_TOPO_DUMP_FILE writes, and the templates of cloud providers (no <gpu>, no <net>: GPUs and
/// NICs are then told by PCI class). Source of the fields: NCCL's src/graph/xml.cc as its files show them.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "core/errors.hpp"
#include "simulator/topology/import.hpp"
#include "simulator/topology/xml.hpp"

namespace moeplan {
namespace {

/// PCI device → GPU, from the public PCI id list.
const std::map<std::string, std::string> kDevices = {
    {"0x1db1", "v100-sxm2-16"}, {"0x1db5", "v100-sxm2-32"}, {"0x1db8", "v100-sxm3-32"}, {"0x20b0", "a100-sxm-40"}, {"0x20b2", "a100-sxm-80"},
    {"0x2330", "h100-sxm"},     {"0x2324", "h800-sxm"},     {"0x2335", "h200-sxm"},     {"0x2901", "b200-sxm"},    {"0x2941", "gb200"},
    {"0x3182", "b300-sxm"},     {"0x31c2", "gb300"}};
/// Compute capability → the GPU most often behind it.
const std::map<int, std::string> kByCapability = {{70, "v100-sxm2-32"}, {80, "a100-sxm-80"}, {90, "h100-sxm"}, {100, "b200-sxm"}, {103, "b300-sxm"}};

struct Gpu { int sm = 0, to_switch = 0; std::string bus, device; std::map<std::string, int> peers; double pcie = 0; long line = 0; std::vector<int> place; };
struct Nic { double gbits = 0, pcie_gts = 0; std::vector<int> place; };
struct Found {
    std::vector<Gpu> gpus;
    std::vector<Nic> nics;
    std::set<std::string> hosts;
    std::vector<int> place;      // of the element that is read: which child of which child …
};

/// Reads every child, each at its place.
template <class Read>
void each_child(const XmlElement& at, Found& found, const Read& read) {
    for (std::size_t i = 0; i < at.children.size(); ++i) {
        found.place.push_back(static_cast<int>(i));
        read(at.children[i]);
        found.place.pop_back();
    }
}

/// GPU, NIC and NVSwitch by the upper two bytes of the PCI class.
bool is_class(const XmlElement& pci, std::string_view prefix) { return pci.get("class").compare(0, prefix.size(), prefix) == 0; }

std::optional<double> leading_number(const std::string& text) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || !std::isfinite(value)) return std::nullopt;
    return value;
}

double number(const XmlElement& element, const std::string& key, const std::string& file, double least, double most) {
    const auto value = leading_number(element.get(key));
    if (!value || *value < least || *value > most)
        throw InputError(file, fmt::format("line {}", element.line), fmt::format("{}=\"{}\"", key, element.get(key)), fmt::format("a number {} … {}", least, most));
    return *value;
}

/// "32.0 GT/s PCIe" × 16 lanes, 128 of 130 bits payload: GB/s of one direction.
double pcie_rate(const XmlElement& pci) {
    const auto speed = leading_number(pci.get("link_speed"));
    const auto width = leading_number(pci.get("link_width"));
    return speed && width ? *speed * *width * 128 / 130 / 8 : 0;
}

void walk(const XmlElement& at, const std::string& file, Found& found);

void walk_pci(const XmlElement& pci, const std::string& file, Found& found) {
    const XmlElement* gpu = nullptr;
    bool nic = false;
    for (const auto& child : pci.children) {
        if (child.name == "gpu") gpu = &child;
        if (child.name == "nic") nic = true;
    }
    if (gpu || is_class(pci, "0x0302") || is_class(pci, "0x0300")) {
        Gpu out;
        out.bus = pci.get("busid");
        out.device = pci.get("device");
        out.pcie = pcie_rate(pci);
        out.line = pci.line;
        out.place = found.place;
        if (gpu) {
            if (gpu->has("sm")) out.sm = static_cast<int>(number(*gpu, "sm", file, 30, 999));
            for (const auto& link : gpu->children) {
                if (link.name != "nvlink") continue;
                const int count = static_cast<int>(number(link, "count", file, 1, 64));
                if (link.get("tclass").compare(0, 6, "0x0680") == 0)
                    out.to_switch += count;
                else if (link.get("tclass").compare(0, 4, "0x03") == 0)
                    out.peers[link.get("target")] += count;
            }
        }
        found.gpus.push_back(std::move(out));
    } else if (!nic && (is_class(pci, "0x0207") || is_class(pci, "0x0200"))) {
        found.nics.push_back({0, leading_number(pci.get("link_speed")).value_or(0), found.place});
    }
    each_child(pci, found, [&](const XmlElement& child) { walk(child, file, found); });
}

void walk(const XmlElement& at, const std::string& file, Found& found) {
    if (at.name == "pci") return walk_pci(at, file, found);
    if (at.name == "cpu" && at.has("host_hash")) found.hosts.insert(at.get("host_hash"));
    if (at.name == "net") {
        // Several ports of one NIC are listed one by one.
        found.nics.push_back({at.has("speed") ? number(at, "speed", file, 0, 1e8) / 1e3 : 0, 0, found.place});
        return;
    }
    each_child(at, found, [&](const XmlElement& child) { walk(child, file, found); });
}

std::string gpu_of(const Found& found, const std::string& file, const ImportWords& words, std::vector<std::string>& assumed) {
    if (words.gpu) return *words.gpu;
    const Gpu& first = found.gpus.front();
    for (const Gpu& gpu : found.gpus)
        if (gpu.sm != first.sm || gpu.device != first.device)
            throw InputError(file, fmt::format("line {}", gpu.line), "another kind of GPU than the first", "nodes of equal GPUs");
    if (const auto at = kDevices.find(first.device); at != kDevices.end()) return at->second;
    if (const auto at = kByCapability.find(first.sm); at != kByCapability.end()) {
        assumed.push_back(fmt::format("GPU {} for compute capability {}; --gpu says it otherwise", at->second, first.sm));
        return at->second;
    }
    const std::string guess = first.pcie > 100 ? "b300-sxm" : first.pcie > 40 ? "h100-sxm" : first.pcie > 20 ? "a100-sxm-80" : "v100-sxm2-32";
    assumed.push_back(fmt::format("GPU {} for PCIe of {:.3g} GB/s, the file does not name it; --gpu says it otherwise", guess, first.pcie));
    return guess;
}

}  // namespace

ClusterSpec import_nccl_topology(const XmlElement& system, const std::string& file, const ImportWords& words) {
    Found found;
    each_child(system, found, [&](const XmlElement& child) { walk(child, file, found); });
    if (found.gpus.empty()) throw InputError(file, fmt::format("line {}", system.line), "no GPU", "<pci class=\"0x030200\"> or <gpu> elements");
    const int hosts = std::max<int>(1, static_cast<int>(found.hosts.size()));
    const int gpus = static_cast<int>(found.gpus.size());
    if (gpus > 1024) throw InputError(file, "", fmt::format("{} GPUs", gpus), "at most 1024 in one file");
    if (gpus % hosts != 0) throw InputError(file, "", fmt::format("{} GPUs in {} hosts", gpus, hosts), "as many GPUs in every host");

    std::vector<std::string> assumed;
    const std::string gpu = gpu_of(found, file, words, assumed);
    const Gpu& first = found.gpus.front();
    NodeShape node;
    node.num_gpus = gpus / hosts;
    // Blackwell's NVLink 5 runs at 50 GB/s a link and direction, 2 to 4 at 25, Pascal's first at 20.
    const bool told = first.sm > 0;
    const double per_link = first.sm >= 100 ? 50 : first.sm >= 70 ? 25 : 20;
    bool direct = false;
    for (const Gpu& at : found.gpus) {
        direct |= !at.peers.empty();
        if (at.to_switch != first.to_switch)
            assumed.push_back(fmt::format("GPUs with {} and {} NVLinks to the switch: the fewest count", first.to_switch, at.to_switch));
        node.links_to_switch = node.links_to_switch == 0 ? at.to_switch : std::min(node.links_to_switch, at.to_switch);
    }
    if (node.links_to_switch > 0) {
        node.nvlink_rate = BytesPerSecond{per_link * 1e9 * node.links_to_switch};
        if (hosts > 1) node.gpus_per_domain = gpus;           // one NVLink domain over many hosts
    } else if (direct) {
        std::map<std::string, int> index;
        for (int i = 0; i < node.num_gpus; ++i) index[found.gpus[i].bus] = i;
        node.nvlinks.assign(node.num_gpus, std::vector<int>(node.num_gpus, 0));
        for (int i = 0; i < node.num_gpus; ++i)
            for (const auto& [target, count] : found.gpus[i].peers) {
                const auto at = index.find(target);
                if (at == index.end() || at->second == i)
                    throw InputError(file, fmt::format("line {}", found.gpus[i].line), "an nvlink to " + target, "the busid of another GPU of this host");
                node.nvlinks[i][at->second] += count;
            }
        node.nvlink_rate = BytesPerSecond{per_link * 1e9};
    } else if (told && first.pcie > 0) {
        node.nvlink_rate = BytesPerSecond{first.pcie * 1e9};
        assumed.push_back(fmt::format("no NVLink: GPUs talk over PCIe, {:.3g} GB/s each way, as a crossbar", first.pcie));
    } else {
        assumed.push_back("NVLinks are not listed: as the shipped system has them");
    }
    double most = 0, generation = 0;
    for (const Nic& nic : found.nics) {
        most = std::max(most, nic.gbits);
        generation = std::max(generation, nic.pcie_gts);
    }
    // A slow port beside fast ones is for management.
    std::vector<const Nic*> fast;
    for (const Nic& nic : found.nics)
        if (most == 0 || nic.gbits >= most / 2) fast.push_back(&nic);
    node.num_nics = (static_cast<int>(fast.size()) + hosts - 1) / hosts;
    // A NIC is nearer the more bridges and switches lie above both it and the GPU. (Files of many hosts list them host by host.)
    if (hosts == 1)
        for (const Gpu& at : found.gpus) {
            auto& row = node.nic_distance.emplace_back();
            for (const Nic* nic : fast) {
                const auto [a, b] = std::mismatch(at.place.begin(), at.place.end(), nic->place.begin(), nic->place.end());
                row.push_back(-static_cast<int>(a - at.place.begin()));
            }
        }
    if (most > 0) {
        node.nic_rate = BytesPerSecond{most * 1e9 / 8};
        if (fast.size() < found.nics.size()) assumed.push_back(fmt::format("{} slower ports left out", found.nics.size() - fast.size()));
    } else if (!fast.empty() && generation > 0) {
        const double gbits = generation > 40 ? 800 : generation > 20 ? 400 : generation > 10 ? 200 : 100;
        node.nic_rate = BytesPerSecond{gbits * 1e9 / 8};
        assumed.push_back(fmt::format("NIC rate not listed: {} Gb/s for PCIe of {} GT/s", gbits, generation));
    }
    ClusterSpec cluster = cluster_of_nodes(node, gpu, words.num_nodes.value_or(hosts), std::move(assumed));
    cluster.source = "NCCL topology XML " + file;
    return cluster;
}

}  // namespace moeplan
