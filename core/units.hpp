#pragma once
/// Units as types: an amount carries the exponents of byte, second and flop, so that dividing
/// `Bytes` by `BytesPerSecond` *is* `Seconds`, and the other way round does not compile.

#include <compare>

namespace moeplan {

/// A quantity of dimension byte^B · second^S · flop^F, held in base units.
template <int B, int S, int F>
struct Quantity {
    double value = 0;  ///< in base units; take it only at an edge (a file, a library call)

    constexpr auto operator<=>(const Quantity&) const = default;

    constexpr Quantity operator-() const { return {-value}; }
    constexpr Quantity& operator+=(Quantity other) {
        value += other.value;
        return *this;
    }
    constexpr Quantity& operator-=(Quantity other) {
        value -= other.value;
        return *this;
    }
    constexpr Quantity& operator*=(double factor) {
        value *= factor;
        return *this;
    }
    constexpr Quantity& operator/=(double factor) {
        value /= factor;
        return *this;
    }
    friend constexpr Quantity operator+(Quantity a, Quantity b) { return {a.value + b.value}; }
    friend constexpr Quantity operator-(Quantity a, Quantity b) { return {a.value - b.value}; }
    friend constexpr Quantity operator*(Quantity a, double b) { return {a.value * b}; }
    friend constexpr Quantity operator*(double a, Quantity b) { return {a * b.value}; }
    friend constexpr Quantity operator/(Quantity a, double b) { return {a.value / b}; }
};

/// Product and quotient of two quantities; a dimensionless result is a plain number.
template <int B1, int S1, int F1, int B2, int S2, int F2>
constexpr auto operator*(Quantity<B1, S1, F1> a, Quantity<B2, S2, F2> b) {
    if constexpr (B1 + B2 == 0 && S1 + S2 == 0 && F1 + F2 == 0)
        return a.value * b.value;
    else
        return Quantity<B1 + B2, S1 + S2, F1 + F2>{a.value * b.value};
}
template <int B1, int S1, int F1, int B2, int S2, int F2>
constexpr auto operator/(Quantity<B1, S1, F1> a, Quantity<B2, S2, F2> b) {
    if constexpr (B1 == B2 && S1 == S2 && F1 == F2)
        return a.value / b.value;
    else
        return Quantity<B1 - B2, S1 - S2, F1 - F2>{a.value / b.value};
}

using Bytes = Quantity<1, 0, 0>;
using Seconds = Quantity<0, 1, 0>;
using Flops = Quantity<0, 0, 1>;  ///< an amount of work, not a rate
using BytesPerSecond = Quantity<1, -1, 0>;
using FlopsPerSecond = Quantity<0, -1, 1>;

namespace literals {
#define MOEPLAN_LITERAL(suffix, type, factor)                  \
    constexpr type operator""_##suffix(long double x) {        \
        return {static_cast<double>(x) * (factor)};            \
    }                                                          \
    constexpr type operator""_##suffix(unsigned long long x) { \
        return {static_cast<double>(x) * (factor)};            \
    }
MOEPLAN_LITERAL(s, Seconds, 1.0)
MOEPLAN_LITERAL(ms, Seconds, 1e-3)
MOEPLAN_LITERAL(us, Seconds, 1e-6)
MOEPLAN_LITERAL(ns, Seconds, 1e-9)
MOEPLAN_LITERAL(B, Bytes, 1.0)
MOEPLAN_LITERAL(KB, Bytes, 1e3)
MOEPLAN_LITERAL(MB, Bytes, 1e6)
MOEPLAN_LITERAL(GB, Bytes, 1e9)
MOEPLAN_LITERAL(KiB, Bytes, 1024.0)
MOEPLAN_LITERAL(MiB, Bytes, 1024.0 * 1024)
MOEPLAN_LITERAL(GiB, Bytes, 1024.0 * 1024 * 1024)
MOEPLAN_LITERAL(GBps, BytesPerSecond, 1e9)
MOEPLAN_LITERAL(TBps, BytesPerSecond, 1e12)
MOEPLAN_LITERAL(Gbps, BytesPerSecond, 1e9 / 8)
MOEPLAN_LITERAL(GFlop, Flops, 1e9)
MOEPLAN_LITERAL(TFlop, Flops, 1e12)
MOEPLAN_LITERAL(TFlops, FlopsPerSecond, 1e12)  ///< TFlop/s
#undef MOEPLAN_LITERAL
}  // namespace literals

}  // namespace moeplan
