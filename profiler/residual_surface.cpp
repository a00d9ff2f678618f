#include "profiler/residual_surface.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <utility>

namespace moeplan {
namespace {

constexpr double kStep = 0.5, kMargin = 2;  // octaves

double bell(double distance, double octaves) {
    const double d = distance / octaves;
    return std::exp(-0.5 * d * d);
}

/// Solves (K + noise²)·x = y by Cholesky's factorisation; K is positive definite.
std::vector<double> solve(std::vector<double> a, std::vector<double> y) {
    const std::size_t n = y.size();
    for (std::size_t i = 0; i < n; ++i)
        for (std::size_t j = 0; j <= i; ++j) {
            double sum = a[i * n + j];
            for (std::size_t l = 0; l < j; ++l) sum -= a[i * n + l] * a[j * n + l];
            a[i * n + j] = i == j ? std::sqrt(sum) : sum / a[j * n + j];
        }
    for (std::size_t i = 0; i < n; ++i) {
        for (std::size_t l = 0; l < i; ++l) y[i] -= a[i * n + l] * y[l];
        y[i] /= a[i * n + i];
    }
    for (std::size_t i = n; i-- > 0;) {
        for (std::size_t l = i + 1; l < n; ++l) y[i] -= a[l * n + i] * y[l];
        y[i] /= a[i * n + i];
    }
    return y;
}

}  // namespace

ResidualSurface::ResidualSurface(const std::vector<ResidualPoint>& all,
                                 const Smoothing& smoothing) {
    if (all.empty()) return;
    // Repeats of a shape (siblings' tables) are one point of their mean with as much less noise:
    // the same regression, a smaller matrix.
    std::map<std::array<double, 3>, std::pair<double, double>> repeats;  // shape → sum, count
    for (const auto& point : all) {
        auto& [sum, count] = repeats[point.shape];
        sum += point.log_ratio, ++count;
    }
    std::vector<ResidualPoint> points;
    std::vector<double> counts;
    for (const auto& [shape, repeated] : repeats) {
        points.push_back({shape, repeated.first / repeated.second});
        counts.push_back(repeated.second);
    }
    const std::size_t n = points.size();
    double mean = 0, spread = 0;
    for (const auto& point : points) mean += point.log_ratio / static_cast<double>(n);
    for (const auto& point : points)
        spread += (point.log_ratio - mean) * (point.log_ratio - mean) / static_cast<double>(n);
    const double noise = smoothing.noise * smoothing.noise,
                 variance = std::max(smoothing.amplitude * smoothing.amplitude, spread - noise);
    std::vector<double> covariance(n * n), y(n);
    for (std::size_t i = 0; i < n; ++i) {
        y[i] = points[i].log_ratio - mean;
        for (std::size_t j = 0; j <= i; ++j) {
            double k = variance;
            for (std::size_t axis = 0; axis < 3; ++axis)
                k *= bell(points[i].shape[axis] - points[j].shape[axis], smoothing.octaves);
            covariance[i * n + j] = k + (i == j ? noise / counts[i] : 0);
        }
    }
    const std::vector<double> weights = solve(std::move(covariance), std::move(y));

    std::array<std::vector<double>, 3>
        bells;  // [axis]: [nodes, points]; the kernel is their product
    for (std::size_t axis = 0; axis < 3; ++axis) {
        low_[axis] = std::numeric_limits<double>::infinity();
        high_[axis] = -low_[axis];
        for (const auto& point : points) {
            low_[axis] = std::min(low_[axis], point.shape[axis]);
            high_[axis] = std::max(high_[axis], point.shape[axis]);
        }
        count_[axis] = 2 + static_cast<int>((high_[axis] - low_[axis] + 2 * kMargin) / kStep);
        for (int node = 0; node < count_[axis]; ++node)
            for (const auto& point : points)
                bells[axis].push_back(bell(low_[axis] - kMargin + kStep * node - point.shape[axis],
                                           smoothing.octaves));
    }
    values_.reserve(static_cast<std::size_t>(count_[0]) * static_cast<std::size_t>(count_[1]) *
                    static_cast<std::size_t>(count_[2]));
    std::vector<double> first(n), second(n);
    for (int a = 0; a < count_[0]; ++a) {
        const double* bell_a = &bells[0][static_cast<std::size_t>(a) * n];
        for (std::size_t i = 0; i < n; ++i) first[i] = variance * weights[i] * bell_a[i];
        for (int b = 0; b < count_[1]; ++b) {
            const double* bell_b = &bells[1][static_cast<std::size_t>(b) * n];
            for (std::size_t i = 0; i < n; ++i) second[i] = first[i] * bell_b[i];
            for (int c = 0; c < count_[2]; ++c) {
                const double* bell_c = &bells[2][static_cast<std::size_t>(c) * n];
                double sum = mean;
                for (std::size_t i = 0; i < n; ++i) sum += second[i] * bell_c[i];
                values_.push_back(static_cast<float>(sum));
            }
        }
    }
}

double ResidualSurface::ratio(const std::array<double, 3>& shape) const {
    if (values_.empty()) return 1;
    std::array<std::size_t, 3> at{};
    std::array<double, 3> share{};
    for (std::size_t axis = 0; axis < 3; ++axis) {
        const double place = std::clamp((shape[axis] - low_[axis] + kMargin) / kStep, 0.0,
                                        static_cast<double>(count_[axis] - 1) - 1e-9);
        at[axis] = static_cast<std::size_t>(place);
        share[axis] = place - static_cast<double>(at[axis]);
    }
    const auto columns = static_cast<std::size_t>(count_[2]),
               rows = static_cast<std::size_t>(count_[1]);
    double sum = 0;
    for (std::size_t corner = 0; corner < 8; ++corner) {
        const std::size_t a = corner & 1, b = (corner >> 1) & 1, c = (corner >> 2) & 1;
        sum += (a ? share[0] : 1 - share[0]) * (b ? share[1] : 1 - share[1]) *
               (c ? share[2] : 1 - share[2]) *
               static_cast<double>(values_[((at[0] + a) * rows + at[1] + b) * columns + at[2] + c]);
    }
    return std::exp(sum);
}

bool ResidualSurface::covers(const std::array<double, 3>& shape) const {
    for (std::size_t axis = 0; axis < 3; ++axis)
        if (shape[axis] < low_[axis] - 1 || shape[axis] > high_[axis] + 1) return false;
    return !values_.empty();
}

}  // namespace moeplan
