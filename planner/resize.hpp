#pragma once
/// Another number of MoE heads, experts or choices is another model: resized so that a stated
/// quantity stays equal, with what remains unequal said.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/enum_names.hpp"
#include "model/model_spec.hpp"

namespace moeplan {

/// What stays equal while heads and experts vary (docs/planning.md, with m matrices an expert,
/// width d, h heads, k choices a sub-token, E experts of inner width f; 0 marks the model resized
/// from).
///
/// flops       MACs a token of experts and head and merge layers: m k d f + 2d² [h > 1]; E as asked
/// parameters  of experts and head and merge layers: m (d/h) f E + 2d² [h > 1]
/// none        f stays
/// rule_a      MH1 appendix D: f = β k0 f0 / k, FLOPs of the experts alone, head and merge in β
/// rule_b      what MH1 ran: f = β h f0 E0 / E, parameters of the experts alone, h times the FLOPs
/// rule_c      MH2: f as `flops`, and E such that parameters are equal too; experts asked for are
/// those
///             of the plain MoE that is matched
enum class Parity : std::uint8_t { flops, parameters, none, rule_a, rule_b, rule_c };

struct ResizeRule {
    Parity parity = Parity::flops;
    double beta = 63.0 / 64;  ///< of rule_a and rule_b: MH1's text
    int width_multiple = 64;  ///< f becomes a multiple of this; tensor cores want 8 … 128
    int expert_multiple = 8;  ///< rule_c's E becomes a multiple of this, so that experts divide
};

/// What is asked of the resized model.
struct MoeShape {
    int num_moe_heads = 1, num_experts = 1, top_k = 1;
    std::optional<DocumentPool> pool;
    bool operator==(const MoeShape&) const = default;
};
MoeShape moe_shape(const MoeFeedForward&);

/// One MoE layer, before rounding.
struct ExactShape {
    double expert_hidden_size = 0, num_experts = 0;
};
/// @return  the exact f and E; f ≤ 0 where the rule has no solution
ExactShape exact_shape(int hidden_size, const MoeFeedForward& from, const MoeShape& to,
                       const ResizeRule& rule);

struct ResizedModel {
    ModelSpec model;
    MoeShape shape;          ///< of the result: rule_c's experts included
    ExactShape exact;        ///< of the first MoE layer
    double flops_ratio = 1;  ///< forward flops a token over the original's, attention included
    double parameters_ratio = 1, active_parameters_ratio = 1;
    std::vector<std::string> notes;  ///< what remains unequal, what was rounded
    std::string refused;             ///< why there is no such model; empty: there is
};

/// @param sequence_length  for the attention's share of the flops
ResizedModel resize(const ModelSpec& model, const MoeShape& to, const ResizeRule& rule,
                    int sequence_length);

template <>
const EnumNames<Parity>& enum_names<Parity>();

}  // namespace moeplan
