#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <vector>

#include "model/memory.hpp"
#include "tests/simulator/step/run_order.hpp"

namespace moeplan {
namespace {

using tests::PassTimes;
using tests::Ran;
using tests::run;

/// Most passes of chunks that a stage holds at once: from a forward to the end of its backward. Of two
/// that take turns the backward frees layer by layer what the forward takes; DualPipe's p + 1 counts
/// both.
int most_held(const std::vector<Slot>& order, bool in_turns = false) {
    int held = 0, most = 0;
    for (const Slot& slot : order) {
        held += slot.pass == Pass::forward ? 1 : slot.pass == Pass::backward_input ? 0 : -1;
        if (!(in_turns && slot.with_next)) most = std::max(most, held);
    }
    return most;
}

TEST(PipelineOrder, EveryChunkOfEveryMicroBatchRunsOnceEachWay) {
    for (const auto& [pipeline, p, v, m] :
         {std::tuple{Pipeline::gpipe, 4, 1, 6}, std::tuple{Pipeline::one_f_one_b, 4, 1, 2},
          std::tuple{Pipeline::one_f_one_b, 4, 1, 9}, std::tuple{Pipeline::interleaved, 4, 3, 8},
          std::tuple{Pipeline::interleaved, 4, 2, 4}, std::tuple{Pipeline::zero_bubble, 4, 1, 9},
          std::tuple{Pipeline::zero_bubble, 3, 1, 1}, std::tuple{Pipeline::zero_bubble_v, 4, 2, 9},
          std::tuple{Pipeline::zero_bubble_v, 4, 2, 2}, std::tuple{Pipeline::dual_pipe, 4, 2, 8},
          std::tuple{Pipeline::dual_pipe, 6, 2, 20}, std::tuple{Pipeline::dual_pipe, 2, 2, 4}})
        for (const bool pairs : {false, true})
            for (const auto& order : pipeline_order(pipeline, p, v, m, pairs)) {
                // a backward is whole, or input gradient and then weight gradient
                std::map<std::pair<int, int>, int> forwards, inputs, weights;
                for (const Slot& slot : order) {
                    const auto what = std::pair{slot.chunk, slot.micro_batch};
                    if (slot.pass == Pass::forward) ++forwards[what];
                    if (slot.pass == Pass::backward || slot.pass == Pass::backward_input) {
                        EXPECT_EQ(forwards[what], 1);
                        ++inputs[what];
                    }
                    if (slot.pass == Pass::backward || slot.pass == Pass::backward_weight) {
                        EXPECT_EQ(inputs[what], 1);
                        ++weights[what];
                    }
                }
                // DualPipe: each micro-batch passes a stage in one direction only
                const int all = pipeline == Pipeline::dual_pipe ? m : v * m;
                EXPECT_EQ(forwards.size(), static_cast<std::size_t>(all));
                for (const auto& times : {forwards, inputs, weights})
                    for (const auto& [what, count] : times) EXPECT_EQ(count, 1);
                EXPECT_EQ(weights.size(), forwards.size());
            }
}

TEST(PipelineOrder, GpipeAndOneFOneBIdleForPMinusOneMicroBatches) {
    // T = (m + p − 1)(F + B): a bubble of (p−1)/(m+p−1). Here F = 1, B = 2.
    for (const Pipeline pipeline : {Pipeline::gpipe, Pipeline::one_f_one_b})
        for (const auto& [p, m] :
             {std::pair{2, 4}, std::pair{4, 4}, std::pair{4, 16}, std::pair{8, 3}})
            EXPECT_DOUBLE_EQ(run(pipeline, p, 1, m, {}).end, (m + p - 1) * 3.0)
                << p << " stages, " << m << " micro-batches";
}

TEST(PipelineOrder, InterleavingDividesTheBubbleByTheChunks) {
    // T = m·v·(f + b) + (p − 1)(f + b) with f, b of one chunk.
    for (const auto& [p, v, m] : {std::tuple{2, 2, 4}, std::tuple{4, 2, 8}, std::tuple{4, 4, 16}})
        EXPECT_DOUBLE_EQ(run(Pipeline::interleaved, p, v, m, {}).end, (m * v + p - 1) * 3.0);
}

TEST(PipelineOrder, ZeroBubbleFillsTheDrainWithWeightGradients) {
    // ZB-H1 (arXiv 2401.10241; "ZB1P" in DeepSeek-V3's table 2): T = m(F + I + W) + (p − 1)(F + I − W),
    // which with B = I + W is the table's bubble (PP − 1)(F + B − 2W). Times in eighths are exact.
    for (const PassTimes& t : {PassTimes{1, 1, 1}, PassTimes{1, 1.25, 0.75}})
        for (const auto& [p, m] :
             {std::pair{2, 4}, std::pair{4, 8}, std::pair{4, 16}, std::pair{8, 16}})
            EXPECT_DOUBLE_EQ(run(Pipeline::zero_bubble, p, 1, m, t).end,
                             m * (t.forward + t.input + t.weight) +
                                 (p - 1) * (t.forward + t.input - t.weight))
                << p << " stages, " << m << " micro-batches";
}

TEST(PipelineOrder, ZbVWaitsForNothingWherePassesAreEqual) {
    // ZB-V (arXiv 2405.15362): with f = i = w of a chunk a stage is never idle between its first
    // and its last pass. The last stage begins after p − 1 forwards, so T = 2m(f + i + w) + (p − 1)f.
    for (const auto& [p, m] : {std::pair{2, 3}, std::pair{4, 7}, std::pair{4, 16}, std::pair{8, 24}}) {
        const Ran ran = run(Pipeline::zero_bubble_v, p, 2, m, {});
        for (const double idle : ran.idle) EXPECT_EQ(idle, 0) << p << " stages";
        EXPECT_DOUBLE_EQ(ran.end, 2 * m * 3.0 + (p - 1));
        // With a longer input gradient it is that which staggers the stages: (p − 1)·i.
        const PassTimes t{1, 1.5, 0.75};
        EXPECT_DOUBLE_EQ(run(Pipeline::zero_bubble_v, p, 2, m, t).end,
                         2 * m * (1 + 1.5 + 0.75) + (p - 1) * 1.5);
    }
}

TEST(PipelineOrder, DualPipesBubbleIsThatOfItsPaper) {
    // DeepSeek-V3 (arXiv 2412.19437), table 2: (PP/2 − 1)(F&B + B − 3W), where F&B is a forward and a
    // backward that overlap: as long as both, or shorter; with F = I, as its figure draws them. All
    // stages wait alike, but that outer ones run fewer of the shorter pairs.
    for (const auto& [p, m] : {std::pair{2, 4}, std::pair{4, 8}, std::pair{4, 10}, std::pair{6, 12},
                              std::pair{8, 16}, std::pair{8, 40}})
        for (const PassTimes& t : {PassTimes{1, 1, 1}, PassTimes{1, 1, 0.5},
                                   PassTimes{1, 1, 1, 2.5}, PassTimes{1, 1, 0.5, 2}}) {
            const Ran ran = run(Pipeline::dual_pipe, p, 2, m, t);
            const double bubble = (p / 2 - 1) * (t.both + t.input + t.weight - 3 * t.weight);
            EXPECT_DOUBLE_EQ(ran.end - *std::min_element(ran.busy.begin(), ran.busy.end()), bubble)
                << p << " stages, " << m << " micro-batches";
            if (t.both < t.forward + t.input + t.weight) continue;
            for (const double busy : ran.busy) EXPECT_DOUBLE_EQ(ran.end - busy, bubble);
        }
    // 4 stages, 8 micro-batches, F = I = W = 1: 8·3 of work on each stage and (2 − 1)(3 + 2 − 3)
    // of bubble: 26. 1F1B: (8 + 3)·3 = 33.
    EXPECT_EQ(run(Pipeline::dual_pipe, 4, 2, 8, {}).end, 26);
    EXPECT_EQ(run(Pipeline::one_f_one_b, 4, 1, 8, {}).end, 33);
}

TEST(PipelineOrder, HoldsWhatThePapersSay) {
    for (const int p : {2, 4, 8})
        for (int s = 0; s < p; ++s) {
            const int m = 3 * p;
            const auto held = [&](Pipeline pipeline, int v, bool pairs = false) {
                return most_held(pipeline_order(pipeline, p, v, m, pairs)[s], pairs);
            };
            EXPECT_EQ(held(Pipeline::gpipe, 1), m);
            EXPECT_EQ(held(Pipeline::one_f_one_b, 1), p - s);
            EXPECT_EQ(held(Pipeline::one_f_one_b, 1, true), p - s);
            EXPECT_EQ(held(Pipeline::zero_bubble, 1), p);
            EXPECT_EQ(held(Pipeline::zero_bubble_v, 2), 2 * p);  // of half a stage
            EXPECT_EQ(held(Pipeline::dual_pipe, 2), p + 1);
            EXPECT_EQ(held(Pipeline::interleaved, 2), 2 * (p - s - 1) + p + 1);
            EXPECT_EQ(held(Pipeline::interleaved, 2, true), 2 * (p - s - 1) + p + 1);
        }
}

TEST(PipelineOrder, MemoryModelCountsWhatTheOrdersHold) {
    for (const auto& [pipeline, v] :
         {std::pair{Pipeline::gpipe, 1}, std::pair{Pipeline::one_f_one_b, 1},
          std::pair{Pipeline::zero_bubble, 1}, std::pair{Pipeline::zero_bubble_v, 2},
          std::pair{Pipeline::dual_pipe, 1}, std::pair{Pipeline::interleaved, 2}})
        for (const bool turns : {false, true}) {
            const int p = 4;
            ParallelLayout layout;
            layout.pipeline_parallel_size = p;
            layout.expert_parallel_size = 2;
            StepSchedule schedule;
            schedule.pipeline = pipeline;
            schedule.virtual_pipeline_size = v;
            schedule.num_micro_batches = 12;
            schedule.overlap.experts = turns;
            schedule.overlap.communication_sms = 20;
            const auto orders =
                pipeline_order(pipeline, p, num_chunks(layout, schedule), 12,
                               takes_turns(layout, schedule));
            const auto counted = passes_in_flight(layout, schedule);
            for (int s = 0; s < p; ++s)
                EXPECT_EQ(std::accumulate(counted[s].begin(), counted[s].end(), 0),
                          most_held(orders[s], turns && pipeline != Pipeline::dual_pipe))
                    << name_of(pipeline) << ", stage " << s << (turns ? ", in turns" : "");
        }
}

}  // namespace
}  // namespace moeplan
