#include "planner/quality/quality_law.hpp"

#include <array>
#include <cmath>
#include <limits>
#include <sstream>

#include "model/op_counts.hpp"
#include "planner/quality/law_parts.hpp"

namespace moeplan {
namespace {

std::string short_number(double value) {
    std::ostringstream out;
    out.precision(3);
    out << value;
    return out.str();
}

constexpr std::array<QualityLaw, 6> kLaws = {{
    {"mh_calibrated",
     "arXiv 2502.05172 and 2202.01169 for the number of experts, arXiv 2402.07871 for granularity "
     "scaled "
     "to the runs of arXiv 2411.16205",
     "differences between models of equal flops; fitted below 5 G parameters",
     quality::mh_calibrated},
    {"krajewski_2024", "arXiv 2402.07871",
     "granularity 1 … 16, expansion 16 … 64, 0.129 … 3.7 G "
     "parameters, every layer MoE",
     quality::krajewski},
    {"ludziejewski_2025", "arXiv 2502.05172",
     "top-1, granularity 1, up to 32 experts, up to 5 G "
     "parameters in all",
     quality::ludziejewski},
    {"clark_2022", "arXiv 2202.01169", "top-1, 130 G tokens", quality::clark},
    {"tian_2025", "arXiv 2507.17702", "compute at equal loss; read through ludziejewski_2025",
     quality::leverage},
    {"abnar_2025", "arXiv 2501.12370", "poor held-out fit", quality::abnar},
}};

}  // namespace

namespace quality {

void note_outside(QualityEstimate& estimate, std::string_view what, double value, double least,
                  double most) {
    if (value >= least && value <= most) return;
    std::string fitted = least == most ? "the fitted " + short_number(least)
                         : least == 0
                             ? "what was fitted, at most " + short_number(most)
                             : "the fitted " + short_number(least) + " … " + short_number(most);
    estimate.notes.push_back("extrapolated: " + std::string(what) + " " + short_number(value) +
                             " is outside " + fitted);
}

void note_common(QualityEstimate& estimate, const QualityCase& model) {
    if (model.num_moe_heads > 1)
        estimate.notes.push_back("extrapolated: no law was fitted on sub-tokens; " +
                                 std::to_string(model.num_moe_heads) + " heads × top-" +
                                 std::to_string(model.top_k) + " count as " +
                                 short_number(model.slots()) + " slots");
    if (model.num_moe_heads > 1 && model.sub_token_size() < kNarrowSubToken)
        estimate.notes.push_back("warning: an expert sees " + short_number(model.sub_token_size()) +
                                 " of a token's " + std::to_string(model.hidden_size) +
                                 " values; below " + std::to_string(kNarrowSubToken) +
                                 " loss rose in MH-MoE's own ablation (arXiv 2404.15045, table 5)");
    if (model.pooled)
        estimate.notes.push_back(
            "no law knows document pools: their cost in loss is not in this range");
}

}  // namespace quality

QualityCase quality_case(const ModelSpec& model, double tokens) {
    QualityCase out;
    out.hidden_size = model.hidden_size;
    out.tokens = tokens;
    if (const MoeFeedForward* moe = first_moe(model)) {
        out.num_experts = moe->num_experts;
        out.num_shared_experts = moe->num_shared_experts;
        out.top_k = moe->top_k;
        out.num_moe_heads = moe->num_moe_heads;
        out.expert_hidden_size = moe->expert_hidden_size;
        out.pooled = moe->pool.has_value();
    } else if (!model.layers.empty()) {
        out.expert_hidden_size =
            std::get<DenseFeedForward>(model.layers.front().feed_forward).dense_hidden_size;
    }
    const ParameterCounts counts = count_parameters(model);
    out.active_parameters = static_cast<double>(counts.active_without_embeddings);
    out.total_parameters = static_cast<double>(
        counts.total - (counts.active_with_embeddings - counts.active_without_embeddings));
    out.flops_per_token = 2 * out.active_parameters;
    return out;
}

std::span<const QualityLaw> quality_laws() { return kLaws; }

const QualityLaw* find_quality_law(std::string_view name) {
    for (const QualityLaw& law : kLaws)
        if (law.name == name) return &law;
    return nullptr;
}

TokensToLoss tokens_to_base_loss(const QualityLaw& law, const QualityCase& model,
                                 const QualityCase& base) {
    const double aim = law.estimate(base, base).loss;
    // Loss falls with tokens: bisect their logarithm between 1/1000 and 1000 times the base's.
    const auto solve = [&](double QualityEstimate::*end) {
        const auto loss = [&](double tokens) {
            QualityCase at = model;
            at.tokens = tokens;
            return law.estimate(at, base).*end;
        };
        double low = base.tokens * 1e-3, high = base.tokens * 1e3;
        if (loss(high) > aim) return std::numeric_limits<double>::infinity();
        if (loss(low) <= aim) return low;
        for (int i = 0; i < 60; ++i) {
            const double middle = std::sqrt(low * high);
            (loss(middle) > aim ? low : high) = middle;
        }
        return high;
    };
    return {solve(&QualityEstimate::low), solve(&QualityEstimate::loss),
            solve(&QualityEstimate::high)};
}

}  // namespace moeplan
