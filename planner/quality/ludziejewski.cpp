/// Ludziejewski et al. 2025: experts, active parameters and tokens jointly.
/// @source arXiv 2502.05172, table 3 (exponents are negative as printed)

#include <cmath>

#include "planner/quality/law_parts.hpp"
#include "planner/quality/quality_law.hpp"

namespace moeplan {

JointFit ludziejewski_fit(double experts) {
    constexpr double a = 35.91, alpha = -0.1889, delta = -0.2285, gamma = 0.0098;
    constexpr double b = 35.98, beta = -0.1775, omega = 0.5529, zeta = -0.0259;
    constexpr double start = 2.0732, most = 290.4521, c = 1.3637;
    const double e = saturated(experts, start, most);
    return {.m = a * std::pow(e, delta),
            .mu = alpha + gamma * std::log(e),
            .n = b * std::pow(e, omega),
            .nu = beta + zeta * std::log(e),
            .c = c};
}

double ludziejewski_loss(double active_parameters, double tokens, double experts) {
    const JointFit fit = ludziejewski_fit(experts);
    return fit.m * std::pow(active_parameters, fit.mu) + fit.n * std::pow(tokens, fit.nu) + fit.c;
}

Allocation ludziejewski_optimum(double flops, double experts) {
    // d/dN of m N^-p + n (6N/F)^q... set to zero: N = G (F/6)^(q/(p+q)), G = (p m / q n)^(1/(p+q)).
    const JointFit fit = ludziejewski_fit(experts);
    const double p = std::abs(fit.mu), q = std::abs(fit.nu);
    const double scale = std::pow(p * fit.m / (q * fit.n), 1 / (p + q));
    const double n = scale * std::pow(flops / 6, q / (p + q));
    return {n, flops / (6 * n)};
}

namespace quality {

// Stated, not published: about the coefficient rounding seen in the law it generalises.
constexpr double kResidual = 0.025;

QualityEstimate ludziejewski(const QualityCase& model, const QualityCase&) {
    const double loss = ludziejewski_loss(model.active_parameters, model.tokens, model.expansion());
    QualityEstimate out{loss, loss - kResidual, loss + kResidual, "ludziejewski_2025", {}, {}};
    note_outside(out, "expansion", model.expansion(), 1, 32);
    note_outside(out, "granularity", model.slots(), 1, 1);
    note_outside(out, "total parameters", model.total_parameters, 0, 5e9);
    note_common(out, model);
    return out;
}

}  // namespace quality
}  // namespace moeplan
