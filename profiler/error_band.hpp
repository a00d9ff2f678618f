#pragma once
/// How far predictions of a kind have been from what was measured.

#include <string>
#include <vector>

namespace moeplan {

/// Of measured / predicted, as logarithms: where 80 % of published runs lie, each predicted with
/// constants fitted without its own source.
struct ErrorBand {
    std::string architecture;  ///< dense, moe
    bool narrow = false;       ///< fp8 and fp4 recipes
    double low = 0, high = 0;
    int records = 0, sources = 0;
    bool operator==(const ErrorBand&) const = default;
};

/// Of that kind; nullptr if none is known.
inline const ErrorBand* band_of(const std::vector<ErrorBand>& bands, bool moe, bool narrow) {
    for (const ErrorBand& band : bands)
        if (band.architecture == (moe ? "moe" : "dense") && band.narrow == narrow) return &band;
    return nullptr;
}

}  // namespace moeplan
