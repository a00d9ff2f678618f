#include "simulator/collective_table.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/errors.hpp"
#include "core/quantity_text.hpp"
#include "core/text.hpp"

namespace moeplan {
namespace {

constexpr int kMostSimGridRanks = 256;      // above, SimGrid's own bookkeeping is the time (docs/simgrid.md)

std::optional<double> number(std::string_view text) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
    return value;
}

Bytes read_size(const std::string& word) {
    const auto refuse = [&]() -> Bytes {
        throw InputError("--bytes", "", "\"" + word + "\"", "a size such as 8589934592, 64M or \"64 MiB\", a list of them, or a range 8..1G");
    };
    const std::string text(trim(word));
    if (text.empty()) return refuse();
    double value = 0;
    if (const auto bare = number(text)) {
        value = *bare;
    } else {
        const std::string units = "KMGT";
        const auto unit = units.find(static_cast<char>(std::toupper(static_cast<unsigned char>(text.back()))));
        const auto bare_part = number(std::string_view(text).substr(0, text.size() - 1));
        if (unit != std::string::npos && bare_part) {
            value = *bare_part * std::pow(1024.0, static_cast<double>(unit + 1));
        } else {
            try {
                value = parse_bytes(text).value;
            } catch (const std::invalid_argument&) {
                return refuse();
            }
        }
    }
    if (!(value >= 1 && value <= 1e15)) return refuse();
    return {value};
}

std::vector<double> numbers_of_file(const std::string& file) {
    std::ifstream in(file);
    std::ostringstream text;
    text << in.rdbuf();
    if (!in) throw InputError("--matrix", "", "\"" + file + "\"", "uniform, zipf:S, or a file of n × n bytes");
    std::vector<double> out;
    const std::string all = text.str();
    const auto first = all.find_first_not_of(" \t\r\n");
    if (first != std::string::npos && all[first] == '[') {
        for (const auto& row : JsonReader::from_text(all, file).items())
            for (const auto& cell : row.items()) out.push_back(cell.number(0, 1e18));
        return out;
    }
    std::istringstream lines(all);
    int at = 0;
    for (std::string line; std::getline(lines, line);) {
        ++at;
        for (char& c : line)
            if (c == ',' || c == ';') c = ' ';
        std::istringstream words(line);
        for (std::string word; words >> word;) {
            const auto value = number(word);
            if (!value || *value < 0) throw InputError(file, fmt::format("line {}", at), "\"" + word + "\"", "bytes, zero or more");
            out.push_back(*value);
        }
    }
    return out;
}

}  // namespace

std::vector<Bytes> read_sizes(const std::string& words) {
    std::vector<Bytes> out;
    for (const auto& part : split(words, ',')) {
        const auto dots = part.find("..");
        if (dots == std::string::npos) {
            out.push_back(read_size(part));
            continue;
        }
        std::string last = part.substr(dots + 2);
        double factor = 2;
        if (const auto star = last.find('*'); star != std::string::npos) {
            const auto given = number(std::string_view(last).substr(star + 1));
            if (!given || *given < 1.01 || *given > 1e6) throw InputError("--bytes", "", "\"" + part + "\"", "FIRST..LAST*FACTOR with a factor above 1");
            factor = *given;
            last = last.substr(0, star);
        }
        const Bytes end = read_size(last);
        for (Bytes size = read_size(part.substr(0, dots)); size <= end; size *= factor) out.push_back(size);
    }
    if (out.empty() || out.size() > 4096) throw InputError("--bytes", "", "\"" + words + "\"", "1 … 4096 sizes");
    return out;
}

TrafficMatrix traffic_of(const MatrixWord& matrix, int num_ranks, std::optional<Bytes> bytes) {
    if (matrix.word == "uniform") return even_traffic(num_ranks, bytes.value_or(Bytes{}));
    if (matrix.word.compare(0, 5, "zipf:") == 0) {
        const auto exponent = number(std::string_view(matrix.word).substr(5));
        if (!exponent || *exponent < 0 || *exponent > 20) throw InputError("--matrix", "", "\"" + matrix.word + "\"", "zipf:S with S = 0 … 20");
        return zipf_traffic(num_ranks, bytes.value_or(Bytes{}), *exponent);
    }
    const auto cells = numbers_of_file(matrix.word);
    TrafficMatrix out(num_ranks);
    if (cells.size() != out.sent.size()) throw InputError(matrix.word, "", fmt::format("{} numbers", cells.size()), fmt::format("{0} × {0} = {1}", num_ranks, out.sent.size()));
    double sum = 0;
    for (const double cell : cells) sum += cell;
    if (!(sum > 0)) throw InputError(matrix.word, "", "all zero", "some bytes to send");
    const double scale = bytes ? bytes->value * num_ranks / sum : 1;
    for (std::size_t i = 0; i < cells.size(); ++i) out.sent[i] = Bytes{cells[i] * scale};
    return out;
}

CollectiveTable collective_table(const LinkGraph& graph, Collective collective, Algorithm algorithm, const std::vector<int>& group, const std::vector<Bytes>& sizes,
                                 const MatrixWord& matrix, Fidelity fidelity, const Profile* profile) {
    CollectiveTable table{collective, fidelity, {}, static_cast<int>(group.size()), {}};
    const NetworkModel model = fidelity == Fidelity::closed_form ? NetworkModel::closed_form : table.num_ranks <= kMostSimGridRanks ? NetworkModel::simgrid : NetworkModel::fluid;
    table.engine = name_of(model);
    const bool uneven = collective == Collective::all_to_all && matrix.word != "uniform";
    if (!uneven && matrix.word != "uniform") throw InputError("--matrix", "", "\"" + matrix.word + "\"", fmt::format("all_to_all; {} has one size for all ranks", name_of(collective)));
    std::vector<std::optional<Bytes>> rows(sizes.begin(), sizes.end());
    if (rows.empty()) rows.push_back(std::nullopt);
    for (const auto& size : rows) {
        const TrafficMatrix traffic = uneven ? traffic_of(matrix, table.num_ranks, size) : TrafficMatrix();
        Bytes bytes = size.value_or(Bytes{});
        if (uneven && !size) {
            for (const Bytes part : traffic.sent) bytes += part;
            bytes /= table.num_ranks;
        }
        const Exchange exchange = make_exchange(graph, {collective, group, bytes, algorithm, uneven ? &traffic : nullptr}, profile);
        CollectiveRow row{bytes, play_alone(model, graph, exchange), {}, {}, {}};
        const auto open = exchange.what.find('('), close = exchange.what.find(')');
        row.algorithm = open == std::string::npos ? "none" : exchange.what.substr(open + 1, close - open - 1);
        if (row.time.value > 0) row.algorithm_bandwidth = bytes / row.time;
        row.bus_bandwidth = row.algorithm_bandwidth * bus_factor(collective, table.num_ranks);
        table.rows.push_back(std::move(row));
    }
    return table;
}

Json to_json(const CollectiveTable& table) {
    Json out = json_header("collective");
    out["collective"] = name_of(table.collective);
    out["algorithm"] = table.rows.empty() ? "" : table.rows.front().algorithm;
    out["fidelity"] = table.fidelity == Fidelity::closed_form ? "closed-form" : "flow";
    out["engine"] = table.engine;
    out["ranks"] = table.num_ranks;
    out["rows"] = Json::array();
    for (const auto& row : table.rows) {
        if (row.algorithm != table.rows.front().algorithm) out["algorithm"] = "automatic";
        out["rows"].push_back({{"bytes", row.bytes.value}, {"time_s", row.time.value}, {"algorithm_bandwidth", row.algorithm_bandwidth.value},
                               {"bus_bandwidth", row.bus_bandwidth.value}, {"algorithm", row.algorithm}});
    }
    return out;
}

}  // namespace moeplan
