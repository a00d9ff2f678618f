#include "profiler/gemm_model.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "profiler/curve_index.hpp"

namespace moeplan {
namespace {

/// Full waves' worth of tiles: at least one, the last one rounded up by `quantisation`.
double counted_waves(double waves, double quantisation) {
    return std::max(1.0, waves + quantisation * (std::ceil(waves) - waves));
}

/// Flops a second that one multiprocessor holds on a tile.
double tile_rate(const GemmModel& model, const ProductRates& rates, const Tile& tile) {
    return rates.sustained * rates.wide.value / rates.num_sms * model.efficiency /
           (1 + model.tile_loss * (64.0 / tile.rows + 64.0 / tile.columns));
}

double flops_of(const Tile& tile) { return 2.0 * tile.rows * tile.columns; }

/// A split leaves at least this much of k to each part.
constexpr double kLeastDepth = 512;
constexpr std::array<double, 6> kSplits = {2, 3, 4, 6, 8, 16};

double bytes_of(const Product& product, ElementSizes element, double extra) {
    return (product.rows * product.depth + product.depth * product.columns) * element.in +
           product.rows * product.columns * (element.out + extra);
}

Seconds whole(const GemmModel& model, const ProductRates& rates, double loop, double bytes) {
    return model.launch + Seconds{std::max(loop, bytes / (rates.memory_bandwidth.value *
                                                          model.memory_efficiency))};
}

double narrow_efficiency(const Roofline& roofline, Precision precision) {
    if (!roofline.gemm_model) return 1;
    switch (precision) {
        case Precision::nvfp4:
            if (roofline.peak.count(precision)) return roofline.gemm_model->fp4_efficiency;
            [[fallthrough]];
        case Precision::fp8:
        case Precision::mxfp8:
            return roofline.gemm_model->fp8_efficiency;
        default:
            return 1;
    }
}

}  // namespace

ProductRates product_rates(const Roofline& roofline, Precision precision, double sustained) {
    const FlopsPerSecond peak = peak_of(roofline, precision);
    const bool full = precision == Precision::fp32;
    // A device without the narrow format runs 16-bit operands at their own rate.
    const FlopsPerSecond wide = full ? peak : std::min(peak, peak_of(roofline, Precision::bf16));
    const double faster = peak / wide;
    return {wide, faster > 1 ? std::max(1.0, faster * narrow_efficiency(roofline, precision)) : 1,
            roofline.memory_bandwidth, std::max(1, roofline.num_sms), sustained};
}

ProductRates product_rates(const Roofline& roofline, Precision precision,
                           const DeviceRates& device) {
    ProductRates rates = product_rates(roofline, precision, 1);
    rates.wide = rates.wide * (device.peak / peak_of(roofline, precision));
    rates.memory_bandwidth = device.memory_bandwidth;
    rates.num_sms = device.num_sms;
    return rates;
}

Seconds product_time(const GemmModel& model, const ProductRates& rates, const Product& product,
                     ElementSizes element, double extra_bytes_per_output) {
    double best = std::numeric_limits<double>::infinity();
    for (const Tile& tile : model.tiles) {
        const double tiles =
            std::ceil(product.rows / tile.rows) * std::ceil(product.columns / tile.columns);
        const double per_depth = flops_of(tile) / tile_rate(model, rates, tile);
        const auto at = [&](double parts) {
            return counted_waves(tiles * parts / rates.num_sms, model.wave_quantisation) *
                   per_depth * (product.depth / parts / rates.narrow + model.pipeline_depth);
        };
        best = std::min(best, at(1));
        // Many waves leave nothing for a split to fill.
        if (tiles < 4.0 * rates.num_sms)
            for (const double parts : kSplits)
                if (product.depth / parts >= kLeastDepth)
                    best = std::min(best, at(parts) + model.split.value);
    }
    return whole(model, rates, best, bytes_of(product, element, extra_bytes_per_output));
}

std::vector<int> tile_heights(const GemmModel& model) {
    std::vector<int> heights;
    for (const Tile& tile : model.tiles) heights.push_back(tile.rows);
    std::sort(heights.begin(), heights.end());
    heights.erase(std::unique(heights.begin(), heights.end()), heights.end());
    return heights;
}

RowCounts count_rows(std::span<const std::uint32_t> rows, std::size_t experts_per_rank,
                     std::span<const int> heights) {
    const std::size_t ranks = experts_per_rank > 0 ? rows.size() / experts_per_rank : 0;
    RowCounts counts{std::vector<double>(ranks, 0), std::vector<double>(ranks, 0),
                     std::vector<double>(heights.size() * ranks, 0)};
    for (std::size_t rank = 0; rank < ranks; ++rank)
        for (std::size_t e = 0; e < experts_per_rank; ++e) {
            const std::uint32_t m = rows[rank * experts_per_rank + e];
            counts.rows[rank] += m;
            counts.active[rank] += m > 0;
            for (std::size_t h = 0; h < heights.size(); ++h) {
                const auto height = static_cast<std::uint32_t>(heights[h]);
                counts.strips[h * ranks + rank] += m / height + (m % height > 0);
            }
        }
    return counts;
}

GroupedProduct::GroupedProduct(const GemmModel& model, const ProductRates& rates, GemmKind kind,
                               std::int64_t n, std::int64_t k, ElementSizes element,
                               double extra_bytes_per_output)
    : model_(model),
      rates_(rates),
      kind_(kind),
      n_(static_cast<double>(n)),
      k_(static_cast<double>(k)),
      element_(element),
      extra_(extra_bytes_per_output) {
    const std::vector<int> heights = tile_heights(model);
    const Product one = product_of(kind, 1, n_, k_);
    for (const Tile& tile : model.tiles)
        tiles_.push_back({static_cast<std::size_t>(
                              std::lower_bound(heights.begin(), heights.end(), tile.rows) -
                              heights.begin()),
                          std::ceil(one.rows / tile.rows), std::ceil(one.columns / tile.columns),
                          flops_of(tile), tile_rate(model, rates, tile)});
}

namespace {

/// One tile's main loop on every rank, where it beats the tiles before. All is chosen, nothing
/// branched over or called, and this file is compiled without trapping comparisons
/// (CMakeLists.txt): ranks go through the processor side by side.
/// @param strips  [ranks] tiles on top of each other
void try_tile(std::span<const double> strips, double columns, double sms, double quantisation,
              double flops, double rate, std::span<const double> depth, std::span<double> seconds) {
    const double *high = strips.data(), *deep = depth.data();
    double* best = seconds.data();
    for (std::size_t r = 0, ranks = seconds.size(); r < ranks; ++r) {
        const double waves = high[r] * columns / sms;
        // ⌈waves⌉ without a call: sums of 2⁵² and less are rounded to whole numbers
        const double near = (waves + 0x1p52) - 0x1p52, up = near < waves ? 1.0 : 0.0;
        const double counted = waves + quantisation * (near + up - waves);
        const double time = (counted > 1 ? counted : 1.0) * flops / rate * deep[r];
        best[r] = time < best[r] ? time : best[r];
    }
}

}  // namespace

void GroupedProduct::times(const RowCounts& counts, std::span<double> seconds) const {
    const std::size_t ranks = counts.num_ranks();
    const bool weight_gradient = kind_ == GemmKind::weight_gradient;
    const double sms = rates_.num_sms, quantisation = model_.wave_quantisation;
    // A wave takes its tiles' mean depth.
    std::vector<double> depth(ranks, product_of(kind_, 1, n_, k_).depth / rates_.narrow +
                                         model_.pipeline_depth);
    std::vector<double> high;  // of a weight gradient: every expert's own strips
    if (weight_gradient) {
        high.resize(ranks);
        for (std::size_t r = 0; r < ranks; ++r)
            depth[r] = counts.rows[r] / counts.active[r] / rates_.narrow + model_.pipeline_depth;
    }
    std::fill(seconds.begin(), seconds.end(), std::numeric_limits<double>::infinity());
    for (const TileCost& tile : tiles_) {
        std::span<const double> strips(counts.strips.data() + tile.height * ranks, ranks);
        if (weight_gradient) {
            for (std::size_t r = 0; r < ranks; ++r) high[r] = counts.active[r] * tile.rows;
            strips = high;
        }
        try_tile(strips, tile.columns, sms, quantisation, tile.flops, tile.rate, depth, seconds);
    }
    for (std::size_t r = 0; r < ranks; ++r) {
        if (!(counts.rows[r] > 0)) {
            seconds[r] = 0;
            continue;
        }
        // Σ over experts of what a product moves is a product of Σ m, but for the weights, or
        // weight gradients, that each active expert moves whole.
        const Product mean = product_of(kind_, counts.rows[r] / counts.active[r], n_, k_);
        const double bytes = counts.active[r] * bytes_of(mean, element_, extra_);
        seconds[r] = whole(model_, rates_, seconds[r], bytes).value;
    }
}

Seconds grouped_product_time(const GemmModel& model, const ProductRates& rates, GemmKind kind,
                             const GroupedGemm& shape, ElementSizes element,
                             double extra_bytes_per_output) {
    if (shape.m.empty()) return {};
    Seconds time;
    GroupedProduct(model, rates, kind, shape.n, shape.k, element, extra_bytes_per_output)
        .times(count_rows(shape.m, shape.m.size(), tile_heights(model)), {&time.value, 1});
    return time;
}

Seconds attention_model_time(const AttentionModel& model, const ProductRates& rates,
                             const AttentionShape& shape, double memory_efficiency, double work,
                             double efficiency) {
    constexpr double kQueries = 128, kHeadSize = 128;  // of one tile; where `efficiency` was fitted
    const double s = static_cast<double>(shape.sequence),
                 head = static_cast<double>(shape.head_size);
    const double reached = model.efficiency * efficiency * s / (s + model.half_sequence) *
                           std::pow(std::min(1.0, head / kHeadSize), model.head_power) *
                           rates.sustained;
    const double waves = static_cast<double>(shape.batch * shape.num_heads) *
                         std::ceil(s / kQueries) / rates.num_sms;
    const double compute = work * attention_flops(shape).value / (rates.wide.value * reached) *
                           counted_waves(waves, model.wave_quantisation) / waves;
    const double memory =
        work * attention_bytes(shape, 2).value / (rates.memory_bandwidth.value * memory_efficiency);
    return model.launch + Seconds{std::max(compute, memory)};
}

}  // namespace moeplan
