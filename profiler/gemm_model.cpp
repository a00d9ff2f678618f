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

Seconds grouped_product_time(const GemmModel& model, const ProductRates& rates, GemmKind kind,
                             const GroupedGemm& shape, ElementSizes element,
                             double extra_bytes_per_output) {
    double total = 0, active = 0;
    for (const std::uint32_t m : shape.m) total += m, active += m > 0;
    if (!(total > 0)) return {};
    // Σ over experts of what a product moves is a product of Σ m, but for the weights, or weight
    // gradients, that each active expert moves whole.
    const double n = static_cast<double>(shape.n), k = static_cast<double>(shape.k);
    const bool weight_gradient = kind == GemmKind::weight_gradient;
    const Product mean = product_of(kind, total / active, n, k);
    const double bytes = active * bytes_of(mean, element, extra_bytes_per_output);

    double best = std::numeric_limits<double>::infinity(), strips = 0;
    int strip_rows = 0;
    for (const Tile& tile : model.tiles) {
        if (weight_gradient) {
            strips = active * std::ceil(mean.rows / tile.rows);
        } else if (tile.rows != strip_rows) {  // tiles of as many rows follow each other
            strips = 0;
            for (const std::uint32_t m : shape.m)
                strips += std::ceil(static_cast<double>(m) / tile.rows);
            strip_rows = tile.rows;
        }
        const double tiles = strips * std::ceil(mean.columns / tile.columns);
        // A wave takes its tiles' mean depth.
        best = std::min(best, counted_waves(tiles / rates.num_sms, model.wave_quantisation) *
                                  flops_of(tile) / tile_rate(model, rates, tile) *
                                  (mean.depth / rates.narrow + model.pipeline_depth));
    }
    return whole(model, rates, best, bytes);
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
