#include "planner/accuracy/fused_moe.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/seed.hpp"
#include "profiler/curve_index.hpp"

namespace moeplan {
namespace {

constexpr int kDraws = 4;

/// Tiles that the library's tuned configurations name.
std::vector<Tile> triton_tiles() {
    return {{16, 64},  {16, 128}, {32, 128},  {64, 64},  {64, 128},
            {64, 256}, {128, 64}, {128, 128}, {128, 256}};
}

FusedMoeModel model(double efficiency, double depth, double loss, double memory, double launch_us,
                    double passes, double quantisation) {
    FusedMoeModel out;
    out.gemm.tiles = triton_tiles();
    out.gemm.efficiency = efficiency;
    out.gemm.pipeline_depth = depth;
    out.gemm.tile_loss = loss;
    out.gemm.memory_efficiency = memory;
    out.gemm.launch = Seconds{launch_us * 1e-6 / 2};  // of the whole layer, by its two products
    out.gemm.wave_quantisation = quantisation;
    out.pass_efficiency = passes;
    return out;
}

}  // namespace

FusedMoeModel fused_moe_model(const std::string& gpu, Precision precision) {
    const bool fp8 = precision == Precision::fp8;
    if (gpu.rfind("a100", 0) == 0) return model(0.467, 66, 0.276, 0.544, 36.2, 0.58, 0);
    if (gpu.rfind("h", 0) == 0)
        return fp8 ? model(0.594, 26.8, 0.911, 0.829, 36.5, 0.298, 0.123)
                   : model(0.999, 1.5, 1.2, 0.841, 30.3, 0.483, 0.253);
    return fp8 ? model(0.176, 60.9, 0.476, 0.479, 39.4, 0.131, 0.074)
               : model(0.992, 12, 1.77, 0.741, 36.8, 0.202, 0.029);
}

std::vector<std::uint32_t> fused_moe_loads(const FusedMoePoint& point, std::uint64_t seed) {
    const auto experts = static_cast<std::size_t>(point.num_experts),
               local = static_cast<std::size_t>(point.local_experts);
    const double choices = static_cast<double>(point.tokens) * point.top_k;
    if (point.exponent == 0) {
        const auto rows = static_cast<std::size_t>(
            std::llround(choices * static_cast<double>(local) / static_cast<double>(experts)));
        std::vector<std::uint32_t> loads(local, static_cast<std::uint32_t>(rows / local));
        for (std::size_t i = 0; i < rows % local; ++i) ++loads[i];
        return loads;
    }
    const bool many = choices > static_cast<double>(experts);
    const double low = many ? 1 : 0.01, high = many ? 0.8 * point.tokens : 2,
                 power = 1 - point.exponent;
    DrawStream draws(derive({seed}, "fused_moe_loads"));
    std::vector<double> popularity(experts);
    for (double& x : popularity)
        x = std::pow(
            (std::pow(high, power) - std::pow(low, power)) * draws.uniform() + std::pow(low, power),
            1 / power);
    const double sum = std::accumulate(popularity.begin(), popularity.end(), 0.0);
    std::vector<std::uint32_t> loads(experts);
    for (std::size_t e = 0; e < experts; ++e)
        loads[e] = static_cast<std::uint32_t>(
            std::min<double>(point.tokens, std::round(popularity[e] / sum * choices)));
    std::size_t hottest = 0, most = 0;
    for (std::size_t first = 0; first + local <= experts; first += local) {
        std::size_t here = 0;
        for (std::size_t e = first; e < first + local; ++e) here += loads[e];
        if (here > most) most = here, hottest = first;
    }
    return {loads.begin() + static_cast<std::ptrdiff_t>(hottest),
            loads.begin() + static_cast<std::ptrdiff_t>(hottest + local)};
}

Seconds fused_moe_time(const FusedMoeModel& model, const Roofline& roofline,
                       const FusedMoePoint& point) {
    // The table's own efficiencies stand for the precision: its rate is the datasheet's.
    Roofline plain = roofline;
    plain.gemm_model.reset();
    const ProductRates rates = [&] {
        ProductRates out = product_rates(plain, Precision::bf16, 1);
        out.wide = peak_of(plain, point.precision);
        return out;
    }();
    const ElementSizes element = gemm_elements(point.precision);
    const int draws = point.exponent == 0 ? 1 : kDraws;
    Seconds products;
    for (int draw = 0; draw < draws; ++draw) {
        const auto loads = fused_moe_loads(point, static_cast<std::uint64_t>(draw));
        const std::span<const std::uint32_t> m(loads);
        products += grouped_product_time(
            model.gemm, rates, GemmKind::forward,
            {m, 2 * static_cast<std::int64_t>(point.ffn), point.hidden}, element, 0);
        products += grouped_product_time(model.gemm, rates, GemmKind::forward,
                                         {m, point.hidden, point.ffn}, element, 0);
    }
    // Activation: 2·ffn read, ffn written a chosen expert, those of other ranks too (they pass as
    // zeros). Sum over experts: top_k rows read, one written a token. 16-bit.
    const double rows = static_cast<double>(point.tokens) * point.top_k;
    const Bytes passes{2 * (rows * 3.0 * point.ffn +
                            static_cast<double>(point.tokens) * point.hidden * (point.top_k + 1))};
    return products / draws + passes / (roofline.memory_bandwidth * model.pass_efficiency);
}

}  // namespace moeplan
