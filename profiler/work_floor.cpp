#include "profiler/work_floor.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace moeplan {

Product product_of(GemmKind kind, double m, double n, double k) {
    switch (kind) {
        case GemmKind::input_gradient:
            return {m, k, n};
        case GemmKind::weight_gradient:
            return {k, n, m};
        case GemmKind::forward:
            break;
    }
    return {m, n, k};
}

Seconds tile_time(const Roofline& roofline, FlopsPerSecond peak, double tiles, const Tile& tile,
                  double depth) {
    const double sms = std::max(1, roofline.num_sms);
    const double waves = tiles / sms;
    const double counted = waves <= 1 ? (tiles > 0 ? 1.0 : 0.0) : 0.5 * (waves + std::ceil(waves));
    return Flops{counted * sms * 2 * tile.rows * tile.columns * depth} / peak;
}

namespace {

double tiles_of(double rows, double columns, const Tile& tile) {
    return std::ceil(rows / tile.rows) * std::ceil(columns / tile.columns);
}

bool has_tiles(const Roofline& roofline) { return roofline.num_sms > 1 && !roofline.tiles.empty(); }

double product_bytes(const Product& product, ElementSizes element, double extra_bytes_per_output) {
    return (product.rows * product.depth + product.depth * product.columns) * element.in +
           product.rows * product.columns * (element.out + extra_bytes_per_output);
}

/// Libraries split a deep product along its depth when its tiles leave most of the GPU idle
/// (split-k): 8192 is where published tables show it (docs/profiles.md).
constexpr double kSplitDepth = 8192;

}  // namespace

Seconds product_floor(const Roofline& roofline, FlopsPerSecond peak, const Product& product,
                      ElementSizes element, double extra_bytes_per_output) {
    Seconds compute = Flops{2 * product.rows * product.columns * product.depth} / peak;
    if (has_tiles(roofline)) {
        Seconds best{std::numeric_limits<double>::infinity()};
        for (const Tile& tile : roofline.tiles) {
            const double tiles = tiles_of(product.rows, product.columns, tile);
            double split = 1;
            if (product.depth >= kSplitDepth && tiles < roofline.num_sms)
                split = std::clamp(std::floor(roofline.num_sms / tiles), 1.0,
                                   std::floor(product.depth / (kSplitDepth / 4)));
            best = std::min(best,
                            tile_time(roofline, peak, tiles * split, tile, product.depth / split));
        }
        compute = std::max(compute, best);
    }
    return std::max(compute, Bytes{product_bytes(product, element, extra_bytes_per_output)} /
                                 roofline.memory_bandwidth);
}

Seconds grouped_floor(const Roofline& roofline, FlopsPerSecond peak, GemmKind kind,
                      const GroupedGemm& shape, ElementSizes element,
                      double extra_bytes_per_output) {
    const double n = static_cast<double>(shape.n), k = static_cast<double>(shape.k);
    double flops = 0, bytes = 0;
    for (const std::uint32_t m : shape.m) {
        if (m == 0) continue;
        const Product product = product_of(kind, m, n, k);
        flops += 2 * product.rows * product.columns * product.depth;
        bytes += product_bytes(product, element, extra_bytes_per_output);
    }
    Seconds compute = Flops{flops} / peak;
    if (has_tiles(roofline) && flops > 0) {
        Seconds best{std::numeric_limits<double>::infinity()};
        for (const Tile& tile : roofline.tiles) {
            double tiles = 0,
                   tile_depth =
                       0;  // Σ tiles, Σ tiles · depth: a wave's time is its tiles' mean depth
            for (const std::uint32_t m : shape.m) {
                if (m == 0) continue;
                const Product product = product_of(kind, m, n, k);
                const double here = tiles_of(product.rows, product.columns, tile);
                tiles += here;
                tile_depth += here * product.depth;
            }
            best = std::min(best, tile_time(roofline, peak, tiles, tile, tile_depth / tiles));
        }
        compute = std::max(compute, best);
    }
    return std::max(compute, Bytes{bytes} / roofline.memory_bandwidth);
}

Flops attention_flops(const AttentionShape& shape) {
    const double s = static_cast<double>(shape.sequence);
    const double w = shape.window ? std::min<double>(*shape.window, s) : s;
    const double pairs = s * w - w * (w - 1) / 2;  // Σᵢ min(i, w), i = 1 … s
    return {4 * pairs * static_cast<double>(shape.batch * shape.num_heads * shape.head_size)};
}

Bytes attention_bytes(const AttentionShape& shape, double element) {
    return {static_cast<double>(shape.batch * shape.sequence * shape.head_size) * 2 *
            static_cast<double>(shape.num_heads + shape.num_kv_heads) * element};
}

}  // namespace moeplan
