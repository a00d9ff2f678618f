#include "profiler/curve_index.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <unordered_map>

#include "core/errors.hpp"
#include "core/text.hpp"
#include "model/kernel_work.hpp"
#include "profiler/curve_columns.hpp"
#include "profiler/published_tables.hpp"

namespace moeplan {
namespace {

struct NamedKernel {
    std::string_view name;
    KernelFamily family;
    GemmKind gemm = GemmKind::forward;
    bool backward = false;
    bool by_width = false;
};

/// Kernels that only walk along memory: a row's length does not matter to them.
bool is_flat(std::string_view kernel) {
    for (const std::string_view flat :
         {"residual_add", "swiglu_forward", "swiglu_backward", "gelu_forward", "gelu_backward",
          "relu_forward", "relu_backward", "adamw", "gradient_norm", "copy", "zero",
          "permutation_map", "streamed"})
        if (kernel == flat) return true;
    return false;
}

const std::vector<NamedKernel>& named_kernels() {
    static const std::vector<NamedKernel> kernels = [] {
        std::vector<NamedKernel> out = {
            {"gemm", KernelFamily::gemm},
            {"gemm_input_gradient", KernelFamily::gemm, GemmKind::input_gradient, true},
            {"gemm_weight_gradient", KernelFamily::gemm, GemmKind::weight_gradient, true},
            {"grouped_gemm", KernelFamily::grouped_gemm},
            {"grouped_gemm_input_gradient", KernelFamily::grouped_gemm, GemmKind::input_gradient,
             true},
            {"grouped_gemm_weight_gradient", KernelFamily::grouped_gemm, GemmKind::weight_gradient,
             true},
            {"attention_forward", KernelFamily::attention},
            {"attention_backward", KernelFamily::attention, GemmKind::forward, true},
        };
        for (const StreamedKernel& row : streamed_kernels())
            out.push_back(
                {row.name, KernelFamily::streamed, GemmKind::forward, false, !is_flat(row.name)});
        out.push_back({"streamed", KernelFamily::streamed});
        return out;
    }();
    return kernels;
}

}  // namespace

const std::vector<std::string_view>& kernel_names() {
    static const std::vector<std::string_view> names = [] {
        std::vector<std::string_view> out;
        for (const auto& kernel : named_kernels()) out.push_back(kernel.name);
        return out;
    }();
    return names;
}

KernelName kernel_named(std::string_view name) {
    static const std::unordered_map<std::string_view, KernelName> by_name = [] {
        std::unordered_map<std::string_view, KernelName> out;
        for (std::size_t i = 0; i < named_kernels().size(); ++i) {
            const NamedKernel& kernel = named_kernels()[i];
            out[kernel.name] = {static_cast<int>(i), kernel.family, kernel.gemm, kernel.backward,
                                kernel.by_width};
        }
        return out;
    }();
    const auto found = by_name.find(name);
    return found == by_name.end() ? KernelName{} : found->second;
}

bool kernel_depends_on_width(std::string_view kernel) { return kernel_named(kernel).by_width; }

FlopsPerSecond peak_of(const Roofline& roofline, Precision precision) {
    // In order of what a device without the format would run instead.
    const std::array<Precision, 4> instead = {
        precision,
        precision == Precision::mxfp8 || precision == Precision::nvfp4 ? Precision::fp8 : precision,
        precision == Precision::fp16 ? Precision::bf16 : Precision::fp16, Precision::fp32};
    for (const Precision candidate : instead)
        if (const auto found = roofline.peak.find(candidate); found != roofline.peak.end())
            return found->second;
    return {1e12};
}

ElementSizes gemm_elements(Precision precision) {
    switch (precision) {
        case Precision::fp32:
            return {4, 4};
        case Precision::fp16:
        case Precision::bf16:
            return {2, 2};
        case Precision::fp8:
        case Precision::mxfp8:
            return {1, 2};
        case Precision::nvfp4:
            return {0.5, 2};
    }
    return {4, 4};
}

double extra_output_bytes(GemmKind kind, Precision precision) {
    // A weight gradient is added to an fp32 buffer: read and written, 8 bytes in place of the
    // output element.
    if (kind != GemmKind::weight_gradient) return 0;
    return precision == Precision::fp32 ? 4 : 6;
}

Precision attention_precision(Precision precision) {
    return precision == Precision::fp8 || precision == Precision::mxfp8 ||
                   precision == Precision::nvfp4
               ? Precision::bf16
               : precision;
}

NearLines near_lines(const EfficiencyTable& table, std::array<double, 2> key) {
    // Met exactly: within a rounding of the logarithm.
    constexpr double kSame = 1e-9;
    constexpr double kFar = 0.6931471805599453;  // ln 2
    NearLines near;
    std::array<double, NearLines::kMost> distance{};
    for (const EfficiencyLine& line : table.lines) {
        const double a = line.key[0] - key[0], b = line.key[1] - key[1];
        const double here = a * a + b * b;
        if (here < kSame * kSame) {
            near.line[0] = &line;
            near.weight[0] = 1;
            near.count = 1;
            near.exact = true;
            return near;
        }
        int at = near.count < NearLines::kMost ? near.count++ : NearLines::kMost;
        while (at > 0 && distance[at - 1] > here) {
            if (at < NearLines::kMost) {
                distance[at] = distance[at - 1];
                near.line[at] = near.line[at - 1];
            }
            --at;
        }
        if (at < NearLines::kMost) {
            distance[at] = here;
            near.line[at] = &line;
        }
    }
    double sum = 0;
    for (int i = 0; i < near.count; ++i) sum += near.weight[i] = 1 / distance[i];
    for (int i = 0; i < near.count; ++i) near.weight[i] /= sum;
    for (int axis = 0; axis < 2; ++axis)
        if (key[axis] < table.low[axis] - kFar || key[axis] > table.high[axis] + kFar)
            near.far = true;
    return near;
}

Efficiency efficiency_along(const NearLines& near, double along) {
    constexpr double kSame = 1e-9;
    constexpr double kFar = 0.6931471805599453;
    Efficiency out;
    out.value = 0;
    bool on_point = near.exact, far = near.far;
    Basis basis = Basis::measured;
    for (int i = 0; i < near.count; ++i) {
        const EfficiencyLine& line = *near.line[i];
        const auto above = std::lower_bound(line.along.begin(), line.along.end(), along - kSame);
        const std::size_t at = static_cast<std::size_t>(above - line.along.begin());
        double value;
        if (at < line.along.size() && std::abs(line.along[at] - along) <= kSame) {
            value = line.efficiency[at];
        } else {
            on_point = false;
            if (at == 0 || at == line.along.size()) {
                const std::size_t edge = at == 0 ? 0 : at - 1;
                value = line.efficiency[edge];
                if (std::abs(line.along[edge] - along) > kFar) far = true;
            } else {
                const double share =
                    (along - line.along[at - 1]) / (line.along[at] - line.along[at - 1]);
                value = line.efficiency[at - 1] +
                        share * (line.efficiency[at] - line.efficiency[at - 1]);
            }
        }
        out.value += near.weight[i] * value;
        if (line.basis == Basis::published) basis = Basis::published;
        if (line.basis == Basis::interpolated && basis == Basis::measured)
            basis = Basis::interpolated;
        if (line.basis == Basis::roofline) far = true;
    }
    out.basis = far                         ? Basis::roofline
                : basis == Basis::published ? Basis::published
                : on_point                  ? basis
                                            : Basis::interpolated;
    return out;
}

// ---- building
// -------------------------------------------------------------------------------------------------------

namespace {

struct Point {
    std::array<double, 2> key;
    double along, efficiency;
};

void add_points(EfficiencyTable& table, std::vector<Point> points, Basis basis) {
    std::map<std::array<double, 2>, std::map<double, std::pair<double, int>>>
        lines;  // key → along → sum, count of efficiencies
    for (const Point& point : points) {
        auto& [sum, count] = lines[point.key][point.along];
        sum += point.efficiency;
        ++count;
    }
    for (const auto& [key, along] : lines) {
        EfficiencyLine line;
        line.key = key;
        line.basis = basis;
        for (const auto& [x, mean] : along) {
            line.along.push_back(x);
            line.efficiency.push_back(mean.first / mean.second);
        }
        // A later curve of the same key replaces the earlier one: what the user measured stands
        // above what was shipped.
        const auto same =
            std::find_if(table.lines.begin(), table.lines.end(),
                         [&](const EfficiencyLine& other) { return other.key == key; });
        if (same != table.lines.end())
            *same = std::move(line);
        else
            table.lines.push_back(std::move(line));
    }
    table.low = {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity()};
    table.high = {-std::numeric_limits<double>::infinity(),
                  -std::numeric_limits<double>::infinity()};
    for (const EfficiencyLine& line : table.lines)
        for (int axis = 0; axis < 2; ++axis) {
            table.low[axis] = std::min(table.low[axis], line.key[axis]);
            table.high[axis] = std::max(table.high[axis], line.key[axis]);
        }
}

/// Of the device that the curve was measured on.
Roofline roofline_of(const Profile& profile, const KernelCurve& curve) {
    Roofline roofline = profile.roofline;
    if (curve.measured_on) {
        roofline.peak[curve.precision] = curve.measured_on->peak;
        roofline.memory_bandwidth = curve.measured_on->memory_bandwidth;
        roofline.num_sms = curve.measured_on->num_sms;
    }
    return roofline;
}

std::vector<Point> points_of(const Profile& profile, const KernelCurve& curve,
                             const KernelName& kernel, const CurveColumns& columns) {
    std::vector<Point> points;
    const Roofline roofline = roofline_of(profile, curve);
    const int time_column = columns.need("median_s");
    const auto add = [&](std::size_t row, double key0, double key1, double along, Seconds floor) {
        points.push_back({{std::log(key0), std::log(key1)},
                          std::log(along),
                          floor.value / columns.value(row, time_column)});
    };
    switch (kernel.family) {
        case KernelFamily::gemm: {
            const int m = columns.need("m"), n = columns.need("n"), k = columns.need("k");
            for (std::size_t row = 0; row < curve.rows.size(); ++row) {
                const double mm = columns.value(row, m), nn = columns.value(row, n),
                             kk = columns.value(row, k);
                add(row, nn, kk, mm,
                    product_floor(roofline, peak_of(roofline, curve.precision),
                                  product_of(kernel.gemm, mm, nn, kk),
                                  gemm_elements(curve.precision),
                                  extra_output_bytes(kernel.gemm, curve.precision)));
            }
            break;
        }
        case KernelFamily::grouped_gemm: {
            const int m = columns.need("m"), n = columns.need("n"), k = columns.need("k"),
                      experts = columns.need("num_experts");
            for (std::size_t row = 0; row < curve.rows.size(); ++row) {
                const double mm = columns.value(row, m), nn = columns.value(row, n),
                             kk = columns.value(row, k);
                const std::vector<std::uint32_t> loads(
                    static_cast<std::size_t>(std::min(columns.value(row, experts), 65536.0)),
                    static_cast<std::uint32_t>(std::min(std::llround(mm), 4000000000LL)));
                add(row, nn, kk, mm,
                    grouped_floor(
                        roofline, peak_of(roofline, curve.precision), kernel.gemm,
                        {loads, static_cast<std::int64_t>(nn), static_cast<std::int64_t>(kk)},
                        gemm_elements(curve.precision),
                        extra_output_bytes(kernel.gemm, curve.precision)));
            }
            break;
        }
        case KernelFamily::attention: {
            const int batch = columns.need("batch"), sequence = columns.need("sequence"),
                      heads = columns.need("num_heads"), kv = columns.need("num_kv_heads"),
                      size = columns.need("head_size");
            for (std::size_t row = 0; row < curve.rows.size(); ++row) {
                const AttentionShape shape{std::llround(columns.value(row, batch)),
                                           std::llround(columns.value(row, sequence)),
                                           std::llround(columns.value(row, heads)),
                                           std::llround(columns.value(row, kv)),
                                           std::llround(columns.value(row, size)),
                                           std::nullopt};
                const double backward = kernel.backward ? 2.5 : 1;
                const Seconds compute =
                    backward * attention_flops(shape) / peak_of(roofline, curve.precision);
                const Seconds memory = backward *
                                       attention_bytes(shape, gemm_elements(curve.precision).out) /
                                       roofline.memory_bandwidth;
                add(row, static_cast<double>(shape.head_size),
                    static_cast<double>(shape.batch * shape.num_heads),
                    static_cast<double>(shape.sequence), std::max(compute, memory));
            }
            break;
        }
        case KernelFamily::streamed: {
            const int bytes = columns.need("bytes"), width = columns.find("width");
            for (std::size_t row = 0; row < curve.rows.size(); ++row) {
                const double moved = columns.value(row, bytes);
                add(row, kernel.by_width && width >= 0 ? columns.value(row, width) : 1, 1, moved,
                    Bytes{moved} / roofline.memory_bandwidth);
            }
            break;
        }
    }
    return points;
}

/// @throws InputError  unless the rows are a grid: every stretch for every number of ranks
CurveIndex::Stretches grid_of(const StretchCurve& curve, const std::string& name) {
    const std::string place = name + ": /stretches";
    const auto refuse = [&](const std::string& expected) {
        throw InputError(place, "rows", std::to_string(curve.rows.size()) + " rows", expected);
    };
    if (curve.columns != std::vector<std::string>{"num_ranks", "stretch_s", "slowest", "typical"})
        throw InputError(place, "columns", join(curve.columns, ", "),
                         "num_ranks, stretch_s, slowest, typical");
    std::map<double, std::map<double, double>> by_ranks;
    std::map<double, double> typical;
    for (const auto& row : curve.rows) {
        if (row.size() != 4 || !(row[0] >= 1) || !(row[1] > 0) || !(row[2] > 0) || !(row[3] > 0))
            refuse("four values a row: ranks from 1, seconds and two factors above 0");
        by_ranks[std::log(row[0])][std::log(row[1])] = row[2];
        typical[std::log(row[1])] = row[3];
    }
    CurveIndex::Stretches grid;
    for (const auto& [ranks, line] : by_ranks) {
        grid.log_ranks.push_back(ranks);
        std::vector<double> lengths;
        for (const auto& [length, slowest] : line) {
            lengths.push_back(length);
            grid.slowest.push_back(slowest);
        }
        if (grid.log_stretch.empty()) grid.log_stretch = lengths;
        if (lengths != grid.log_stretch) refuse("the same stretches for every number of ranks");
    }
    for (const auto& [length, factor] : typical) grid.typical.push_back(factor);
    return grid;
}

}  // namespace

void prepare(Profile& profile) {
    auto index = std::make_shared<CurveIndex>();
    index->tables.resize(kernel_names().size());
    std::array<std::vector<ResidualPoint>, kNumPrecisions> products, attention;
    for (std::size_t i = 0; i < profile.kernels.size(); ++i) {
        const KernelCurve& curve = profile.kernels[i];
        const std::string place = profile.name + ": /kernels/" + std::to_string(i);
        const KernelName kernel = kernel_named(curve.kernel);
        if (kernel.index < 0) {
            const std::vector<std::string> names(kernel_names().begin(), kernel_names().end());
            const std::string nearest = nearest_word(curve.kernel, names);
            throw InputError(place, "kernel", curve.kernel,
                             nearest.empty() ? "one of " + join(names, ", ")
                                             : "a kernel of ours; did you mean " + nearest + "?");
        }
        const CurveColumns columns{curve, place};
        for (std::size_t row = 0; row < curve.rows.size(); ++row)
            if (curve.rows[row].size() != curve.columns.size())
                throw InputError(place, "rows/" + std::to_string(row),
                                 std::to_string(curve.rows[row].size()) + " values",
                                 std::to_string(curve.columns.size()) + ", one a column");
        if (corrects_a_model(profile, curve, kernel)) {
            auto& points = (kernel.family == KernelFamily::gemm
                                ? products
                                : attention)[static_cast<std::size_t>(curve.precision)];
            const auto more = residuals_of(profile, curve, kernel, columns);
            points.insert(points.end(), more.begin(), more.end());
            continue;
        }
        EfficiencyTable& table = index->tables[static_cast<std::size_t>(kernel.index)]
                                              [static_cast<std::size_t>(curve.precision)];
        add_points(table, points_of(profile, curve, kernel, columns), curve.basis);
    }
    // Amplitude and noise: what held-out points of the published tables ask for (docs/profiles.md).
    for (std::size_t p = 0; p < kNumPrecisions; ++p) {
        index->products[p] = ResidualSurface(products[p], {1, 0.1, 0.08});
        index->attention[p] = ResidualSurface(attention[p], {1, 0.15, 0.05});
    }
    for (std::size_t i = 0; i < profile.links.size(); ++i) {
        const LinkCurve& curve = profile.links[i];
        const std::string place = profile.name + ": /links/" + std::to_string(i);
        int bytes = -1, time = -1;
        for (std::size_t c = 0; c < curve.columns.size(); ++c) {
            if (curve.columns[c] == "bytes") bytes = static_cast<int>(c);
            if (curve.columns[c] == "median_s") time = static_cast<int>(c);
        }
        if (bytes < 0 || time < 0)
            throw InputError(place, "columns", join(curve.columns, ", "),
                             "columns \"bytes\" and \"median_s\"");
        std::map<double, double> points;
        for (std::size_t r = 0; r < curve.rows.size(); ++r) {
            const auto& row = curve.rows[r];
            if (row.size() != curve.columns.size() || !(row[static_cast<std::size_t>(bytes)] > 0) ||
                !(row[static_cast<std::size_t>(time)] > 0))
                throw InputError(place, "rows/" + std::to_string(r), "",
                                 "as many values as columns, with positive bytes and median_s");
            points[std::log(row[static_cast<std::size_t>(bytes)])] =
                std::log(row[static_cast<std::size_t>(time)]);
        }
        if (points.empty()) continue;
        CurveIndex::LinkLine line{curve.collective, curve.num_ranks, {}, {}, curve.basis};
        for (const auto& [x, y] : points) {
            line.log_bytes.push_back(x);
            line.log_seconds.push_back(y);
        }
        index->links.push_back(std::move(line));
    }
    if (profile.stretches) index->stretches = grid_of(*profile.stretches, profile.name);
    profile.index = std::move(index);
}

}  // namespace moeplan
