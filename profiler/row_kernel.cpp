#include "profiler/row_kernel.hpp"

#include "profiler/kernel_source.hpp"

namespace moeplan {

ExpertRows expert_rows(const Profile& profile, std::span<const std::uint32_t> rows,
                       std::size_t experts_per_rank) {
    std::vector<int> heights;
    if (profile.roofline.gemm_model) heights = tile_heights(*profile.roofline.gemm_model);
    return {rows, experts_per_rank, count_rows(rows, experts_per_rank, heights)};
}

RowKernel::RowKernel(const Profile& profile, std::string_view name, Precision precision,
                     const KernelShape& shape)
    : profile_(profile), kernel_(name), precision_(precision), shape_(shape) {
    const KernelName kernel = kernel_named(name);
    if (const auto* grouped = std::get_if<GroupedGemm>(&shape)) {
        const bool measured =
            !gemm_source(profile, kernel, precision, 1, static_cast<double>(grouped->n),
                         static_cast<double>(grouped->k))
                 .table->lines.empty();
        if (!measured && profile.roofline.gemm_model && grouped->n > 0 && grouped->k > 0)
            modelled_.emplace(profile, kernel, precision, grouped->n, grouped->k);
    } else {
        const KernelName any = kernel.index < 0 ? kernel_named("streamed") : kernel;
        if (streamed_table(profile, any, precision).lines.empty())
            training_ = memory_training(profile);
    }
}

void RowKernel::times(const ExpertRows& rows, std::span<double> seconds) const {
    if (modelled_) {
        modelled_->times(rows.counts, seconds);
        return;
    }
    for (std::size_t rank = 0; rank < seconds.size(); ++rank)
        seconds[rank] = rows.counts.rows[rank] > 0 ? time(rows, rank).time.value : 0;
}

PricedTime RowKernel::time(const ExpertRows& rows, std::size_t rank) const {
    const double sum = rows.counts.rows[rank];
    if (const auto* grouped = std::get_if<GroupedGemm>(&shape_))
        return kernel_time(profile_, kernel_, precision_,
                           GroupedGemm{rows.of(rank), grouped->n, grouped->k});
    const auto& row = std::get<Streamed>(shape_);
    if (training_ && row.moved.value > 0)
        return {stated_streamed(profile_.roofline, *training_, row.moved * sum), Basis::roofline};
    return kernel_time(profile_, kernel_, precision_, Streamed{row.moved * sum, row.width});
}

}  // namespace moeplan
