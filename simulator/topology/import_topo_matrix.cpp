/// What `nvidia-smi topo -m` prints, also when pasted (tabs lost, colours kept).

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <sstream>

#include "core/errors.hpp"
#include "core/text.hpp"
#include "simulator/topology/import.hpp"

namespace moeplan {
namespace {

std::string without_colours(std::string_view text) {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '\x1b' && i + 1 < text.size() && text[i + 1] == '[') {
            while (i < text.size() && !std::isalpha(static_cast<unsigned char>(text[i]))) ++i;
            continue;
        }
        out.push_back(text[i]);
    }
    return out;
}

std::vector<std::string> words_of(const std::string& line) {
    std::istringstream in(line);
    std::vector<std::string> out;
    for (std::string word; in >> word;) out.push_back(word);
    return out;
}

bool is_gpu(const std::string& word) { return word.size() > 3 && word.compare(0, 3, "GPU") == 0 && std::isdigit(static_cast<unsigned char>(word[3])); }

/// "NV18" → 18; other relations → 0. Empty if it is no relation at all.
std::optional<int> nvlinks(const std::string& cell) {
    static const std::vector<std::string> others = {"X", "PIX", "PXB", "PHB", "NODE", "SYS", "PSB", "SOC"};
    if (cell.size() > 2 && cell.compare(0, 2, "NV") == 0 && cell.size() < 5 && std::all_of(cell.begin() + 2, cell.end(), [](unsigned char c) { return std::isdigit(c); }))
        return std::stoi(cell.substr(2));
    if (std::find(others.begin(), others.end(), cell) != others.end()) return 0;
    return std::nullopt;
}

}  // namespace

ClusterSpec import_topo_matrix(std::string_view text, const std::string& file, const ImportWords& words) {
    std::vector<std::string> columns;
    std::map<std::string, std::vector<std::string>> rows;
    std::istringstream in(without_colours(text));
    int number = 0;
    for (std::string line; std::getline(in, line);) {
        ++number;
        const auto cells = words_of(line);
        if (cells.empty()) continue;
        if (columns.empty()) {
            // The head: names up to "CPU Affinity". Shell prompts and other talk before it are skipped.
            if (!is_gpu(cells[0]) || (cells.size() > 1 && !is_gpu(cells[1]) && nvlinks(cells[1]))) continue;
            for (const auto& word : cells) {
                if (word == "CPU" || word == "NUMA") break;
                columns.push_back(word);
            }
            if (columns.size() > 512) throw InputError(file, fmt::format("line {}", number), fmt::format("{} columns", columns.size()), "at most 512");
        } else if (std::find(columns.begin(), columns.end(), cells[0]) != columns.end()) {
            if (cells.size() < columns.size() + 1)
                throw InputError(file, fmt::format("line {}", number), fmt::format("{} cells", cells.size() - 1), fmt::format("{}, one a column of the head", columns.size()));
            if (rows.count(cells[0])) throw InputError(file, fmt::format("line {}", number), cells[0], "each row once");
            std::vector<std::string> row(cells.begin() + 1, cells.begin() + 1 + static_cast<std::ptrdiff_t>(columns.size()));
            for (const auto& cell : row)
                if (!nvlinks(cell)) throw InputError(file, fmt::format("line {}", number), "\"" + cell + "\"", "X, NV#, PIX, PXB, PHB, NODE or SYS");
            rows[cells[0]] = std::move(row);
        } else if (cells[0] == "Legend:") {
            break;
        }
    }
    std::vector<std::size_t> gpus, nics;
    for (std::size_t i = 0; i < columns.size(); ++i) (is_gpu(columns[i]) ? gpus : nics).push_back(i);
    if (gpus.empty()) throw InputError(file, "", "", "the matrix of nvidia-smi topo -m, whose head names GPU0 …");
    NodeShape node;
    node.num_gpus = static_cast<int>(gpus.size());
    node.nvlinks.assign(gpus.size(), std::vector<int>(gpus.size(), 0));
    for (std::size_t a = 0; a < gpus.size(); ++a) {
        const auto row = rows.find(columns[gpus[a]]);
        if (row == rows.end()) throw InputError(file, "", "no row " + columns[gpus[a]], "a row for every GPU of the head (the text may be cut off)");
        for (std::size_t b = 0; b < gpus.size(); ++b)
            if (a != b) node.nvlinks[a][b] = *nvlinks(row->second[gpus[b]]);
    }
    int least = 1 << 20, most = 0;
    for (std::size_t a = 0; a < gpus.size(); ++a)
        for (std::size_t b = 0; b < gpus.size(); ++b)
            if (a != b) {
                if (node.nvlinks[a][b] != node.nvlinks[b][a])
                    throw InputError(file, "", fmt::format("{} to {} has {} links, the way back {}", columns[gpus[a]], columns[gpus[b]], node.nvlinks[a][b], node.nvlinks[b][a]), "a symmetric matrix");
                least = std::min(least, node.nvlinks[a][b]);
                most = std::max(most, node.nvlinks[a][b]);
            }
    std::vector<std::string> assumed;
    // Behind NVSwitches every pair shows all links of a GPU (6 on V100, 12 on A100, 18 from H100 on); direct links divide them.
    const bool switched = gpus.size() > 2 && least == most && (most == 6 || most == 12 || most >= 16);
    std::string gpu;
    if (words.gpu) {
        gpu = *words.gpu;
    } else {
        int per_gpu = 0;
        for (const auto& row : node.nvlinks) {
            int sum = 0;
            for (const int links : row) sum += links;
            per_gpu = std::max(per_gpu, switched ? most : sum);
        }
        gpu = per_gpu >= 16 ? "h100-sxm" : per_gpu > 6 ? "a100-sxm-80" : switched ? "v100-sxm3-32" : per_gpu > 0 ? "v100-sxm2-32" : "h100-sxm";
        assumed.push_back(fmt::format("GPU {} for {} NVLinks a GPU, the text does not name it; --gpu says it otherwise", gpu, per_gpu));
    }
    if (switched) {
        node.links_to_switch = most;
        node.nvlinks.clear();
    } else if (most == 0) {
        node.nvlinks.clear();
        node.nvlink_rate = BytesPerSecond{25e9};
        assumed.push_back("no NVLink: GPUs talk over PCIe, 25 GB/s each way, as a crossbar");
    }
    // NICs beside a GPU on its PCIe switch carry its traffic; if there are such, the others serve storage and management.
    std::vector<std::size_t> near;
    for (const auto nic : nics)
        if (std::any_of(gpus.begin(), gpus.end(), [&](std::size_t g) {
                const auto& relation = rows.at(columns[g])[nic];
                return relation == "PIX" || relation == "PXB";
            }))
            near.push_back(nic);
    const auto& carriers = near.empty() ? nics : near;
    node.num_nics = static_cast<int>(carriers.size());
    if (!near.empty() && near.size() < nics.size()) assumed.push_back(fmt::format("{} of {} NICs carry GPU traffic: those on a GPU's PCIe switch", near.size(), nics.size()));
    // From one PCIe switch to the other socket.
    const std::vector<std::string> ways = {"PIX", "PXB", "PHB", "NODE", "SYS"};
    for (const auto g : gpus) {
        auto& row = node.nic_distance.emplace_back();
        for (const auto nic : carriers)
            row.push_back(static_cast<int>(std::find(ways.begin(), ways.end(), rows.at(columns[g])[nic]) - ways.begin()));
    }
    ClusterSpec cluster = cluster_of_nodes(node, gpu, words.num_nodes.value_or(1), std::move(assumed));
    cluster.source = "nvidia-smi topo -m " + file;
    return cluster;
}

}  // namespace moeplan
