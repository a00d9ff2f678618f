/// Ranks and their groups. Two grids over the same ranks, innermost index first (Megatron's default
/// order tp-cp-ep-dp-pp): attention (tp, cp, dp, pp) and experts (etp, ep, expert-dp, pp); the
/// pipeline stage is the outermost index of both.
#include <algorithm>
#include <cassert>

#include "model/parallel_layout.hpp"

namespace moeplan {

int world_size(const ParallelLayout& layout) {
    return layout.tensor_parallel_size * layout.context_parallel_size *
           layout.pipeline_parallel_size * layout.data_parallel_size;
}

int expert_data_parallel_size(const ParallelLayout& layout) {
    // A layout that does not divide is refused by check_layout; here it counts as one replica.
    return std::max(1, layout.tensor_parallel_size * layout.context_parallel_size *
                           layout.data_parallel_size /
                           (layout.expert_parallel_size * layout.expert_tensor_parallel_size));
}

RankPlace place_of(const ParallelLayout& layout, int rank) {
    assert(rank >= 0 && rank < world_size(layout));
    RankPlace out;
    const int per_stage =
        layout.tensor_parallel_size * layout.context_parallel_size * layout.data_parallel_size;
    out.stage = rank / per_stage;
    int rest = rank % per_stage;
    out.tensor = rest % layout.tensor_parallel_size;
    rest /= layout.tensor_parallel_size;
    out.context = rest % layout.context_parallel_size;
    out.data = rest / layout.context_parallel_size;
    rest = rank % per_stage;
    out.expert_tensor = rest % layout.expert_tensor_parallel_size;
    rest /= layout.expert_tensor_parallel_size;
    out.expert = rest % layout.expert_parallel_size;
    out.expert_data = rest / layout.expert_parallel_size;
    return out;
}

std::vector<int> group_of(const ParallelLayout& layout, GroupKind kind, int rank) {
    const int tp = layout.tensor_parallel_size, cp = layout.context_parallel_size,
              dp = layout.data_parallel_size, ep = layout.expert_parallel_size,
              etp = layout.expert_tensor_parallel_size;
    const int per_stage = tp * cp * dp;
    const RankPlace place = place_of(layout, rank);
    const int stage = place.stage * per_stage;
    // First rank, stride and number of the ranks that differ from this one in one index only.
    int first = 0, stride = 1, size = 1;
    const int inside = rank % per_stage;
    switch (kind) {
        case GroupKind::tensor:
            stride = 1, size = tp, first = inside - place.tensor;
            break;
        case GroupKind::context:
            stride = tp, size = cp, first = inside - place.context * tp;
            break;
        case GroupKind::data:
            stride = tp * cp, size = dp, first = inside - place.data * tp * cp;
            break;
        case GroupKind::data_context:
            stride = tp, size = cp * dp, first = place.tensor;
            break;
        case GroupKind::pipeline:
            stride = per_stage, size = layout.pipeline_parallel_size, first = inside - stage;
            break;  // less the stage that is added below
        case GroupKind::expert_tensor:
            stride = 1, size = etp, first = inside - place.expert_tensor;
            break;
        case GroupKind::expert:
            stride = etp, size = ep, first = inside - place.expert * etp;
            break;
        case GroupKind::expert_data:
            stride = etp * ep, size = expert_data_parallel_size(layout);
            first = inside - place.expert_data * etp * ep;
            break;
    }
    std::vector<int> out(static_cast<std::size_t>(size));
    for (int i = 0; i < size; ++i) out[static_cast<std::size_t>(i)] = stage + first + i * stride;
    return out;
}

int group_size(const ParallelLayout& layout, GroupKind kind) {
    switch (kind) {
        case GroupKind::tensor:
            return layout.tensor_parallel_size;
        case GroupKind::context:
            return layout.context_parallel_size;
        case GroupKind::data:
            return layout.data_parallel_size;
        case GroupKind::data_context:
            return layout.data_parallel_size * layout.context_parallel_size;
        case GroupKind::pipeline:
            return layout.pipeline_parallel_size;
        case GroupKind::expert:
            return layout.expert_parallel_size;
        case GroupKind::expert_tensor:
            return layout.expert_tensor_parallel_size;
        case GroupKind::expert_data:
            return expert_data_parallel_size(layout);
    }
    return 1;
}

}  // namespace moeplan
