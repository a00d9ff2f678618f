#pragma once
/// A kernel over the rows that a rank's experts received, for many ranks: everything but the rows is
/// looked up once.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "profiler/gemm_model.hpp"
#include "profiler/modelled_time.hpp"
#include "profiler/profile.hpp"

namespace moeplan {

/// Rows of each rank's experts, with what its kernels count of them.
struct ExpertRows {
    std::span<const std::uint32_t> rows;  ///< [ranks, experts_per_rank]
    std::size_t experts_per_rank = 0;
    RowCounts counts;
    std::span<const std::uint32_t> of(std::size_t rank) const {
        return rows.subspan(rank * experts_per_rank, experts_per_rank);
    }
};
ExpertRows expert_rows(const Profile&, std::span<const std::uint32_t> rows,
                       std::size_t experts_per_rank);

class RowKernel {
  public:
    /// @param shape  GroupedGemm: of its n and k; Streamed: one row
    RowKernel(const Profile&, std::string_view kernel, Precision, const KernelShape& shape);
    /// `kernel_time` of every rank, to the bit; 0 where there are no rows.
    /// @param seconds  [ranks]
    void times(const ExpertRows&, std::span<double> seconds) const;
    /// `kernel_time` of one rank that has rows.
    PricedTime time(const ExpertRows&, std::size_t rank) const;

  private:
    const Profile& profile_;
    std::string_view kernel_;
    Precision precision_;
    KernelShape shape_;
    std::optional<ModelledGrouped> modelled_;
    std::optional<double> training_;  // of a streamed kernel without a curve
};

}  // namespace moeplan
