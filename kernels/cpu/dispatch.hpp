#pragma once
/// From a number format to the type the loops run in.

#include "kernels/kernel_set.hpp"

namespace moeplan {
namespace {

/// body(T{}) for f32 and f64; kUnsupported for others: the CPU's loops know these two.
template <class Body>
inline __attribute__((always_inline)) Status in_format(NumberFormat format, Body body) {
    if (format == NumberFormat::f32) {
        body(float{});
        return {};
    }
    if (format == NumberFormat::f64) {
        body(double{});
        return {};
    }
    return status_of(kUnsupported, "the CPU backend computes in f32, f64 and bf16");
}

}  // namespace
}  // namespace moeplan
