/// Clark et al. 2022: routed language models. @source arXiv 2202.01169 (constants by way of later
/// papers that quote them); logarithms to base ten: S-BASE, N = 1.3e9, E = 1 gives 2.237

#include <algorithm>
#include <cmath>

#include "planner/quality/law_parts.hpp"
#include "planner/quality/quality_law.hpp"

namespace moeplan {

const UnifiedFit kClarkSBase{"S-BASE", -0.082, -0.108, 0.009, 1.104, 1.847, 314.478};
const UnifiedFit kClarkReinforced{"RL-R", -0.083, -0.126, 0.012, 1.111, 1.880, 469.982};
const UnifiedFit kClarkHash{"HASH", -0.087, -0.136, 0.012, 1.157, 4.175, 477.741};

double saturated(double experts, double start, double most) {
    return 1 / (1 / (experts - 1 + 1 / (1 / start - 1 / most)) + 1 / most);
}

double clark_loss(const UnifiedFit& fit, double dense_parameters, double experts) {
    const double n = std::log10(dense_parameters);
    const double e = std::log10(saturated(experts, fit.start, fit.most));
    return std::pow(10, fit.a * n + fit.b * e + fit.c * n * e + fit.d);
}

namespace quality {

QualityEstimate clark(const QualityCase& model, const QualityCase&) {
    const double e = std::max(1.0, model.expansion());
    const double losses[] = {clark_loss(kClarkSBase, model.active_parameters, e),
                             clark_loss(kClarkReinforced, model.active_parameters, e),
                             clark_loss(kClarkHash, model.active_parameters, e)};
    const auto [low, high] = std::minmax_element(std::begin(losses), std::end(losses));
    QualityEstimate out{losses[0], *low, *high, "clark_2022", {}, {}};
    note_outside(out, "dense-base parameters", model.active_parameters, 15e6, 1.3e9);
    note_outside(out, "expansion", model.expansion(), 1, 512);
    note_outside(out, "training tokens", model.tokens, 130e9, 130e9);
    note_common(out, model);
    return out;
}

}  // namespace quality
}  // namespace moeplan
