/// JSON lines, one a (sub-)token and layer: "indices" [k] (or "expert_ids", "topk_ids"), optional
/// "scores" [k] (or "gate_weights", "topk_weights"), "step", "layer", "token", "document",
/// "domain", "rank", "micro_batch". Lines of one step stand together.

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/errors.hpp"
#include "core/text.hpp"
#include "traces/import.hpp"

namespace moeplan {
namespace {

struct Line {
    std::int64_t step = 0, layer = 0, token = -1;
    std::vector<std::int64_t> indices;
    std::vector<float> scores;
    std::int64_t document = -1, domain = -1, rank = 0, micro_batch = 0;
};

constexpr std::int64_t kMostTokens = std::int64_t{1} << 31;

class Lines {
  public:
    explicit Lines(const std::filesystem::path& file)
        : name_(file.string()), in_(file, std::ios::binary) {
        if (!in_) throw InputError(name_, "", "", "a readable file");
    }
    bool next(Line& out) {
        std::string text;
        do {
            if (!std::getline(in_, text)) return false;
            ++number_;
        } while (trim(text).empty());
        const auto json = nlohmann::json::parse(text, nullptr, false);
        if (!json.is_object()) fail("", "", "a JSON object");
        out = {};
        const auto integer = [&](const char* key, std::int64_t otherwise, std::int64_t most) {
            const auto at = json.find(key);
            if (at == json.end() || at->is_null()) return otherwise;
            if (!at->is_number_integer() || at->get<std::int64_t>() < 0 ||
                at->get<std::int64_t>() > most)
                fail(key, shown(*at), "0 … " + std::to_string(most));
            return at->get<std::int64_t>();
        };
        out.step = integer("step", 0, 1 << 30);
        out.layer = integer("layer", 0, 65535);
        out.token = integer("token", -1, kMostTokens);
        out.document = integer("document", -1, 0xFFFFFFFFLL);
        out.domain = integer("domain", -1, 0xFFFF);
        out.rank = integer("rank", 0, 65534);
        out.micro_batch = integer("micro_batch", 0, 65534);
        for (const char* key : {"indices", "expert_ids", "topk_ids"})
            if (const auto at = json.find(key); at != json.end()) {
                if (!at->is_array() || at->empty() || at->size() > 1024)
                    fail(key, "", "a list of expert ids");
                for (const auto& id : *at) {
                    if (!id.is_number_integer() || id.get<std::int64_t>() < -1 ||
                        id.get<std::int64_t>() >= kNotRouted)
                        fail(key, shown(id), "expert ids of 0 … 65534 (−1: not routed)");
                    out.indices.push_back(id.get<std::int64_t>());
                }
                break;
            }
        if (out.indices.empty()) fail("indices", "", "a list of expert ids");
        for (const char* key : {"scores", "gate_weights", "topk_weights"})
            if (const auto at = json.find(key); at != json.end()) {
                if (!at->is_array() || at->size() != out.indices.size())
                    fail(key, "",
                         "as many numbers as indices: " + std::to_string(out.indices.size()));
                for (const auto& score : *at) {
                    if (!score.is_number()) fail(key, shown(score), "numbers");
                    out.scores.push_back(score.get<float>());
                }
                break;
            }
        return true;
    }
    [[noreturn]] void fail(const std::string& field, const std::string& value,
                           const std::string& expected) const {
        throw InputError(name_,
                         "line " + std::to_string(number_) + (field.empty() ? "" : ", " + field),
                         value, expected);
    }
    const std::string& name() const { return name_; }

  private:
    static std::string shown(const nlohmann::json& value) {
        std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
        return text.size() > 60 ? text.substr(0, 57) + "..." : text;
    }
    std::string name_;
    std::ifstream in_;
    int number_ = 0;
};

/// Tokens without a number are counted within their step and layer.
class TokenNumbers {
  public:
    std::int64_t of(const Line& line) {
        if (line.token >= 0) return line.token;
        return next_[{line.step, line.layer}]++;
    }

  private:
    std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> next_;
};

}  // namespace

Imported import_jsonl(const std::filesystem::path& file, const std::filesystem::path& out,
                      const ImportOptions& options) {
    // First reading: what there is. Steps must stand together so that the second one holds a single
    // step.
    std::set<std::int64_t> layers, steps;
    std::int64_t last_step = -1, num_lines = 0, most_tokens = 0, most_id = -1, ranks = 1,
                 micro_batches = 1;
    std::size_t k = 0;
    bool scores = true, documents = true, domains = true;
    {
        Lines lines(file);
        TokenNumbers numbers;
        for (Line line; lines.next(line);) {
            if (line.step != last_step && !steps.insert(line.step).second)
                lines.fail("step", std::to_string(line.step),
                           "lines of one step together (sort by step)");
            last_step = line.step;
            ++num_lines;
            layers.insert(line.layer);
            if (k != 0 && line.indices.size() != k)
                lines.fail("indices", std::to_string(line.indices.size()) + " ids",
                           std::to_string(k) + ", as in the lines before");
            k = line.indices.size();
            most_tokens = std::max(most_tokens, numbers.of(line) + 1);
            for (const auto id : line.indices) most_id = std::max(most_id, id);
            ranks = std::max(ranks, line.rank + 1);
            micro_batches = std::max(micro_batches, line.micro_batch + 1);
            scores = scores && !line.scores.empty();
            documents = documents && line.document >= 0;
            domains = domains && line.domain >= 0;
            if (options.num_experts && most_id >= *options.num_experts)
                lines.fail("indices", std::to_string(most_id),
                           "ids below the number of experts (" +
                               std::to_string(*options.num_experts) + ")");
        }
        if (steps.empty())
            throw InputError(lines.name(), "", "no line", "one JSON object a token and layer");
    }
    // A stray token number must not cost gigabytes: some gaps are well, a record that is nearly all
    // gap is none.
    if (most_tokens > 16 * num_lines + 1024)
        throw InputError(
            file.string(), "token", std::to_string(most_tokens - 1),
            "token numbers from 0 on, without wide gaps (" + std::to_string(num_lines) + " lines)");
    Imported result;
    result.format = "jsonl";
    TraceHeader& h = result.header;
    h.model = options.model;
    h.source = "import:jsonl";
    h.num_steps = static_cast<int>(steps.size());
    h.num_moe_layers = static_cast<int>(layers.size());
    h.num_experts = options.num_experts.value_or(
        std::max<int>(static_cast<int>(k), static_cast<int>(most_id) + 1));
    h.top_k = static_cast<int>(k);
    h.tokens_per_step = most_tokens;
    h.num_ranks = static_cast<int>(ranks);
    h.num_micro_batches = static_cast<int>(micro_batches);
    h.sequence_length = options.sequence_length;
    if (!options.num_experts)
        result.assumptions.push_back("num_experts = " + std::to_string(h.num_experts) +
                                     ": the largest id seen and one (--experts)");
    std::map<std::int64_t, std::size_t> layer_index;
    for (const auto layer : layers) {
        layer_index.emplace(layer, layer_index.size());
        result.layer_numbers.push_back(static_cast<int>(layer));
    }

    TraceWriter writer(out, h);
    Lines lines(file);
    TokenNumbers numbers;
    Line line;
    bool more = lines.next(line);
    std::int64_t absent = 0;
    while (more) {
        TraceStep step;
        step.step = static_cast<int>(line.step);
        const auto tokens = static_cast<std::size_t>(most_tokens);
        step.expert_ids.assign(layers.size(), std::vector<std::uint16_t>(tokens * k, kNotRouted));
        if (scores) step.gate_weights.assign(layers.size(), std::vector<float>(tokens * k, 0));
        if (documents) step.document_ids.assign(tokens, 0);
        if (domains) step.domain_ids.assign(tokens, 0);
        if (ranks > 1) step.token_rank.assign(tokens, 0);
        if (micro_batches > 1) step.token_micro_batch.assign(tokens, 0);
        std::size_t seen = 0;
        for (; more && line.step == step.step; more = lines.next(line), ++seen) {
            const auto token = static_cast<std::size_t>(numbers.of(line));
            const std::size_t layer = layer_index[line.layer];
            for (std::size_t slot = 0; slot < k; ++slot) {
                step.expert_ids[layer][token * k + slot] =
                    line.indices[slot] < 0 ? kNotRouted
                                           : static_cast<std::uint16_t>(line.indices[slot]);
                if (scores) step.gate_weights[layer][token * k + slot] = line.scores[slot];
            }
            if (documents) step.document_ids[token] = static_cast<std::uint32_t>(line.document);
            if (domains) step.domain_ids[token] = static_cast<std::uint16_t>(line.domain);
            if (ranks > 1) step.token_rank[token] = static_cast<std::uint16_t>(line.rank);
            if (micro_batches > 1)
                step.token_micro_batch[token] = static_cast<std::uint16_t>(line.micro_batch);
        }
        absent +=
            static_cast<std::int64_t>(tokens * layers.size()) - static_cast<std::int64_t>(seen);
        writer.add(step);
    }
    writer.finish();
    if (absent > 0)
        result.assumptions.push_back(std::to_string(absent) +
                                     " choices of tokens that have no line stand as not routed");
    return result;
}

}  // namespace moeplan
