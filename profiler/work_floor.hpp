#pragma once
/// The least time a kernel can take: flops over peak with tiles and waves counted, or bytes over
/// bandwidth. Efficiency is this floor over the time, so it varies slowly with the shape and can be
/// interpolated.

#include "profiler/profile.hpp"

namespace moeplan {

/// A matrix product as it runs: [rows, depth] × [depth, columns].
struct Product {
    double rows = 0, columns = 0, depth = 0;
};

enum class GemmKind : std::uint8_t { forward, input_gradient, weight_gradient };

/// The product behind a layer's Gemm {m, n, k}: forward [m, n, k], input gradient [m, k, n], weight
/// gradient [k, n, m].
Product product_of(GemmKind, double m, double n, double k);

/// Time of `products` equal work under wave quantisation: `tiles` tiles of this size on the GPU's
/// multiprocessors.
///
/// Below one wave the whole wave's time passes. Above, the last wave is half hidden on average
/// (stream-k, split tiles, clock boost): the mean of tiles/SMs and its ceiling.
/// @source the fit over published GEMM tables in docs/profiles.md
Seconds tile_time(const Roofline&, FlopsPerSecond peak, double tiles, const Tile&, double depth);

/// Floor of one product, in a precision whose peak and element sizes are given.
struct ElementSizes {
    double in = 4, out = 4;
};
Seconds product_floor(const Roofline&, FlopsPerSecond peak, const Product&, ElementSizes,
                      double extra_bytes_per_output);

/// Floor of a group of products that differ in rows (forward, input gradient) or depth (weight
/// gradient) alone, as one launch.
Seconds grouped_floor(const Roofline&, FlopsPerSecond peak, GemmKind, const GroupedGemm&,
                      ElementSizes, double extra_bytes_per_output);

/// Flops of causal attention's core, forward: two products over the pairs (query, earlier key)
/// inside the window.
Flops attention_flops(const AttentionShape&);
Bytes attention_bytes(const AttentionShape&, double element);

}  // namespace moeplan
