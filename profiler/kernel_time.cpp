/// A kernel's price. Where the profile measured it: floor over efficiency, the floor counting the
/// work (work_floor.hpp), the efficiency from the nearest lines (curve_index.hpp). Where a GPU has
/// a model (gemm_model.hpp): its time, corrected by published tables (residual_surface.hpp). Else
/// the roofline's stated efficiency.

#include <algorithm>
#include <cassert>
#include <cmath>

#include "profiler/curve_index.hpp"
#include "profiler/gemm_model.hpp"
#include "profiler/kernel_source.hpp"
#include "profiler/modelled_time.hpp"
#include "profiler/profile.hpp"
#include "profiler/work_floor.hpp"

namespace moeplan {
namespace {

/// Of an attention backward that no curve was measured for.
double backward_efficiency(const Profile& profile) {
    return profile.roofline.attention_backward *
           (profile.host_overlap > 0 ? profile.calibration[Constant::attention_backward] : 1);
}

/// Whether the compute floor or the memory floor binds decides which stated efficiency applies.
Seconds stated_time(const Roofline& roofline, Seconds compute, Seconds memory,
                    double compute_efficiency) {
    return std::max(compute / compute_efficiency, memory / roofline.memory_efficiency) +
           roofline.kernel_overhead;
}

double gemm_efficiency(const Roofline& roofline, double depth) {
    return roofline.gemm_efficiency * depth / (depth + roofline.gemm_half_depth);
}

PricedTime gemm_time(const Profile& profile, const KernelName& kernel, Precision precision,
                     const Gemm& shape) {
    if (shape.m <= 0 || shape.n <= 0 || shape.k <= 0) return {};
    const Roofline& roofline = profile.roofline;
    const FlopsPerSecond peak = peak_of(roofline, precision);
    const double m = static_cast<double>(shape.m), n = static_cast<double>(shape.n),
                 k = static_cast<double>(shape.k);
    const Product product = product_of(kernel.gemm, m, n, k);
    const ElementSizes element = gemm_elements(precision);
    const double extra = extra_output_bytes(kernel.gemm, precision);
    const GemmSource source = gemm_source(profile, kernel, precision, m, n, k);
    if (source.table->lines.empty() && roofline.gemm_model)
        return modelled_gemm(profile, kernel, precision, product);
    if (!source.table->lines.empty()) {
        const NearLines near =
            near_lines(*source.table, {std::log(source.shape[1]), std::log(source.shape[2])});
        const Efficiency efficiency = efficiency_along(near, std::log(source.shape[0]));
        const Seconds floor = product_floor(roofline, peak, product, element, extra);
        return {floor / (efficiency.value * sustained(profile, precision)), efficiency.basis};
    }
    Roofline unlimited = roofline;
    unlimited.memory_bandwidth = {1e300};
    const Seconds compute = product_floor(unlimited, peak, product, element, extra);
    const Seconds memory =
        Bytes{(product.rows * product.depth + product.depth * product.columns) * element.in +
              product.rows * product.columns * (element.out + extra)} /
        roofline.memory_bandwidth;
    return {stated_time(roofline, compute, memory,
                        gemm_efficiency(roofline, product.depth) * sustained(profile, precision)),
            Basis::roofline};
}

/// A CPU runs its experts one after another: each expert's product has a time of its own.
PricedTime expert_by_expert(const Profile& profile, const KernelName& kernel, Precision precision,
                            const GroupedGemm& shape, const GemmSource& source) {
    const Roofline& roofline = profile.roofline;
    const FlopsPerSecond peak = peak_of(roofline, precision);
    const ElementSizes element = gemm_elements(precision);
    const double extra = extra_output_bytes(kernel.gemm, precision);
    const double n = static_cast<double>(shape.n), k = static_cast<double>(shape.k);
    const bool along_rows =
        source.shape[0] == 1;  // the weight gradient borrows "gemm": m is then its depth
    const NearLines near =
        near_lines(*source.table, {std::log(source.shape[1]), std::log(source.shape[2])});
    PricedTime total{{}, Basis::measured};
    for (const std::uint32_t m : shape.m) {
        if (m == 0) continue;
        const Seconds floor =
            product_floor(roofline, peak, product_of(kernel.gemm, m, n, k), element, extra);
        Efficiency efficiency;
        if (along_rows) {
            efficiency = efficiency_along(near, std::log(static_cast<double>(m)));
        } else {
            const Product product = product_of(kernel.gemm, m, n, k);
            efficiency = efficiency_along(
                near_lines(*source.table, {std::log(product.columns), std::log(product.depth)}),
                std::log(product.rows));
        }
        total.time += floor / (efficiency.value * sustained(profile, precision));
        total.basis = std::max(total.basis, efficiency.basis);
    }
    return total;
}

PricedTime grouped_time(const Profile& profile, const KernelName& kernel, Precision precision,
                        const GroupedGemm& shape) {
    double rows = 0, active = 0;
    for (const std::uint32_t m : shape.m) {
        rows += m;
        active += m > 0;
    }
    if (rows == 0 || shape.n <= 0 || shape.k <= 0) return {};
    const Roofline& roofline = profile.roofline;
    const double n = static_cast<double>(shape.n), k = static_cast<double>(shape.k);
    const GemmSource source = gemm_source(profile, kernel, precision, 1, n, k);
    if (source.table->lines.empty() && roofline.gemm_model) {
        PricedTime priced;
        const ModelledGrouped model(profile, kernel, precision, shape.n, shape.k);
        model.times(count_rows(shape.m, shape.m.size(), tile_heights(*roofline.gemm_model)),
                    {&priced.time.value, 1});
        priced.basis = model.basis(rows, active);
        return priced;
    }
    if (!source.table->lines.empty() && roofline.num_sms <= 1)
        return expert_by_expert(profile, kernel, precision, shape, source);

    const FlopsPerSecond peak = peak_of(roofline, precision);
    const ElementSizes element = gemm_elements(precision);
    const double extra = extra_output_bytes(kernel.gemm, precision);
    static const int grouped = kernel_named("grouped_gemm").index;
    const EfficiencyTable& own = table_of(profile, kernel.index, precision);
    const EfficiencyTable& forward = table_of(profile, grouped, precision);
    if (!own.lines.empty() || !forward.lines.empty()) {
        // One launch of all experts' tiles; the rows of its active experts say how far each tile's
        // operands are reused.
        const EfficiencyTable& table = own.lines.empty() ? forward : own;
        const Efficiency efficiency = efficiency_along(
            near_lines(table, {std::log(n), std::log(k)}), std::log(rows / active));
        const Seconds floor = grouped_floor(roofline, peak, kernel.gemm, shape, element, extra);
        return {floor / (efficiency.value * sustained(profile, precision)), efficiency.basis};
    }
    if (!source.table->lines.empty()) {
        // All experts' tiles fill the GPU as one product of as many rows does.
        const Product product = product_of(kernel.gemm, rows, n, k);
        const bool deep = kernel.gemm == GemmKind::weight_gradient;
        const Efficiency efficiency = efficiency_along(
            near_lines(*source.table,
                       {std::log(product.columns), std::log(deep ? rows / active : product.depth)}),
            std::log(deep ? product.rows * active : product.rows));
        const Seconds floor = grouped_floor(roofline, peak, kernel.gemm, shape, element, extra);
        return {floor / (efficiency.value * sustained(profile, precision)),
                std::max(efficiency.basis, Basis::interpolated)};
    }
    Roofline unlimited = roofline;
    unlimited.memory_bandwidth = {1e300};
    const Seconds compute = grouped_floor(unlimited, peak, kernel.gemm, shape, element, extra);
    Roofline unbounded = roofline;
    unbounded.num_sms = 0;
    const Seconds memory = grouped_floor(unbounded, {1e300}, kernel.gemm, shape, element, extra);
    const double depth = product_of(kernel.gemm, rows / active, n, k).depth;
    return {stated_time(roofline, compute, memory,
                        gemm_efficiency(roofline, depth) * sustained(profile, precision)),
            Basis::roofline};
}

/// A backward pass recomputes the scores and forms four products: 2.5 times the forward's two
/// (FlashAttention-2, §3.1).
constexpr double kBackwardWork = 2.5;

PricedTime attention_time(const Profile& profile, const KernelName& kernel, Precision recipe,
                          const AttentionShape& shape) {
    if (shape.batch <= 0 || shape.sequence <= 0 || shape.num_heads <= 0 || shape.head_size <= 0)
        return {};
    const Precision precision = attention_precision(recipe);
    const Roofline& roofline = profile.roofline;
    const FlopsPerSecond peak = peak_of(roofline, precision);
    const double work = kernel.backward ? kBackwardWork : 1;
    const Seconds compute = work * attention_flops(shape) / peak;
    const Seconds memory =
        work * attention_bytes(shape, gemm_elements(precision).out) / roofline.memory_bandwidth;
    static const int forward = kernel_named("attention_forward").index;
    const EfficiencyTable& own = table_of(profile, kernel.index, precision);
    const EfficiencyTable& table = own.lines.empty() ? table_of(profile, forward, precision) : own;
    const double s = static_cast<double>(shape.sequence);
    if (table.lines.empty() && roofline.attention_model) {
        const Seconds model = attention_model_time(
            *roofline.attention_model,
            product_rates(roofline, precision, sustained(profile, precision)), shape,
            roofline.memory_efficiency, work, kernel.backward ? backward_efficiency(profile) : 1);
        return attention_correction(profile, precision)
            .of({s, static_cast<double>(shape.batch * shape.num_heads),
                 static_cast<double>(shape.head_size)},
                model);
    }
    if (!table.lines.empty()) {
        const NearLines near =
            near_lines(table, {std::log(static_cast<double>(shape.head_size)),
                               std::log(static_cast<double>(shape.batch * shape.num_heads))});
        const Efficiency efficiency = efficiency_along(near, std::log(s));
        const bool borrowed = own.lines.empty() && kernel.backward;
        const double backward = borrowed ? backward_efficiency(profile) : 1;
        return {std::max(compute, memory) /
                    (efficiency.value * backward * sustained(profile, precision)),
                borrowed ? std::max(efficiency.basis, Basis::published) : efficiency.basis};
    }
    double efficiency = roofline.attention_efficiency * s / (s + roofline.attention_half_sequence) *
                        sustained(profile, precision);
    if (kernel.backward) efficiency *= backward_efficiency(profile);
    return {stated_time(roofline, compute, memory, efficiency), Basis::roofline};
}

PricedTime streamed_time(const Profile& profile, const KernelName& kernel, Precision precision,
                         const Streamed& shape) {
    if (!(shape.moved.value > 0)) return {};
    const Roofline& roofline = profile.roofline;
    const double training = memory_training(profile);
    const EfficiencyTable& table = streamed_table(profile, kernel, precision);
    if (!table.lines.empty()) {
        const Seconds floor = shape.moved / roofline.memory_bandwidth;
        double log_width = 0;
        if (kernel.by_width && &table == &table_of(profile, kernel.index, precision))
            log_width = shape.width > 0 ? std::log(static_cast<double>(shape.width))
                                        : 0.5 * (table.low[0] + table.high[0]);
        const Efficiency efficiency =
            efficiency_along(near_lines(table, {log_width, 0}), std::log(shape.moved.value));
        return {floor / (efficiency.value * training), efficiency.basis};
    }
    return {stated_streamed(roofline, training, shape.moved), Basis::roofline};
}

}  // namespace

PricedTime kernel_time(const Profile& profile, std::string_view name, Precision precision,
                       const KernelShape& shape) {
    KernelName kernel = kernel_named(name);
    if (const auto* gemm = std::get_if<Gemm>(&shape)) {
        assert(kernel.family == KernelFamily::gemm);
        return gemm_time(profile, kernel, precision, *gemm);
    }
    if (const auto* grouped = std::get_if<GroupedGemm>(&shape)) {
        assert(kernel.family == KernelFamily::grouped_gemm);
        return grouped_time(profile, kernel, precision, *grouped);
    }
    if (const auto* attention = std::get_if<AttentionShape>(&shape)) {
        assert(kernel.family == KernelFamily::attention);
        return attention_time(profile, kernel, precision, *attention);
    }
    if (kernel.index < 0) kernel = kernel_named("streamed");
    return streamed_time(profile, kernel, precision, std::get<Streamed>(shape));
}

bool has_curve(const Profile& profile, std::string_view kernel, Precision precision) {
    const int index = kernel_named(kernel).index;
    return index >= 0 && !table_of(profile, index, precision).lines.empty();
}

}  // namespace moeplan
