#pragma once
/// Where the tokens went. Streamed: one step of a large model is tens of gigabytes of choices.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace moeplan {

inline constexpr std::uint16_t kNotRouted =
    0xFFFF;  ///< expert id of a dropped (sub-)token's choice

struct TraceHeader {
    std::string model, source;  ///< source: "training", "synthetic:…", "import:…"
    int num_steps = 0, num_moe_layers = 0, num_experts = 0, top_k = 0, num_moe_heads = 1;
    std::int64_t tokens_per_step = 0;
    int num_ranks = 1, num_micro_batches = 1, sequence_length = 0;
    bool counts_only = false;
    std::string gates = "raw";   ///< raw or renormalised
    std::string document_order;  ///< shuffled or consecutive
    std::uint64_t seed = 0;
    bool operator==(const TraceHeader&) const = default;
};

/// Tokens of one exchange: what each source rank sends to each expert.
struct RoutingLoads {
    int num_sources = 0, num_experts = 0;
    std::vector<std::uint32_t> sub_tokens;  ///< [num_sources, num_experts]
};

/// The choices of one micro-batch in one layer, as recorded.
struct RoutedTokens {
    std::vector<std::uint16_t> expert_ids;  ///< [tokens · num_moe_heads, top_k]
    std::vector<std::uint32_t> token_rank;  ///< [tokens]; the rank that held the token
    std::vector<std::uint32_t> document;    ///< [tokens]; empty if not recorded
};

/// Everything of one step, as a recorder or a generator hands it over. Optional parts are empty
/// when not known.
struct TraceStep {
    int step = 0;
    double loss = 0;
    std::vector<std::vector<std::uint16_t>>
        expert_ids;  ///< [moe_layers] of [tokens · num_moe_heads, top_k]
    std::vector<std::vector<float>> gate_weights;              ///< [moe_layers] likewise, or empty
    std::vector<std::uint32_t> document_ids;                   ///< [tokens]
    std::vector<std::uint16_t> domain_ids;                     ///< [tokens]
    std::vector<std::uint16_t> token_rank, token_micro_batch;  ///< [tokens]
    std::vector<std::vector<std::uint16_t>> pool_size;         ///< [moe_layers] of [documents], EMO
    std::vector<std::vector<std::uint32_t>>
        counts;  ///< counts-only traces: [moe_layers] of [micro_batches, sources, experts]
};

/// What is known of a step as a whole, without its choices.
struct TraceStepFacts {
    int step = 0;
    double loss = 0;
    std::vector<std::uint16_t> domain_ids, token_micro_batch;  ///< [tokens]; empty if not recorded
    std::vector<std::uint16_t> domains(int micro_batch)
        const;  ///< of that micro-batch's tokens, in the order of `TraceReader::tokens`
};

/// Owns an open HDF5 file.
class TraceReader {
  public:
    explicit TraceReader(
        const std::filesystem::path& file);  ///< @throws InputError: not a trace, truncated, wrong
                                             ///< shapes, ids beyond num_experts
    TraceReader(TraceReader&&) noexcept;
    TraceReader& operator=(TraceReader&&) noexcept;
    ~TraceReader();

    const TraceHeader& header() const;
    const std::string& digest() const;  ///< of the file
    TraceStep step(int index) const;    ///< whole; index 0 … num_steps − 1
    RoutingLoads loads(int step, int moe_layer, int micro_batch) const;
    RoutedTokens tokens(int step, int moe_layer,
                        int micro_batch) const;  ///< @throws InputError for a counts-only trace
    TraceStepFacts facts(int step) const;
    std::vector<float> gates(int step,
                             int moe_layer) const;  ///< of all micro-batches; empty if not recorded

  private:
    struct File;
    std::unique_ptr<File> file_;
};

class TraceWriter {
  public:
    TraceWriter(const std::filesystem::path& file,
                TraceHeader header);  ///< @throws InputError if the folder cannot be written
    ~TraceWriter();                   ///< without finish(): the file never appears
    void add(const TraceStep&);
    void finish();  ///< the file appears, whole

  private:
    struct File;
    std::unique_ptr<File> file_;
};

}  // namespace moeplan
