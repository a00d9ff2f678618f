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
std::uint64_t mix(std::uint64_t bits);

/// A stream of draws for code that needs many in sequence. Distributions are ours: the standard
/// leaves theirs open.
class DrawStream {
  public:
    explicit DrawStream(Seed seed) : state_(seed.value) {}

    std::uint64_t bits();
    double uniform();                      ///< in [0, 1), 53 bits
    std::uint64_t below(std::uint64_t n);  ///< uniform in 0 … n−1, unbiased; n ≥ 1
    double normal();                       ///< mean 0, variance 1 (Box–Muller, one value a call)
    double exponential();                  ///< mean 1
    double gamma(double shape);            ///< scale 1 (Marsaglia–Tsang 2000)

  private:
    std::uint64_t state_;
};

}  // namespace moeplan
