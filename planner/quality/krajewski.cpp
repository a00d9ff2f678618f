/// Krajewski et al. 2024: granularity. @source arXiv 2402.07871, table of coefficients

#include <algorithm>
#include <cmath>

#include "planner/quality/law_parts.hpp"
#include "planner/quality/quality_law.hpp"

namespace moeplan {

const GranularityFit kKrajewskiE64{"E = 64", 18.1, 0.115, 30.8, 0.147, 2.1, 0.58, 0.47};
const GranularityFit kKrajewskiE16{"E = 16", 19.64, 0.124, 57.07, 0.169, 1.18, 0.986, 0.472};

double krajewski_loss(const GranularityFit& fit, double parameters, double tokens,
                      double granularity) {
    const double size =
        (fit.g / std::pow(granularity, fit.gamma) + fit.a) / std::pow(parameters, fit.alpha);
    return fit.c + size + fit.b / std::pow(tokens, fit.beta);
}

namespace quality {

// Its own table 2 comes back within this: the printed coefficients are rounded.
constexpr double kRounding = 0.025;

QualityEstimate krajewski(const QualityCase& model, const QualityCase&) {
    const double g = model.slots();
    const double a = krajewski_loss(kKrajewskiE64, model.total_parameters, model.tokens, g);
    const double b = krajewski_loss(kKrajewskiE16, model.total_parameters, model.tokens, g);
    QualityEstimate out{
        (a + b) / 2, std::min(a, b) - kRounding, std::max(a, b) + kRounding, "krajewski_2024", {}, {}};
    note_outside(out, "granularity", g, 1, 16);
    note_outside(out, "expansion rate", model.expansion(), 16, 64);
    note_outside(out, "total parameters", model.total_parameters, 129e6, 3.7e9);
    note_common(out, model);
    return out;
}

}  // namespace quality
}  // namespace moeplan
