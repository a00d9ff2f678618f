#include "traces/import.hpp"

#include <fstream>
#include <nlohmann/json.hpp>

#include "core/errors.hpp"

namespace moeplan {

Imported import_trace(const std::filesystem::path& file, const std::filesystem::path& out,
                      const ImportOptions& options) {
    std::ifstream in(file, std::ios::binary);
    if (!in || std::filesystem::is_directory(file))
        throw InputError(file.string(), "", "", "a readable file");
    std::string begin(1 << 16, '\0');
    in.read(begin.data(), static_cast<std::streamsize>(begin.size()));
    begin.resize(static_cast<std::size_t>(in.gcount()));
    if (begin.starts_with("\x89HDF")) {
        const TraceReader already(file);  // says what is wrong if it is no trace
        throw InputError(file.string(), "", "already a routing trace",
                         "another format; use it as it is");
    }
    if (begin.starts_with("PK\3\4")) {
        if (begin.find("data.pkl") != std::string::npos)
            throw InputError(file.string(), "", "a PyTorch file",
                             "JSON: python3 -c 'import json,sys,torch; d=torch.load(sys.argv[1]); "
                             "json.dump({k: v.tolist() for k, v in d.items() if hasattr(v, "
                             "\"tolist\")}, open(\"dump.json\", \"w\"))' " +
                                 file.string());
        return import_npz(file, out, options);
    }
    if (begin.starts_with("PAR1"))
        throw InputError(file.string(), "", "a Parquet file",
                         "JSONL: python3 -c 'import pandas,sys; "
                         "pandas.read_parquet(sys.argv[1]).to_json(\"trace.jsonl\", "
                         "orient=\"records\", lines=True)' " +
                             file.string());
    const auto first = begin.find_first_not_of(" \t\r\n\xef\xbb\xbf");
    if (first == std::string::npos)
        throw InputError(file.string(), "", "an empty file",
                         "a routing record: JSONL, .npz, or the JSON of SGLang, vLLM or EPLB");
    // A line that is an object by itself, with the choices of a token, makes it JSONL; else the
    // whole file is one JSON value.
    const auto line =
        nlohmann::json::parse(begin.substr(first, begin.find('\n', first) - first), nullptr, false);
    if (line.is_object() &&
        (line.contains("indices") || line.contains("expert_ids") || line.contains("topk_ids")))
        return import_jsonl(file, out, options);
    if (begin[first] == '{' || begin[first] == '[') return import_expert_counts(file, out, options);
    throw InputError(
        file.string(), "", "of no known format",
        "a routing record: JSONL with \"indices\", .npz, or the JSON of SGLang, vLLM or EPLB");
}

Imported write_counts(const std::string& file,
                      const std::vector<std::vector<std::vector<std::int64_t>>>& counts,
                      const std::string& format, const std::filesystem::path& out,
                      const ImportOptions& options) {
    Imported result;
    result.format = format;
    if (counts.empty() || counts[0].empty() || counts[0][0].empty())
        throw InputError(file, "", "no counts", "[steps][layers][experts]");
    const std::size_t layers = counts[0].size(), experts = counts[0][0].size();
    std::vector<std::int64_t> layer_total(layers, 0);
    for (std::size_t step = 0; step < counts.size(); ++step) {
        if (counts[step].size() != layers)
            throw InputError(file, "step " + std::to_string(step),
                             std::to_string(counts[step].size()) + " layers",
                             std::to_string(layers));
        for (std::size_t layer = 0; layer < layers; ++layer) {
            const auto& row = counts[step][layer];
            const std::string place =
                "step " + std::to_string(step) + ", layer " + std::to_string(layer);
            if (row.size() != experts)
                throw InputError(file, place, std::to_string(row.size()) + " experts",
                                 std::to_string(experts));
            for (const std::int64_t n : row) {
                if (n < 0 || n > 0xFFFFFFFFLL)
                    throw InputError(file, place, std::to_string(n), "a count of 0 … 4294967295");
                layer_total[layer] += n;
            }
        }
    }
    std::int64_t most = 0;
    for (std::size_t layer = 0; layer < layers; ++layer) {
        (layer_total[layer] > 0 ? result.layer_numbers : result.layers_with_zero_total)
            .push_back(static_cast<int>(layer));
    }
    if (result.layer_numbers.empty())
        throw InputError(file, "", "no token in any layer", "counts above 0");
    if (experts >= kNotRouted)
        throw InputError(file, "", std::to_string(experts) + " experts", "at most 65534");
    TraceHeader& h = result.header;
    h.model = options.model;
    h.source = "import:" + format;
    h.num_steps = static_cast<int>(counts.size());
    h.num_moe_layers = static_cast<int>(result.layer_numbers.size());
    h.num_experts = static_cast<int>(experts);
    h.top_k = options.top_k.value_or(1);
    h.sequence_length = options.sequence_length;
    h.counts_only = true;
    if (!options.top_k) result.assumptions.push_back("top_k = 1: counts do not tell it (--top-k)");
    for (const auto& step : counts) {
        std::int64_t slots = 0;
        for (const std::int64_t n : step[static_cast<std::size_t>(result.layer_numbers[0])])
            slots += n;
        most = std::max(most, slots);
    }
    h.tokens_per_step = most / h.top_k;
    TraceWriter writer(out, h);
    for (std::size_t step = 0; step < counts.size(); ++step) {
        TraceStep s;
        s.step = static_cast<int>(step);
        for (const int layer : result.layer_numbers) {
            const auto& row = counts[step][static_cast<std::size_t>(layer)];
            s.counts.emplace_back(row.begin(), row.end());
        }
        writer.add(s);
    }
    writer.finish();
    return result;
}

Json to_json(const Imported& i) {
    Json out = json_header("trace-import");
    out["format"] = i.format;
    out["source"] = i.header.source;
    out["model"] = i.header.model;
    out["steps"] = i.header.num_steps;
    out["tokens"] = i.header.tokens_per_step * i.header.num_steps;
    out["num_moe_layers"] = i.header.num_moe_layers;
    out["num_experts"] = i.header.num_experts;
    out["top_k"] = i.header.top_k;
    out["num_moe_heads"] = i.header.num_moe_heads;
    out["counts_only"] = i.header.counts_only;
    out["layer_numbers"] = i.layer_numbers;
    out["layers_with_zero_total"] = i.layers_with_zero_total;
    out["assumptions"] = i.assumptions;
    return out;
}

}  // namespace moeplan
