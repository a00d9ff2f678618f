#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/errors.hpp"
#include "core/output_file.hpp"
#include "traces/import.hpp"
#include "traces/npz.hpp"

namespace moeplan {
namespace {

void export_jsonl(const TraceReader& trace, const std::filesystem::path& out, int steps) {
    const TraceHeader& h = trace.header();
    if (h.counts_only)
        throw InputError(out.string(), "", "counts only",
                         "a trace of single tokens for JSONL (npz and eplb take counts)");
    PendingFile pending(out);
    std::ofstream file(pending.temporary(), std::ios::binary);
    for (int index = 0; index < steps; ++index) {
        const TraceStep step = trace.step(index);
        const auto k = static_cast<std::size_t>(h.top_k),
                   heads = static_cast<std::size_t>(h.num_moe_heads);
        for (std::size_t layer = 0; layer < step.expert_ids.size(); ++layer)
            for (std::size_t row = 0; row < step.expert_ids[layer].size() / k; ++row) {
                const std::size_t token = row / heads;
                // Sub-tokens are the rows of the trace: with heads, "token" counts them.
                nlohmann::ordered_json line = {
                    {"step", step.step}, {"layer", layer}, {"token", row}};
                auto& indices = line["indices"] = nlohmann::ordered_json::array();
                for (std::size_t slot = row * k; slot < (row + 1) * k; ++slot) {
                    const auto id = step.expert_ids[layer][slot];
                    indices.push_back(id == kNotRouted ? -1 : static_cast<int>(id));
                }
                if (!step.gate_weights.empty()) {
                    auto& scores = line["scores"] = nlohmann::ordered_json::array();
                    for (std::size_t slot = row * k; slot < (row + 1) * k; ++slot)
                        scores.push_back(step.gate_weights[layer][slot]);
                }
                if (!step.document_ids.empty()) line["document"] = step.document_ids[token];
                if (!step.domain_ids.empty()) line["domain"] = step.domain_ids[token];
                if (!step.token_rank.empty()) line["rank"] = step.token_rank[token];
                if (!step.token_micro_batch.empty())
                    line["micro_batch"] = step.token_micro_batch[token];
                file << line.dump() << '\n';
            }
    }
    file.flush();
    if (!file) throw InputError(out.string(), "", "", "room to write");
    file.close();
    pending.keep();
}

void export_npz(const TraceReader& trace, const std::filesystem::path& out, int steps) {
    const TraceHeader& h = trace.header();
    const auto s = static_cast<std::uint64_t>(steps),
               layers = static_cast<std::uint64_t>(h.num_moe_layers),
               tokens = static_cast<std::uint64_t>(h.tokens_per_step),
               rows = tokens * static_cast<std::uint64_t>(h.num_moe_heads),
               k = static_cast<std::uint64_t>(h.top_k);
    std::vector<std::uint16_t> ids, domains, ranks, micro_batches;
    std::vector<float> gates;
    std::vector<std::uint32_t> documents, counts;
    std::vector<std::int64_t> numbers;
    for (int index = 0; index < steps; ++index) {
        const TraceStep step = trace.step(index);
        numbers.push_back(step.step);
        const auto append = [](auto& to, const auto& from) {
            to.insert(to.end(), from.begin(), from.end());
        };
        for (const auto& layer : step.expert_ids) append(ids, layer);
        for (const auto& layer : step.gate_weights) append(gates, layer);
        for (const auto& layer : step.counts) append(counts, layer);
        append(documents, step.document_ids);
        append(domains, step.domain_ids);
        append(ranks, step.token_rank);
        append(micro_batches, step.token_micro_batch);
    }
    std::map<std::string, npz::Array> arrays;
    arrays["step"] = npz::array_of("<i8", {s}, numbers);
    if (!counts.empty())
        arrays["tokens_per_expert"] = npz::array_of(
            "<u4",
            {s, layers, static_cast<std::uint64_t>(h.num_micro_batches),
             static_cast<std::uint64_t>(h.num_ranks), static_cast<std::uint64_t>(h.num_experts)},
            counts);
    if (!ids.empty()) arrays["expert_ids"] = npz::array_of("<u2", {s, layers, rows, k}, ids);
    if (!gates.empty()) arrays["gate_weights"] = npz::array_of("<f4", {s, layers, rows, k}, gates);
    if (!documents.empty()) arrays["document_ids"] = npz::array_of("<u4", {s, tokens}, documents);
    if (!domains.empty()) arrays["domain_ids"] = npz::array_of("<u2", {s, tokens}, domains);
    if (!ranks.empty()) arrays["token_rank"] = npz::array_of("<u2", {s, tokens}, ranks);
    if (!micro_batches.empty())
        arrays["token_micro_batch"] = npz::array_of("<u2", {s, tokens}, micro_batches);
    write_whole(out, npz::write(arrays, out.string()));
}

void export_eplb(const TraceReader& trace, const std::filesystem::path& out, int steps) {
    const TraceHeader& h = trace.header();
    Json weight = Json::array();
    for (int layer = 0; layer < h.num_moe_layers; ++layer) {
        std::vector<std::uint64_t> row(static_cast<std::size_t>(h.num_experts), 0);
        for (int step = 0; step < steps; ++step)
            for (int micro_batch = 0; micro_batch < h.num_micro_batches; ++micro_batch) {
                const RoutingLoads loads = trace.loads(step, layer, micro_batch);
                for (std::size_t i = 0; i < loads.sub_tokens.size(); ++i)
                    row[i % row.size()] += loads.sub_tokens[i];
            }
        weight.push_back(row);
    }
    write_whole(out, to_file_text(Json{{"weight", std::move(weight)}}));
}

}  // namespace

template <>
const EnumNames<ExportFormat>& enum_names<ExportFormat>() {
    static const EnumNames<ExportFormat> names = {
        {ExportFormat::jsonl, "jsonl"}, {ExportFormat::npz, "npz"}, {ExportFormat::eplb, "eplb"}};
    return names;
}

void export_trace(const TraceReader& trace, const std::filesystem::path& out, ExportFormat format,
                  int num_steps) {
    const int steps =
        num_steps > 0 ? std::min(num_steps, trace.header().num_steps) : trace.header().num_steps;
    switch (format) {
        case ExportFormat::jsonl:
            return export_jsonl(trace, out, steps);
        case ExportFormat::npz:
            return export_npz(trace, out, steps);
        case ExportFormat::eplb:
            return export_eplb(trace, out, steps);
    }
}

}  // namespace moeplan
