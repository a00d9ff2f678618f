#pragma once
/// Who holds what: the sizes of the parallel groups, and who is in them.

#include <vector>

#include "core/json.hpp"

namespace moeplan {

struct ParallelLayout {
    int tensor_parallel_size = 1, context_parallel_size = 1;
    int pipeline_parallel_size = 1,
        data_parallel_size = 1;  ///< dp counts attention's replicas: world = tp·cp·pp·dp
    int expert_parallel_size = 1, expert_tensor_parallel_size = 1;
    bool operator==(const ParallelLayout&) const = default;
};

int world_size(const ParallelLayout&);  ///< tp·cp·pp·dp
/// Replicas of one expert shard: tp·cp·dp / (ep·etp). Whole by the rules of `check_layout`.
int expert_data_parallel_size(const ParallelLayout&);

/// Where a rank stands. Megatron's default order, innermost first: tp, cp, dp, pp for attention;
/// etp, ep, expert-dp, pp for experts. A rank has one attention place and one expert place; the
/// pipeline stage is the same in both.
struct RankPlace {
    int tensor = 0, context = 0, data = 0, stage = 0;
    int expert_tensor = 0, expert = 0, expert_data = 0;
    bool operator==(const RankPlace&) const = default;
};
RankPlace place_of(const ParallelLayout&, int rank);

enum class GroupKind {
    tensor,
    context,
    data,
    data_context,
    pipeline,
    expert,
    expert_tensor,
    expert_data
};
/// The ranks, ascending, of the group of this kind that `rank` belongs to (itself included).
std::vector<int> group_of(const ParallelLayout&, GroupKind, int rank);

/// Ranks of a group of this kind.
int group_size(const ParallelLayout&, GroupKind);

/// Keys are the flags of the command line: tp cp pp dp ep etp.
ParallelLayout layout_from_json(const JsonReader&);
Json to_json(const ParallelLayout&);

}  // namespace moeplan
