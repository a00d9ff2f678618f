#pragma once
/// A kernel curve's columns.

#include <cmath>
#include <string>
#include <string_view>

#include "core/errors.hpp"
#include "core/text.hpp"
#include "profiler/profile.hpp"

namespace moeplan {

/// Columns of a curve by name, and where a message about them points.
struct CurveColumns {
    const KernelCurve& curve;
    std::string place;

    int find(std::string_view name) const {
        for (std::size_t i = 0; i < curve.columns.size(); ++i)
            if (curve.columns[i] == name) return static_cast<int>(i);
        return -1;
    }
    int need(std::string_view name) const {
        const int at = find(name);
        if (at < 0)
            throw InputError(place, "columns", join(curve.columns, ", "),
                             "a column \"" + std::string(name) + "\" for " + curve.kernel);
        return at;
    }
    double value(std::size_t row, int column) const {
        const double v = curve.rows[row][static_cast<std::size_t>(column)];
        if (!(v > 0) || !std::isfinite(v))
            throw InputError(place, "rows/" + std::to_string(row) + "/" + std::to_string(column),
                             exact_text(v),
                             "a positive " + curve.columns[static_cast<std::size_t>(column)]);
        return v;
    }
};

}  // namespace moeplan
