#pragma once
/// What published scaling laws say about the loss of a model of this shape: a range with its law,
/// never a bare number. Every law here was fitted on small plain MoE models; each says where it is
/// extrapolated. Equations and checks: docs/quality-laws.md.

#include <array>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/model_spec.hpp"

namespace moeplan {

/// Training loss in nats a token, at a stated number of training tokens.
struct QualityEstimate {
    double loss = 0, low = 0, high = 0;
    std::string law;
    /// Least and largest difference from the model asked for, where the law gives differences better
    /// than levels: the level's own uncertainty is then in low … high and common to all.
    std::optional<std::array<double, 2>> difference;
    std::vector<std::string> notes;  ///< where the law is extrapolated, and what it does not see
    bool operator==(const QualityEstimate&) const = default;
};

/// A model as the laws see it.
///
/// A token activates `slots` = num_moe_heads · top_k experts, whose inputs are hidden_size /
/// num_moe_heads wide. The laws' expansion E is then num_experts / slots and their granularity G is
/// `slots`: with the raw number of experts, expert count would be credited twice.
struct QualityCase {
    int hidden_size = 0, num_experts = 1, num_shared_experts = 0, top_k = 1, num_moe_heads = 1;
    int expert_hidden_size = 0;
    double total_parameters = 0, active_parameters = 0;  ///< without embeddings and LM head
    double flops_per_token = 0;                          ///< forward, without the LM head
    double tokens = 0;                                   ///< of training
    bool pooled = false;                                 ///< EMO's document pools

    double slots() const { return static_cast<double>(num_moe_heads) * top_k; }
    double expansion() const { return num_experts / slots(); }
    /// Width that one expert sees of a token.
    double sub_token_size() const { return static_cast<double>(hidden_size) / num_moe_heads; }
};

/// @param tokens  of training
QualityCase quality_case(const ModelSpec& model, double tokens);

/// @name The laws, as published. N parameters, D tokens; natural logarithm unless said.
/// @{

/// Ê of Clark et al. 2022, eq. for saturation: 1/Ê = 1/(E − 1 + (1/E_s − 1/E_m)^-1) + 1/E_m.
/// Ê(1) = E_s, and Ê → E_m for many experts.
double saturated(double experts, double start, double most);

/// Krajewski et al. 2024 (arXiv 2402.07871), fitted at one expansion rate each.
/// L = c + (g / G^γ + a) / N^α + b / D^β; N total parameters without embeddings.
struct GranularityFit {
    std::string_view name;
    double a, alpha, b, beta, g, gamma, c;
};
extern const GranularityFit kKrajewskiE64, kKrajewskiE16;
double krajewski_loss(const GranularityFit&, double parameters, double tokens, double granularity);

/// Ludziejewski et al. 2025 (arXiv 2502.05172): L = m N_act^μ + n D^ν + c.
struct JointFit {
    double m, mu, n, nu, c;
};
JointFit ludziejewski_fit(double experts);
double ludziejewski_loss(double active_parameters, double tokens, double experts);
/// Active parameters and tokens of the least loss at 6 · N_act · D = flops.
struct Allocation {
    double active_parameters, tokens;
};
Allocation ludziejewski_optimum(double flops, double experts);

/// Clark et al. 2022 (arXiv 2202.01169), 130 G tokens.
/// log10 L = a log10 N + b log10 Ê + c log10 N log10 Ê + d; N of the dense base.
struct UnifiedFit {
    std::string_view name;
    double a, b, c, d, start, most;
};
extern const UnifiedFit kClarkSBase, kClarkReinforced, kClarkHash;
double clark_loss(const UnifiedFit&, double dense_parameters, double experts);

/// Tian et al. 2025 (arXiv 2507.17702): compute of a dense model over that of the MoE at equal
/// loss.
/// @param activation   activated share of experts, shared ones included
/// @param granularity  2 · hidden_size / expert_hidden_size
/// @param flops        forward flops a token times training tokens
double efficiency_leverage(double activation, double granularity, double flops);

/// Abnar et al. 2025 (arXiv 2501.12370): N total parameters, sparsity S = (E − K) / E.
double abnar_loss(double parameters, double tokens, double sparsity);
/// @}

/// How much of the granularity gain of Krajewski et al. was seen at equal FLOPs and parameters by
/// Huang et al. 2024 (arXiv 2411.16205, their 100k-step runs): observed over predicted (the E = 16
/// fit), the least, mean and largest over three corpora and three models.
struct GranularityCalibration {
    double low = 0, mean = 0, high = 0;
};
GranularityCalibration mh_moe_calibration();

/// A law the planner can use, by name.
struct QualityLaw {
    std::string_view name, source, validity;
    /// @param base  the model that others are compared with; some laws are only good for
    /// differences
    QualityEstimate (*estimate)(const QualityCase&, const QualityCase& base);
};
std::span<const QualityLaw> quality_laws();
/// @return null if there is no law of this name
const QualityLaw* find_quality_law(std::string_view name);

/// Tokens that this model needs to reach the loss that `base` reaches after its own tokens: at the
/// law's low, central and high loss. Infinite where the law says never.
struct TokensToLoss {
    double best = 0, central = 0, worst = 0;
};
TokensToLoss tokens_to_base_loss(const QualityLaw&, const QualityCase&, const QualityCase& base);

/// Loss beyond which experts see too little of a token: MH-MoE's own ablation (arXiv 2404.15045,
/// table 5) loses quality below a sub-token width of 128.
inline constexpr int kNarrowSubToken = 128;

}  // namespace moeplan
