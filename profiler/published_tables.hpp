#pragma once
/// Published tables as corrections of a GPU's models (gemm_model.hpp, residual_surface.hpp).

#include <vector>

#include "profiler/curve_columns.hpp"
#include "profiler/curve_index.hpp"

namespace moeplan {

/// Whether a curve corrects a model in place of answering by its lines: published, of a forward
/// product or attention, on a GPU that has the model.
bool corrects_a_model(const Profile&, const KernelCurve&, const KernelName&);

/// ln(time/model) at each row, on the device where the curve was measured.
std::vector<ResidualPoint> residuals_of(const Profile&, const KernelCurve&, const KernelName&,
                                        const CurveColumns&);

}  // namespace moeplan
