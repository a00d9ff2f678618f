/// Comparing resized models: what expansion brings by the joint laws, and what granularity brings
/// by Krajewski et al., scaled to what MH-MoE was seen to gain at equal FLOPs and parameters.

#include <algorithm>
#include <array>
#include <cmath>

#include "planner/quality/law_parts.hpp"
#include "planner/quality/quality_law.hpp"

namespace moeplan {
namespace {

// Huang et al. 2024, validation perplexity after 100k steps on RedPajama, Wiki and C4; equal FLOPs,
// and parameters within 3.2 %. Slots: top-1 of 8; top-2 of 16; 2 heads × top-2 of 40; 3 × top-3
// of 96.
struct Run {
    double slots;
    std::array<double, 3> perplexity;
};
constexpr std::array<Run, 4> kRuns = {{{1, {10.90, 9.68, 14.35}},
                                       {2, {10.74, 9.38, 13.97}},
                                       {4, {10.70, 9.26, 13.80}},
                                       {9, {10.51, 9.18, 13.63}}}};
constexpr double kRunParameters = 283e6;  ///< of these models, without embeddings

/// The part of the law's loss that granularity moves.
double granular_part(const GranularityFit& fit, double parameters, double granularity) {
    return fit.g / std::pow(granularity, fit.gamma) / std::pow(parameters, fit.alpha);
}

}  // namespace

GranularityCalibration mh_moe_calibration() {
    GranularityCalibration out{1e300, 0, 0};
    int count = 0;
    for (const Run& run : kRuns) {
        if (run.slots == 1) continue;
        const double predicted = granular_part(kKrajewskiE16, kRunParameters, run.slots) -
                                 granular_part(kKrajewskiE16, kRunParameters, 1);
        for (std::size_t corpus = 0; corpus < 3; ++corpus) {
            const double observed = std::log(run.perplexity[corpus] / kRuns[0].perplexity[corpus]);
            const double share = observed / predicted;
            out.low = std::min(out.low, share);
            out.high = std::max(out.high, share);
            out.mean += share;
            ++count;
        }
    }
    out.mean /= count;
    return out;
}

namespace quality {

QualityEstimate mh_calibrated(const QualityCase& model, const QualityCase& base) {
    // The level is the base model's by the joint law and shared by all that are compared with it:
    // only differences carry a range.
    const double level = ludziejewski_loss(base.active_parameters, base.tokens, base.expansion());

    const double joint =
        ludziejewski_loss(model.active_parameters, model.tokens, model.expansion()) - level;
    const double e = std::max(1.0, model.expansion()), e0 = std::max(1.0, base.expansion());
    // Clark's law holds tokens fixed: the tokens' part is the joint law's.
    const double tokens =
        ludziejewski_loss(base.active_parameters, model.tokens, base.expansion()) - level;
    const double unified = clark_loss(kClarkSBase, model.active_parameters, e) -
                           clark_loss(kClarkSBase, base.active_parameters, e0) + tokens;

    const double fine = granular_part(kKrajewskiE16, base.total_parameters, model.slots()) -
                        granular_part(kKrajewskiE16, base.total_parameters, base.slots());
    const GranularityCalibration seen = mh_moe_calibration();
    const double fine_low = std::min(fine * seen.low, fine * seen.high);
    const double fine_high = std::max(fine * seen.low, fine * seen.high);

    QualityEstimate out;
    out.law = "mh_calibrated";
    out.loss = level + (joint + unified) / 2 + fine * seen.mean;
    const double least = std::min(joint, unified) + fine_low;
    const double largest = std::max(joint, unified) + fine_high;
    out.difference = {least, largest};
    // The level itself, where the laws that give one disagree.
    const double granular = krajewski(base, base).loss, routed = clark(base, base).loss;
    out.low = std::min({level, granular, routed}) + least;
    out.high = std::max({level, granular, routed}) + largest;
    out.notes.push_back(
        "the level is ludziejewski_2025's, its range what the other laws say of the model asked for; "
        "candidates are compared by their difference from it");
    note_outside(out, "expansion", model.expansion(), 1, 32);
    note_outside(out, "granularity", model.slots(), 1, 9);
    note_outside(out, "total parameters", model.total_parameters, 0, 5e9);
    note_common(out, model);
    return out;
}

}  // namespace quality
}  // namespace moeplan
