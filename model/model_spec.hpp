#pragma once
/// What is trained: the shapes of a model, and nothing of time, networks or devices.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/enum_names.hpp"
#include "core/json.hpp"

namespace moeplan {

struct GroupedQueryAttention {
    int num_attention_heads = 0, num_kv_heads = 0, head_size = 0;
    bool bias = false;  ///< of q, k, v
    bool output_bias = false;
    bool qk_norm = false;       ///< RMSNorm on q and k …
    bool qk_norm_full = false;  ///< … over all heads together (OLMoE) instead of each head (Qwen3)
    bool sinks = false;         ///< one learned logit a head (gpt-oss)
    bool operator==(const GroupedQueryAttention&) const = default;
};
/// Multi-head latent attention (DeepSeek-V2/V3); q_lora_rank 0: q is projected directly.
struct LatentAttention {
    int num_attention_heads = 0, q_lora_rank = 0, kv_lora_rank = 0, nope_size = 0, rope_size = 0,
        value_size = 0;
    bool operator==(const LatentAttention&) const = default;
};
using Attention = std::variant<GroupedQueryAttention, LatentAttention>;

enum class Activation : std::uint8_t {
    relu,
    gelu,
    swiglu
};  ///< swiglu has three matrices, the others two
enum class BalanceScope : std::uint8_t { micro_batch, sequence, global };
enum class Norm : std::uint8_t { rms, layer };  ///< layer: with bias

struct DenseFeedForward {
    int dense_hidden_size = 0;
    Activation activation = Activation::swiglu;
    bool bias = false;
    bool operator==(const DenseFeedForward&) const = default;
};

/// EMO: the experts that all tokens of one document share; the size is drawn uniformly from
/// {smallest … largest} per document and layer.
struct DocumentPool {
    int smallest = 0, largest = 0;
    bool operator==(const DocumentPool&) const = default;
};

struct MoeFeedForward {
    int num_experts = 1, top_k = 1,
        expert_hidden_size = 0;  ///< routed experts E, choices k per routed unit, inner width
    int num_shared_experts = 0, shared_expert_hidden_size = 0;  ///< width of one shared expert
    bool shared_gate = false;  ///< a sigmoid gate on the shared expert (Qwen2-MoE): one row
    bool router_covers_shared =
        false;  ///< the router's matrix has rows for shared experts too, unused (EMO)
    int num_moe_heads =
        1;  ///< MH-MoE: sub-tokens a token is split into; independent of attention heads
    Activation activation = Activation::swiglu;
    bool bias = false, sub_norm = false, selection_bias = false, renormalise_gates = false,
         router_bias = false;
    bool head_bias = false, inner_residual = false;  ///< MH-MoE's two options (layers.md §1.1)
    int num_groups = 0, top_k_groups = 0;            ///< group limits (DeepSeek-V3)
    int router_size = 0;  ///< X-MoE: reduced width of the router; 0: full
    double routed_scale = 1, balance_coefficient = 0, z_loss_coefficient = 0;
    std::optional<double> capacity_factor;  ///< absent: dropless
    std::string routing = "softmax_top_k";  ///< a name in the routing registry: switch, gshard,
                                            ///< x_moe, emo, sigmoid_top_k, domain, …
    std::optional<DocumentPool> pool;       ///< present: document-restricted routing
    BalanceScope balance = BalanceScope::micro_batch;
    bool operator==(const MoeFeedForward&) const = default;
};

using FeedForward = std::variant<DenseFeedForward, MoeFeedForward>;

struct LayerSpec {
    Attention attention;
    FeedForward feed_forward;
    std::optional<int> window;  ///< sliding-window attention
    bool operator==(const LayerSpec&) const = default;
};

struct ModelSpec {
    std::string name;
    int hidden_size = 0, vocab_size = 0, num_mtp_layers = 0;
    int max_sequence_length = 0;  ///< what the source states; 0: unstated
    bool tied_embeddings = false;
    bool learned_positions =
        false;  ///< a table of max_sequence_length rows beside the embedding (GPT-2)
    Norm norm = Norm::rms;
    double rope_theta = 10000;
    std::vector<LayerSpec> layers;
    bool operator==(const ModelSpec&) const = default;
};

int num_moe_layers(const ModelSpec&);
/// The first MoE layer's shape, or null for a dense model.
const MoeFeedForward* first_moe(const ModelSpec&);

/// @name JSON (schemas/model.schema.json). Equal layers are written once: "layers": [{"count": 3,
/// …}, {"count": 58, …}].
/// @{
ModelSpec model_from_json(const JsonReader&);  ///< @throws InputError
Json to_json(const ModelSpec&);
/// @}

/// Refuses what no transformer can be (a width of zero, more choices than experts, counts beyond
/// any machine).
/// @param file  named in the message  @throws InputError
void require_sound(const ModelSpec&, const std::string& file);

/// A shipped name, or a file of any kind we read: own JSON, Hugging Face config.json, Megatron
/// script or YAML, OLMo-core overrides. The kind is recognised from the content. @throws InputError
/// naming the nearest shipped name or the fault in the file
ModelSpec load_model(const std::string& name_or_file);
std::vector<std::string> shipped_models();

template <>
const EnumNames<Activation>& enum_names<Activation>();
template <>
const EnumNames<BalanceScope>& enum_names<BalanceScope>();
template <>
const EnumNames<Norm>& enum_names<Norm>();

}  // namespace moeplan
