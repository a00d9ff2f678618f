#pragma once
/// A smooth correction over shapes: what measured times say about a formula, where they say it.
///
/// Published tables scatter by 5 to 10 % from one neighbour to the next (clocks, caches, a
/// library's choices), so the logarithm of time over formula is smoothed, not interpolated:
/// Gaussian process regression with a squared-exponential kernel (Rasmussen and Williams 2006,
/// eq. 2.23) around the points' mean. Far from every point the correction is that mean.

#include <array>
#include <vector>

namespace moeplan {

/// Standard deviations of the logarithm. The points' own spread beyond the noise replaces
/// `amplitude` where it is larger.
struct Smoothing {
    double octaves = 1;  ///< distance over which shapes resemble each other, each axis
    double amplitude = 0.1, noise = 0.08;
};

struct ResidualPoint {
    std::array<double, 3> shape{};  ///< base-2 logarithms
    double log_ratio = 0;           ///< natural logarithm of measured over formula
};

class ResidualSurface {
  public:
    ResidualSurface() = default;
    ResidualSurface(const std::vector<ResidualPoint>& all, const Smoothing& smoothing);

    bool empty() const { return values_.empty(); }
    /// Measured over formula at a shape; 1 if empty.
    double ratio(const std::array<double, 3>& shape) const;
    /// Within a factor of two of the box of points.
    bool covers(const std::array<double, 3>& shape) const;

  private:
    // The regression on a grid of half octaves, two octaves beyond the points: a look-up is eight
    // values.
    std::array<double, 3> low_{}, high_{};
    std::array<int, 3> count_{};
    std::vector<float> values_;
};

}  // namespace moeplan
