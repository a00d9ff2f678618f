#pragma once
/// Curves of a profile, sorted for look-up: one binary search and a handful of logarithms a price.

#include <array>
#include <string_view>
#include <vector>

#include "profiler/profile.hpp"
#include "profiler/residual_surface.hpp"
#include "profiler/work_floor.hpp"

namespace moeplan {

enum class KernelFamily : std::uint8_t { gemm, grouped_gemm, attention, streamed };

/// What a kernel's name says. Index into kernel_names().
struct KernelName {
    int index = -1;
    KernelFamily family = KernelFamily::streamed;
    GemmKind gemm = GemmKind::forward;
    bool backward = false;
    bool by_width = false;  ///< streamed: time a byte depends on the length of a row
};
KernelName kernel_named(std::string_view name);  ///< index −1: unknown

/// Efficiency along one shape axis, everything else fixed.
///
/// | family | fixed (key) | along |
/// | --- | --- | --- |
/// | gemm, grouped_gemm | n, k | m (rows of one expert) |
/// | attention | head_size, batch · num_heads | sequence |
/// | streamed | width, – | bytes |
struct EfficiencyLine {
    std::array<double, 2> key{};            ///< logarithms
    std::vector<double> along, efficiency;  ///< ascending logarithms; floor over time
    Basis basis = Basis::measured;
};

/// All lines of one kernel in one precision.
struct EfficiencyTable {
    std::vector<EfficiencyLine> lines;
    std::array<double, 2> low{}, high{};  ///< box of the keys
    double spread = 0;                    ///< median relative spread of the samples
};

/// Efficiency at a place of the table, with what it rests on.
struct Efficiency {
    double value = 1;
    Basis basis = Basis::roofline;
};

/// Lines near a key and their weights (inverse squared distance in log space; all on one line if it
/// is met exactly).
struct NearLines {
    static constexpr int kMost = 4;
    std::array<const EfficiencyLine*, kMost> line{};
    std::array<double, kMost> weight{};
    int count = 0;
    bool exact = false, far = false;  ///< far: more than a factor of two outside of the box of keys
};
NearLines near_lines(const EfficiencyTable&, std::array<double, 2> log_key);
Efficiency efficiency_along(const NearLines&, double log_along);

constexpr std::size_t kNumPrecisions = 6;

struct CurveIndex {
    std::vector<std::array<EfficiencyTable, kNumPrecisions>> tables;  ///< [kernel_names().size()]

    /// Published tables over the models of profiler/gemm_model.hpp: products over (rows, columns,
    /// depth), attention over (sequence, batch · heads, head size). Empty: the profile has no model
    /// or no such table.
    std::array<ResidualSurface, kNumPrecisions> products, attention;

    struct LinkLine {
        std::string collective;
        int num_ranks = 2;
        std::vector<double> log_bytes, log_seconds;
        Basis basis = Basis::measured;
    };
    std::vector<LinkLine> links;

    /// Profile::stretches as a grid. Empty: not measured.
    struct Stretches {
        std::vector<double> log_ranks, log_stretch;  ///< ascending
        std::vector<double> slowest;                 ///< [ranks, stretches]
        std::vector<double> typical;                 ///< [stretches]
    } stretches;
};

/// Peak of a precision, or of what the device would run it in: fp32 for want of anything else.
FlopsPerSecond peak_of(const Roofline&, Precision);
/// Sizes of one operand and one result element.
ElementSizes gemm_elements(Precision);
double extra_output_bytes(GemmKind, Precision);
Precision attention_precision(Precision);

}  // namespace moeplan
