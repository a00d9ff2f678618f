#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "core/seed.hpp"
#include "model/op_counts.hpp"
#include "simulator/job_prices.hpp"
#include "simulator/step_graph.hpp"
#include "simulator/step_walk.hpp"
#include "tests/simulator/step/cases.hpp"
#include "tests/tolerance.hpp"

namespace moeplan {
namespace {

std::set<std::vector<int>> sets(std::vector<std::vector<int>> groups) {
    std::set<std::vector<int>> out;
    for (auto& group : groups) {
        std::sort(group.begin(), group.end());
        out.insert(group);
    }
    return out;
}

TEST(RoutedRows, KeepWhatNeedsMoreThanTwoBytes) {
    for (const std::uint32_t most : {65'535u, 65'536u, 4'000'000'000u}) {
        const RoutedRows counts({3, most, 0});
        ASSERT_EQ(counts.size(), 3u);
        EXPECT_EQ(counts[0], 3u);
        EXPECT_EQ(counts[1], most);
        EXPECT_EQ(counts[2], 0u);
    }
    EXPECT_EQ(RoutedRows().size(), 0u);
}

TEST(ExchangeGroups, AreThoseOfTheLayout) {
    // Two sources of one truth: the graph's arithmetic and model/parallel_layout.hpp.
    for (const auto& [tp, cp, dp, pp, ep, etp] :
         {std::array{2, 2, 8, 2, 4, 2}, std::array{1, 1, 16, 2, 8, 1}, std::array{4, 1, 4, 1, 8, 1},
          std::array{8, 1, 2, 2, 2, 8}}) {
        StepCase step = tests::small_case(8);
        step.layout = {tp, cp, pp, dp, ep, etp};
        const StepGraph graph = build_step_graph(step);
        for (const auto& [ours, theirs] :
             {std::pair{Group::tensor, GroupKind::tensor},
              std::pair{Group::context, GroupKind::context},
              std::pair{Group::expert, GroupKind::expert},
              std::pair{Group::expert_tensor, GroupKind::expert_tensor},
              std::pair{Group::data_context, GroupKind::data_context},
              std::pair{Group::expert_data, GroupKind::expert_data}})
            for (int stage = 0; stage < pp; ++stage) {
                ExchangeDemand demand;
                demand.group = ours;
                demand.stage = static_cast<std::uint16_t>(stage);
                std::vector<std::vector<int>> expected;
                for (int rank = stage * tp * cp * dp; rank < (stage + 1) * tp * cp * dp; ++rank)
                    expected.push_back(group_of(step.layout, theirs, rank));
                EXPECT_EQ(sets(exchange_groups(graph, step.layout, demand)), sets(expected))
                    << static_cast<int>(ours) << " of stage " << stage;
            }
    }
}

TEST(AllToAllBytes, WhatIsSentIsReceivedAndComesBack) {
    StepCase step = tests::small_case();
    step.layout.expert_parallel_size = 4;
    step.layout.data_parallel_size = 16;
    step.routing = SyntheticRouting{"zipf", 1.3, 0};
    const StepGraph graph = build_step_graph(step);
    int seen = 0;
    for (const auto& demand : graph.exchanges) {
        if (demand.kind != Collective::all_to_all || !demand.to_experts) continue;
        ++seen;
        ExchangeDemand back = demand;
        back.to_experts = false;
        const auto there = all_to_all_bytes(graph, step.layout, demand, Dispatcher::all_to_all, 0),
                   home = all_to_all_bytes(graph, step.layout, back, Dispatcher::all_to_all, 0);
        double rows = 0;
        for (int s = 0; s < 4; ++s)
            for (int d = 0; d < 4; ++d) {
                EXPECT_EQ(there[s * 4 + d], home[d * 4 + s]);
                rows += there[s * 4 + d] / demand.payload.value;
            }
        // all rows but those that stay: Σ traffic = T·k·sources
        const auto& loads = graph.loads[demand.loads];
        double stay = 0, all = 0;
        for (int s = 0; s < 4; ++s)
            for (int d = 0; d < 4; ++d) (s == d ? stay : all) += loads.traffic[s * 4 + d];
        EXPECT_EQ(rows, all);
        EXPECT_EQ(all + stay, 4.0 * 512 * 2);
        // and every row that arrives is worked on
        EXPECT_EQ(std::accumulate(loads.rows.begin(), loads.rows.end(), 0.0), 4.0 * 512 * 2);
    }
    EXPECT_EQ(seen, 4 * 4);  // layers · micro-batches
}

TEST(AllToAllBytes, RemovingDuplicatesNeverAddsBytes) {
    StepCase step = tests::small_case();
    step.layout.expert_parallel_size = 4;
    const StepGraph graph = build_step_graph(step);
    for (const auto& demand : graph.exchanges) {
        if (demand.kind != Collective::all_to_all) continue;
        const auto plain = all_to_all_bytes(graph, step.layout, demand, Dispatcher::all_to_all, 0),
                   once =
                       all_to_all_bytes(graph, step.layout, demand, Dispatcher::deduplicating, 0);
        for (std::size_t i = 0; i < plain.size(); ++i)
            EXPECT_LE(once[i], plain[i] * (1 + kArithmetic));
        // top-2, even: share q = 1/4 of the choices goes to each rank, 1 − (3/4)² = 7/16 of the
        // units instead of 2/4
        EXPECT_NEAR(once[1] / plain[1], (7.0 / 16) / (2.0 / 4), 1e-12);
    }
}

TEST(StepGraph, HasNoOpListPerReplica) {
    StepCase small = tests::small_case(2), large = tests::small_case(16);
    EXPECT_EQ(build_step_graph(small).ops.size(), build_step_graph(large).ops.size());
    EXPECT_EQ(build_step_graph(large).replicas, 128);
}

TEST(StepGraph, FlopsOfAllJobsAreThoseOfTheModel) {
    // Priced at 1 TFlop/s and infinite memory rate, kernels take flops/1e12: forward + 2 × that
    // backward, as op_counts says.
    StepCase step = tests::small_case(1);
    step.layout.data_parallel_size = 1;
    step.schedule.num_micro_batches = 1;
    Profile profile = *tests::plain_profile();
    profile.roofline.memory_bandwidth = BytesPerSecond{1e30};
    prepare(profile);
    step.profile = std::make_shared<const Profile>(profile);
    const StepGraph graph = build_step_graph(step);
    const JobPrices prices = price_jobs(graph, step);
    double seconds = 0;
    for (const Op& op : graph.ops)
        if (!op.exchange) seconds += prices.jobs[op.demand].device;
    // attention's backward recomputes the scores: 5 products instead of 4, so 2.5 × forward; its
    // share is named apart
    const double tokens = 512;
    const TokenFlops flops = flops_per_token(step.model, 512);
    const double scores =
        4 * 2.0 * 512 * 8 * 32 * 2 /
        2;  // 4 layers · 2 products · 2 flops · s/2 keys · heads · head size, a token
    EXPECT_NEAR(seconds * 1e12, tokens * (flops.training_causal_half.value + 0.5 * scores),
                0.02 * tokens * flops.training_causal_half.value);
}

TEST(Pipeline, UniformStagesIdleForTheFormulasShare) {
    // (p − 1)/(m + p − 1) of the step; the head is made tiny and the links fast.
    for (const int m : {4, 16}) {
        StepCase step = tests::small_case(1);
        step.model.vocab_size = 1;
        step.layout = {1, 1, 4, 1, 1, 1};
        step.schedule.num_micro_batches = m;
        step.schedule.sharding = Sharding::none;
        step.cluster.scale_up.bandwidth = BytesPerSecond{1e15};
        step.cluster.scale_up.latency = step.cluster.collective_launch = Seconds{1e-12};
        const StepReport report = estimate_step(step);
        const double work = report.exposed.compute.value + report.exposed.bubble.value;
        EXPECT_NEAR(report.exposed.bubble.value / work, 3.0 / (m + 3), 0.01);
    }
}

}  // namespace
}  // namespace moeplan
