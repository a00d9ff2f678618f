#pragma once
/// Every tolerance that tests use, named once, with the reason for its size.

namespace moeplan {

/// Paper arithmetic against the same formula in doubles: some tens of roundings of 1.1e-16 each,
/// with two decades of room.
inline constexpr double kArithmetic = 1e-12;

/// Two engines that share links by the same rule: thousands of sums of rates in another order, and SimGrid's 1e-12 s clock grain.
inline constexpr double kFlowEngines = 1e-9;

/// |a − b| ≤ tolerance · |b|, or both zero.
inline bool close(double a, double b, double tolerance = kArithmetic) {
    const double d = a > b ? a - b : b - a, size = b < 0 ? -b : b;
    return d <= tolerance * size;
}

}  // namespace moeplan
