/// JSON of inference engines and load balancers: SGLang's expert distribution recorder
/// (sgl-project/sglang, torch dump written as JSON: "logical_count" [passes, layers, experts];
/// dense layers are zero rows), EPLB's load table (deepseek-ai/EPLB, "weight" [layers, experts]),
/// vLLM's EPLB state ("expert_load" or "physical_load" with "physical_to_logical_map").

#include <nlohmann/json.hpp>

#include "core/errors.hpp"
#include "traces/import.hpp"

namespace moeplan {
namespace {

using Row = std::vector<std::int64_t>;

Row read_row(const JsonReader& at) {
    Row out;
    for (const JsonReader& value : at.items()) {
        const double n = value.number(0, 4294967295.0);
        out.push_back(
            static_cast<std::int64_t>(n + 0.5));  // weights may be means of several passes
    }
    if (out.empty()) at.fail("counts of at least one expert");
    return out;
}

std::vector<Row> read_layers(const JsonReader& at) {
    std::vector<Row> out;
    for (const JsonReader& row : at.items()) out.push_back(read_row(row));
    if (out.empty()) at.fail("at least one layer");
    return out;
}

/// How deep arrays are nested: 2 is [layers, experts], 3 is [passes, layers, experts].
int depth(const JsonReader& at) {
    if (!at.is_array()) return 0;
    return at.size() == 0 ? 1 : 1 + depth(at.at(std::size_t{0}));
}

std::vector<std::vector<Row>> read_counts(const JsonReader& at) {
    std::vector<std::vector<Row>> out;
    if (depth(at) == 2)
        out.push_back(read_layers(at));
    else if (depth(at) == 3)
        for (const JsonReader& pass : at.items()) out.push_back(read_layers(pass));
    else
        at.fail("[layers, experts] or [passes, layers, experts]");
    if (out.empty()) at.fail("at least one pass");
    return out;
}

/// Loads of physical slots summed over the logical expert that each holds.
std::vector<std::vector<Row>> to_logical(const std::vector<std::vector<Row>>& physical,
                                         const JsonReader& map) {
    const auto slots = read_layers(map);
    std::int64_t experts = 0;
    for (const Row& row : slots)
        for (const auto e : row) experts = std::max(experts, e + 1);
    if (experts > 65534) map.fail("expert ids below 65534");
    std::vector<std::vector<Row>> out;
    for (const auto& pass : physical) {
        if (pass.size() != slots.size())
            map.fail("one row for each of " + std::to_string(pass.size()) + " layers");
        auto& layers = out.emplace_back();
        for (std::size_t l = 0; l < pass.size(); ++l) {
            if (pass[l].size() != slots[l].size())
                map.fail("as many slots as loads: " + std::to_string(pass[l].size()));
            Row& row = layers.emplace_back(static_cast<std::size_t>(experts), 0);
            for (std::size_t slot = 0; slot < slots[l].size(); ++slot)
                row[static_cast<std::size_t>(slots[l][slot])] += pass[l][slot];
        }
    }
    return out;
}

}  // namespace

Imported import_expert_counts(const std::filesystem::path& file, const std::filesystem::path& out,
                              const ImportOptions& options) {
    const JsonReader json = JsonReader::from_file(file);
    if (json.is_array()) return write_counts(json.file(), read_counts(json), "eplb", out, options);
    if (const auto counts = json.find("logical_count"))
        return write_counts(json.file(), read_counts(*counts), "sglang", out, options);
    if (const auto weight = json.find("weight"))
        return write_counts(json.file(), read_counts(*weight), "eplb", out, options);
    for (const char* name : {"physical_load", "expert_load", "physical_count"})
        if (const auto load = json.find(name)) {
            auto counts = read_counts(*load);
            for (const char* map : {"physical_to_logical_map", "last_physical_to_logical_map"})
                if (const auto at = json.find(map))
                    return write_counts(json.file(), to_logical(counts, *at), "vllm", out, options);
            return write_counts(json.file(), counts, "vllm", out, options);
        }
    if (json.has("physical_to_logical_map"))
        throw InputError(json.file(), "/physical_to_logical_map", "a placement without loads",
                         "its loads beside it (\"expert_load\" [layers, slots])");
    throw InputError(json.file(), "", "no counts",
                     "\"logical_count\" (SGLang), \"weight\" (EPLB) or \"expert_load\" (vLLM)");
}

}  // namespace moeplan
