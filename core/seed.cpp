#include "core/seed.hpp"

#include <cassert>
#include <cmath>
#include <numbers>

namespace moeplan {

std::uint64_t draw(Seed seed, std::string_view name, std::uint64_t index) {
    std::uint64_t state = mix(seed.value);
    for (const char c : name) state = mix(state ^ static_cast<unsigned char>(c));
    return mix(state ^ mix(index + name.size()));
}

Seed derive(Seed seed, std::string_view name, std::uint64_t index) {
    return {draw(seed, name, index)};
}

std::uint64_t DrawStream::below(std::uint64_t n) {
    assert(n >= 1);
    const std::uint64_t limit =
        ~std::uint64_t{0} - (~std::uint64_t{0} % n + 1) % n;  // largest multiple of n, minus 1
    std::uint64_t value = bits();
    while (value > limit) value = bits();
    return value % n;
}

double DrawStream::normal() {
    const double radius = std::sqrt(2 * exponential());
    return radius * std::cos(2 * std::numbers::pi * uniform());
}

double DrawStream::exponential() { return -std::log1p(-uniform()); }

double DrawStream::gamma(double shape) {
    assert(shape > 0);
    if (shape < 1) return gamma(shape + 1) * std::exp(-exponential() / shape);
    const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
    while (true) {
        const double x = normal();
        double v = 1 + c * x;
        if (v <= 0) continue;
        v = v * v * v;
        const double u = uniform();
        if (std::log1p(-u) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
    }
}

}  // namespace moeplan
