#include "simulator/expert_loads.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "simulator/routing_model.hpp"

namespace moeplan {

RoutedRows::RoutedRows(std::vector<std::uint32_t> counts) {
    std::uint32_t bits = 0;
    for (const std::uint32_t count : counts) bits |= count;
    if (bits <= std::numeric_limits<std::uint16_t>::max())
        narrow_.assign(counts.begin(), counts.end());
    else
        wide_ = std::move(counts);
}

ExpertLoads lane_loads(PlacedLoads placed, const ParallelLayout& layout, const MoeFeedForward& moe,
                       std::int64_t units, int width) {
    const int ep = layout.expert_parallel_size, etp = layout.expert_tensor_parallel_size,
              block = ep * etp;
    ExpertLoads out;
    out.units = units;
    out.top_k = moe.top_k;
    // a placement may leave some slots of a rank empty
    const int blocks = (width + block - 1) / block,
              per_rank = out.experts_per_rank = static_cast<int>(placed.rows.size()) / blocks / ep;
    out.traffic = RoutedRows(std::move(placed.traffic));
    out.copies = std::move(placed.copies);
    out.domain_copies = std::move(placed.domain_copies);
    out.rows.reserve(static_cast<std::size_t>(width) * per_rank);
    for (int rank = 0; rank < width; ++rank) {
        const auto first =
            placed.rows.begin() + rank / block * ep * per_rank + rank % block / etp * per_rank;
        out.rows.insert(out.rows.end(), first, first + per_rank);
    }
    return out;
}

double load_imbalance(const ExpertLoads& loads) {
    const std::size_t width = loads.rows.size() / std::max(1, loads.experts_per_rank);
    double most = 0, sum = 0;
    for (std::size_t w = 0; w < width; ++w) {
        double rows = 0;
        for (int e = 0; e < loads.experts_per_rank; ++e)
            rows += loads.rows[w * loads.experts_per_rank + e];
        most = std::max(most, rows);
        sum += rows;
    }
    return sum > 0 ? most * static_cast<double>(width) / sum : 1;
}

}  // namespace moeplan
