/// numpy archives: "expert_ids" (or "indices", "topk_ids", "routed_experts") [steps, layers,
/// tokens, k], [layers, tokens, k] or [tokens, k], with "gate_weights" (or "scores") of the same
/// shape, "document_ids", "domain_ids", "token_rank", "token_micro_batch" [steps, tokens]; or
/// counts: "tokens_per_expert" (or "logical_count", "weight") [.., layers, experts].

#include <algorithm>

#include "core/errors.hpp"
#include "traces/import.hpp"
#include "traces/npz.hpp"

namespace moeplan {
namespace {

const std::pair<const std::string, npz::Array>* find(
    const std::map<std::string, npz::Array>& arrays, std::initializer_list<const char*> names) {
    for (const char* name : names)
        if (const auto at = arrays.find(name); at != arrays.end()) return &*at;
    return nullptr;
}

std::string shape_text(const std::vector<std::uint64_t>& shape) {
    std::string out = "[";
    for (std::size_t i = 0; i < shape.size(); ++i)
        out += (i > 0 ? ", " : "") + std::to_string(shape[i]);
    return out + "]";
}

}  // namespace

Imported import_npz(const std::filesystem::path& path, const std::filesystem::path& out,
                    const ImportOptions& options) {
    const std::string file = path.string();
    const auto arrays = npz::read(path);
    if (const auto* counts = find(arrays, {"tokens_per_expert", "logical_count", "weight"})) {
        auto shape = counts->second.shape;
        // Ours has micro-batches and sources between layers and experts: they are summed.
        std::uint64_t inner = 1;
        if (shape.size() == 5) {
            inner = shape[2] * shape[3];
            shape = {shape[0], shape[1], shape[4]};
        }
        if (shape.size() == 2) shape.insert(shape.begin(), 1);
        if (shape.size() != 3)
            throw InputError(file, counts->first, "of shape " + shape_text(shape),
                             "[steps, layers, experts]");
        const auto values = npz::integers(file, counts->first, counts->second);
        std::vector<std::vector<std::vector<std::int64_t>>> nested(
            shape[0], std::vector<std::vector<std::int64_t>>(
                          shape[1], std::vector<std::int64_t>(shape[2], 0)));
        for (std::size_t i = 0; i < values.size(); ++i) {
            const std::size_t expert = i % shape[2], row = i / shape[2] / inner;
            nested[row / shape[1]][row % shape[1]][expert] += values[i];
        }
        return write_counts(file, nested, "npz", out, options);
    }
    const auto* ids = find(arrays, {"expert_ids", "indices", "topk_ids", "routed_experts"});
    if (!ids)
        throw InputError(file, "", "no known array",
                         "\"expert_ids\" [steps, layers, tokens, k] or \"tokens_per_expert\" "
                         "[steps, layers, experts]");
    auto shape = ids->second.shape;
    while (shape.size() < 4 && shape.size() >= 2) shape.insert(shape.begin(), 1);
    if (shape.size() != 4 || ids->second.size() == 0)
        throw InputError(file, ids->first, "of shape " + shape_text(ids->second.shape),
                         "[steps, layers, tokens, k]");
    const std::uint64_t steps = shape[0], layers = shape[1], tokens = shape[2], k = shape[3];
    if (steps > 1u << 30 || layers > 65536 || k > 1024)
        throw InputError(file, ids->first, "of shape " + shape_text(shape),
                         "[steps, layers, tokens, k]");
    const auto values = npz::integers(file, ids->first, ids->second);
    std::int64_t most = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
        const bool not_routed = values[i] == -1 || values[i] == kNotRouted;
        if (!not_routed && (values[i] < 0 || values[i] >= kNotRouted ||
                            (options.num_experts && values[i] >= *options.num_experts)))
            throw InputError(
                file,
                ids->first + "[" + std::to_string(i / (layers * tokens * k)) + ", " +
                    std::to_string(i / (tokens * k) % layers) + ", " +
                    std::to_string(i / k % tokens) + ", " + std::to_string(i % k) + "]",
                std::to_string(values[i]),
                "an expert id below " + std::to_string(options.num_experts.value_or(kNotRouted)));
        if (!not_routed) most = std::max(most, values[i]);
    }
    std::vector<float> gates;
    const auto* scores = find(arrays, {"gate_weights", "scores", "topk_weights"});
    if (scores) {
        if (scores->second.shape != ids->second.shape)
            throw InputError(file, scores->first, "of shape " + shape_text(scores->second.shape),
                             shape_text(ids->second.shape));
        gates = npz::floats(file, scores->first, scores->second);
    }
    Imported result;
    result.format = "npz";
    TraceHeader& h = result.header;
    h.model = options.model;
    h.source = "import:npz";
    h.num_steps = static_cast<int>(steps);
    h.num_moe_layers = static_cast<int>(layers);
    h.num_experts = options.num_experts.value_or(
        std::max<int>(static_cast<int>(k), static_cast<int>(most) + 1));
    h.top_k = static_cast<int>(k);
    h.tokens_per_step = static_cast<std::int64_t>(tokens);
    h.sequence_length = options.sequence_length;
    if (!options.num_experts)
        result.assumptions.push_back("num_experts = " + std::to_string(h.num_experts) +
                                     ": the largest id seen and one (--experts)");
    for (std::uint64_t layer = 0; layer < layers; ++layer)
        result.layer_numbers.push_back(static_cast<int>(layer));

    const auto by_token = [&](const char* name, std::int64_t limit) {
        const auto at = arrays.find(name);
        if (at == arrays.end()) return std::vector<std::int64_t>();
        if (at->second.size() != steps * tokens)
            throw InputError(file, name, "of shape " + shape_text(at->second.shape),
                             shape_text({steps, tokens}));
        auto column = npz::integers(file, name, at->second);
        for (std::size_t i = 0; i < column.size(); ++i)
            if (column[i] < 0 || column[i] > limit)
                throw InputError(file,
                                 std::string(name) + "[" + std::to_string(i / tokens) + ", " +
                                     std::to_string(i % tokens) + "]",
                                 std::to_string(column[i]), "0 … " + std::to_string(limit));
        return column;
    };
    const auto documents = by_token("document_ids", 0xFFFFFFFFLL),
               domains = by_token("domain_ids", 0xFFFF), ranks = by_token("token_rank", 65534),
               micro_batches = by_token("token_micro_batch", 65534);
    if (!ranks.empty())
        h.num_ranks = static_cast<int>(*std::max_element(ranks.begin(), ranks.end())) + 1;
    if (!micro_batches.empty())
        h.num_micro_batches =
            static_cast<int>(*std::max_element(micro_batches.begin(), micro_batches.end())) + 1;
    const auto numbers = arrays.find("step");
    std::vector<std::int64_t> step_numbers;
    if (numbers != arrays.end() && numbers->second.size() == steps)
        step_numbers = npz::integers(file, "step", numbers->second);

    TraceWriter writer(out, h);
    for (std::size_t s = 0; s < steps; ++s) {
        TraceStep step;
        step.step = static_cast<int>(step_numbers.empty()
                                         ? static_cast<std::int64_t>(s)
                                         : std::clamp<std::int64_t>(step_numbers[s], 0, 1 << 30));
        for (std::size_t l = 0; l < layers; ++l) {
            const std::size_t begin = (s * layers + l) * tokens * k;
            auto& row = step.expert_ids.emplace_back();
            for (std::size_t i = begin; i < begin + tokens * k; ++i)
                row.push_back(values[i] < 0 ? kNotRouted : static_cast<std::uint16_t>(values[i]));
            if (!gates.empty())
                step.gate_weights.emplace_back(
                    gates.begin() + static_cast<std::ptrdiff_t>(begin),
                    gates.begin() + static_cast<std::ptrdiff_t>(begin + tokens * k));
        }
        const auto take = [&](const std::vector<std::int64_t>& from, auto& to) {
            if (!from.empty())
                to.assign(from.begin() + static_cast<std::ptrdiff_t>(s * tokens),
                          from.begin() + static_cast<std::ptrdiff_t>((s + 1) * tokens));
        };
        take(documents, step.document_ids);
        take(domains, step.domain_ids);
        if (h.num_ranks > 1) take(ranks, step.token_rank);
        if (h.num_micro_batches > 1) take(micro_batches, step.token_micro_batch);
        writer.add(step);
    }
    writer.finish();
    return result;
}

}  // namespace moeplan
