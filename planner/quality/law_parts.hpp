#pragma once
/// What the laws share: notes on where each is extrapolated, and the registry's entries.

#include <string_view>

#include "planner/quality/quality_law.hpp"

namespace moeplan::quality {

/// Adds "<what> <value> is outside the fitted <least> … <most>" where it is.
void note_outside(QualityEstimate&, std::string_view what, double value, double least, double most);
/// What no law sees: sub-tokens, narrow experts, document pools.
void note_common(QualityEstimate&, const QualityCase&);

QualityEstimate krajewski(const QualityCase&, const QualityCase& base);
QualityEstimate ludziejewski(const QualityCase&, const QualityCase& base);
QualityEstimate clark(const QualityCase&, const QualityCase& base);
QualityEstimate leverage(const QualityCase&, const QualityCase& base);
QualityEstimate abnar(const QualityCase&, const QualityCase& base);
QualityEstimate mh_calibrated(const QualityCase&, const QualityCase& base);

}  // namespace moeplan::quality
