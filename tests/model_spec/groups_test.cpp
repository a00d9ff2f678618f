/// Groups of ranks: two grids over the same ranks.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "model/parallel_layout.hpp"
#include "model/stage_layers.hpp"

namespace moeplan {
namespace {

constexpr GroupKind kKinds[] = {GroupKind::tensor,        GroupKind::context,    GroupKind::data,
                                GroupKind::data_context,  GroupKind::pipeline,   GroupKind::expert,
                                GroupKind::expert_tensor, GroupKind::expert_data};

TEST(Groups, HandWorkedGridOfSixteen) {
    // tp 2, cp 1, dp 4, pp 2; etp 1, ep 4 → expert-dp 2 a stage of 8 ranks.
    const ParallelLayout layout{.tensor_parallel_size = 2,
                                .pipeline_parallel_size = 2,
                                .data_parallel_size = 4,
                                .expert_parallel_size = 4};
    EXPECT_EQ(world_size(layout), 16);
    EXPECT_EQ(expert_data_parallel_size(layout), 2);
    using Ranks = std::vector<int>;
    EXPECT_EQ(group_of(layout, GroupKind::tensor, 5), (Ranks{4, 5}));
    EXPECT_EQ(group_of(layout, GroupKind::data, 5), (Ranks{1, 3, 5, 7}));
    EXPECT_EQ(group_of(layout, GroupKind::expert, 5), (Ranks{4, 5, 6, 7}));
    EXPECT_EQ(group_of(layout, GroupKind::expert_data, 5), (Ranks{1, 5}));
    EXPECT_EQ(group_of(layout, GroupKind::pipeline, 5), (Ranks{5, 13}));
    EXPECT_EQ(group_of(layout, GroupKind::pipeline, 13), (Ranks{5, 13}));
    EXPECT_EQ(group_of(layout, GroupKind::expert, 13), (Ranks{12, 13, 14, 15}));
    EXPECT_EQ(place_of(layout, 13),
              (RankPlace{.tensor = 1, .data = 2, .stage = 1, .expert = 1, .expert_data = 1}));
}

TEST(Groups, EveryKindCutsTheWorldIntoEqualDisjointParts) {
    for (const ParallelLayout& layout :
         {ParallelLayout{},
          ParallelLayout{.tensor_parallel_size = 2,
          .context_parallel_size = 3,
          .pipeline_parallel_size = 2,
          .data_parallel_size = 4,
          .expert_parallel_size = 6,
          .expert_tensor_parallel_size = 2},
          ParallelLayout{
              .context_parallel_size = 2, .data_parallel_size = 8, .expert_parallel_size = 8},
          ParallelLayout{.tensor_parallel_size = 4,
          .data_parallel_size = 2,
          .expert_parallel_size = 4,
          .expert_tensor_parallel_size = 2}})
        for (const GroupKind kind : kKinds) {
            std::set<std::vector<int>> groups;
            for (int rank = 0; rank < world_size(layout); ++rank) {
                const auto group = group_of(layout, kind, rank);
                EXPECT_TRUE(std::is_sorted(group.begin(), group.end()));
                EXPECT_EQ(static_cast<int>(group.size()), group_size(layout, kind));
                EXPECT_TRUE(std::find(group.begin(), group.end(), rank) != group.end());
                groups.insert(group);
            }
            EXPECT_EQ(static_cast<int>(groups.size()) * group_size(layout, kind),
                      world_size(layout));
        }
}

TEST(Groups, LayoutReadsBack) {
    const ParallelLayout layout{.tensor_parallel_size = 2,
                                .context_parallel_size = 3,
                                .pipeline_parallel_size = 5,
                                .data_parallel_size = 7,
                                .expert_parallel_size = 11,
                                .expert_tensor_parallel_size = 13};
    EXPECT_EQ(layout_from_json(JsonReader::from_value(to_json(layout), "layout")), layout);
}

TEST(StageLayers, WhatDoesNotDivideGoesToTheMiddle) {
    // 30 over 4: the ends hold embedding and head, so 7, 8, 8, 7; 46 over 4: 11, 12, 12, 11.
    EXPECT_EQ(virtual_stage_layers(30, {.pipeline_parallel_size = 4}, {}),
              (std::vector{7, 8, 8, 7}));
    EXPECT_EQ(virtual_stage_layers(46, {.pipeline_parallel_size = 4}, {}),
              (std::vector{11, 12, 12, 11}));
}

TEST(StageLayers, InterleavedChunksAlternateBetweenRanks) {
    const auto chunks =
        stage_chunks(8, {.pipeline_parallel_size = 2}, {.virtual_pipeline_size = 2});
    EXPECT_EQ(chunks[0], (std::vector<LayerChunk>{{0, 2}, {4, 2}}));
    EXPECT_EQ(chunks[1], (std::vector<LayerChunk>{{2, 2}, {6, 2}}));
}

}  // namespace
}  // namespace moeplan
