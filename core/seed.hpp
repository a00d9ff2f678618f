#pragma once
/// Seeded draws by name and index: the same whatever the number of threads or ranks, or the order
/// of drawing.

#include <cstdint>
#include <string_view>

namespace moeplan {

struct Seed {
    std::uint64_t value = 0;
    constexpr bool operator==(const Seed&) const = default;
};

/// 64 uniform bits that depend on the seed, the name of what is drawn and its index alone (a
/// SplitMix64 hash chain).
std::uint64_t draw(Seed seed, std::string_view name, std::uint64_t index = 0);

/// A seed of its own for a part of the work.
Seed derive(Seed seed, std::string_view name, std::uint64_t index = 0);

/// One step of SplitMix64 (Steele, Lea, Flood 2014): the finalizer with which all draws are made.
constexpr std::uint64_t mix(std::uint64_t bits) {
    bits += 0x9e3779b97f4a7c15ULL;
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9ULL;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebULL;
    return bits ^ (bits >> 31);
}

/// A stream of draws for code that needs many in sequence. Distributions are ours: the standard
/// leaves theirs open.
class DrawStream {
  public:
    explicit DrawStream(Seed seed) : state_(seed.value) {}

    std::uint64_t bits() {
        const std::uint64_t out = mix(state_);
        state_ += 0x9e3779b97f4a7c15ULL;
        return out;
    }
    /// in [0, 1), 53 bits
    double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
    std::uint64_t below(std::uint64_t n);  ///< uniform in 0 … n−1, unbiased; n ≥ 1
    double normal();                       ///< mean 0, variance 1 (Box–Muller, one value a call)
    double exponential();                  ///< mean 1
    double gamma(double shape);            ///< scale 1 (Marsaglia–Tsang 2000)

  private:
    std::uint64_t state_;
};

}  // namespace moeplan
