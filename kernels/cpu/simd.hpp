/// Vectors of one cache line by the compiler's vector extension: the same source, and the same
/// bytes of result, on SSE2, AVX2 and AVX-512 (lanes are added in one fixed order and products are
/// not fused).
///
/// Included by sources that are compiled once for each instruction set (MOEPLAN_ISA). Everything
/// here is in an unnamed namespace, and no template of the standard library is used: a merged copy
/// with the wrong instructions would run on a CPU that lacks them.
#pragma once

#include <cstdint>
#include <cstring>

#pragma GCC diagnostic ignored "-Wpsabi"  // vectors never cross a call: all is inlined

namespace moeplan {
namespace {

#define MOEPLAN_INLINE inline __attribute__((always_inline))

template <class T>
struct Vector;
template <>
struct Vector<float> {
    typedef float type __attribute__((vector_size(64)));
    typedef std::int32_t integers __attribute__((vector_size(64)));
    static constexpr std::int64_t lanes = 16;
};
template <>
struct Vector<double> {
    typedef double type __attribute__((vector_size(64)));
    typedef std::int64_t integers __attribute__((vector_size(64)));
    static constexpr std::int64_t lanes = 8;
};
template <class T>
using Vec = typename Vector<T>::type;
template <class T>
constexpr std::int64_t kLanes = Vector<T>::lanes;

/// `count` lanes from memory, the rest filled.
template <class T>
MOEPLAN_INLINE Vec<T> load(const T* from, std::int64_t count = kLanes<T>, T fill = 0) {
    Vec<T> out = Vec<T>{} + fill;
    if (count == kLanes<T>)
        std::memcpy(&out, from, sizeof out);
    else
        for (std::int64_t i = 0; i < count; ++i) out[i] = from[i];
    return out;
}
template <class T>
MOEPLAN_INLINE void store(T* to, Vec<T> value, std::int64_t count = kLanes<T>) {
    if (count == kLanes<T>)
        std::memcpy(to, &value, sizeof value);
    else
        for (std::int64_t i = 0; i < count; ++i) to[i] = value[i];
}

/// body(i, lanes at i) over 0 … n−1.
template <class T, class Body>
MOEPLAN_INLINE void each(std::int64_t n, Body body) {
    std::int64_t i = 0;
    for (; i + kLanes<T> <= n; i += kLanes<T>) body(i, kLanes<T>);
    if (i < n) body(i, n - i);
}

/// Sum of the lanes, halves first: one fixed order.
template <class T>
MOEPLAN_INLINE T sum_lanes(Vec<T> v) {
    for (std::int64_t half = kLanes<T> / 2; half > 0; half /= 2)
        for (std::int64_t i = 0; i < half; ++i) v[i] += v[i + half];
    return v[0];
}
template <class T>
MOEPLAN_INLINE T max_lanes(Vec<T> v) {
    for (std::int64_t half = kLanes<T> / 2; half > 0; half /= 2)
        for (std::int64_t i = 0; i < half; ++i) v[i] = v[i + half] > v[i] ? v[i + half] : v[i];
    return v[0];
}

/// e^x to 1 ulp or two (Cephes' polynomial after removing whole powers of two). NaN stays NaN;
/// below −87.3 the result is about 1e−38 or 0.
MOEPLAN_INLINE Vec<float> exp_of(Vec<float> x) {
    using V = Vec<float>;
    const V low = V{} - 87.33654f, high = V{} + 88.37626f;
    const V inside = x < low ? low : (x > high ? high : x);
    const V magic = V{} + 12582912.f;  // 1.5 · 2^23: adding it rounds to whole numbers
    const V powers = (inside * 1.44269504088896341f + magic) - magic;
    V r = inside - powers * 0.693359375f;
    r = r - powers * -2.12194440e-4f;
    V p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.f;
    Vector<float>::integers exponent = __builtin_convertvector(powers, Vector<float>::integers);
    exponent = (exponent + 127) << 23;
    V scale;
    std::memcpy(&scale, &exponent, sizeof scale);
    const V zero = V{};
    const V result = p * scale;
    // Probabilities of masked experts and keys must be zero, not 1e−38.
    return x < low ? zero : (x != x ? x : result);
}
MOEPLAN_INLINE Vec<double> exp_of(Vec<double> x) {
    Vec<double> out;
    for (std::int64_t i = 0; i < kLanes<double>; ++i) out[i] = __builtin_exp(x[i]);
    return out;
}
MOEPLAN_INLINE float exp_of(float x) { return exp_of(Vec<float>{} + x)[0]; }
MOEPLAN_INLINE double exp_of(double x) { return __builtin_exp(x); }
MOEPLAN_INLINE float log_of(float x) { return __builtin_logf(x); }
MOEPLAN_INLINE double log_of(double x) { return __builtin_log(x); }
MOEPLAN_INLINE float root_of(float x) { return __builtin_sqrtf(x); }
MOEPLAN_INLINE double root_of(double x) { return __builtin_sqrt(x); }

template <class T>
MOEPLAN_INLINE T dot(const T* a, const T* b, std::int64_t n) {
    Vec<T> sum{};
    each<T>(n, [&](std::int64_t i, std::int64_t c) { sum += load(a + i, c) * load(b + i, c); });
    return sum_lanes<T>(sum);
}

}  // namespace
}  // namespace moeplan
