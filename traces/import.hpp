#pragma once
/// Other people's routing records as a trace of ours, and a trace as theirs. Which format a file
/// has is seen from its content.

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/json.hpp"
#include "traces/routing_trace.hpp"

namespace moeplan {

struct ImportOptions {
    std::optional<int>
        num_experts;           ///< absent: the largest id seen + 1, which is a guess and said so
    std::optional<int> top_k;  ///< of counts, which do not tell; absent: 1
    int sequence_length = 0;
    std::string model;
};

struct Imported {
    std::string format;  ///< "jsonl", "npz", "sglang", "vllm", "eplb"
    TraceHeader header;
    std::vector<int> layer_numbers;  ///< [moe_layers]; as the source numbers them
    std::vector<int>
        layers_with_zero_total;  ///< the source's layers without one token: dense ones, left out
    std::vector<std::string> assumptions;
};

/// One importer a file: traces/import_<source>.cpp. They write `out` whole or not at all.
Imported import_trace(const std::filesystem::path& file, const std::filesystem::path& out,
                      const ImportOptions&);
Imported import_jsonl(const std::filesystem::path& file, const std::filesystem::path& out,
                      const ImportOptions&);
Imported import_npz(const std::filesystem::path& file, const std::filesystem::path& out,
                    const ImportOptions&);
Imported import_expert_counts(const std::filesystem::path& file, const std::filesystem::path& out,
                              const ImportOptions&);

Json to_json(const Imported&);

/// Counts of any source, [steps][layers][experts], as a counts-only trace. Layers that are zero in
/// every step are left out.
Imported write_counts(const std::string& file,
                      const std::vector<std::vector<std::vector<std::int64_t>>>& counts,
                      const std::string& format, const std::filesystem::path& out,
                      const ImportOptions&);

enum class ExportFormat : std::uint8_t { jsonl, npz, eplb };
template <>
const EnumNames<ExportFormat>& enum_names<ExportFormat>();

/// jsonl: one line a (sub-)token and layer, as `import_jsonl` reads. npz: the datasets under their
/// names in the trace. eplb: {"weight": [layers][experts]}, summed over the steps, for load
/// balancers.
/// @param num_steps  the first of the trace; 0: all
void export_trace(const TraceReader&, const std::filesystem::path& out, ExportFormat,
                  int num_steps = 0);

}  // namespace moeplan
