/// Tian et al. 2025: efficiency leverage. @source arXiv 2507.17702. The paper leaves the
/// logarithms' bases open; base ten for compute and base two for granularity are the only ones of
/// those tried that give its text: EL(3.1 %, 12, 1e22) > 7 and an optimum near G = 12.

#include <cmath>

#include "planner/quality/law_parts.hpp"
#include "planner/quality/quality_law.hpp"

namespace moeplan {

double efficiency_leverage(double activation, double granularity, double flops) {
    constexpr double a = 1.23, d = -7.61e-2, gamma = 1.67e-2, beta = -1.17e-1;
    constexpr double start = 1.63e-2, most = 5.28e16;
    // The saturation of Clark et al. with the share itself in place of E − 1 (as printed: A, not A
    // − 1).
    const double share = saturated(1 + activation, start, most);
    const double alpha = a + d * std::log10(flops), g = std::log2(granularity);
    return std::pow(share, alpha + gamma * g * g + beta * g);
}

namespace quality {

QualityEstimate leverage(const QualityCase& model, const QualityCase&) {
    // By slots, as for the other laws: a token touches num_moe_heads · top_k experts, each as large
    // as a plain expert of 1 / num_moe_heads of its width.
    const double activation =
        (model.slots() + model.num_shared_experts) / (model.num_experts + model.num_shared_experts);
    const double granularity =
        2.0 * model.hidden_size * model.num_moe_heads / model.expert_hidden_size;
    const double compute = model.flops_per_token * model.tokens;
    const double gain = efficiency_leverage(activation, granularity, compute);
    // The law gives no loss. A dense model with `gain` times the compute has this one's loss; take
    // the dense loss from the joint law with one expert, at its best split into parameters and
    // tokens.
    const auto dense = [&](double times) {
        const Allocation at = ludziejewski_optimum(3 * compute * times, 1);
        return ludziejewski_loss(at.active_parameters, at.tokens, 1);
    };
    // No error bar is published: the range is the leverage times and over 1.2.
    QualityEstimate out{dense(gain), dense(gain * 1.2), dense(gain / 1.2), "tian_2025", {}, {}};
    out.notes.push_back(
        "the law gives compute at equal loss only; the loss is that of a "
        "compute-optimal dense model with that compute (ludziejewski_2025, E = 1)");
    note_outside(out, "compute", compute, 0, 1e22);  // the largest its text quotes
    note_common(out, model);
    return out;
}

}  // namespace quality
}  // namespace moeplan
