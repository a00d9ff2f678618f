#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "simulator/step_order.hpp"

namespace moeplan {
namespace {

/// Runs orders with fixed times of a forward, an input gradient and a weight gradient of one chunk;
/// messages are free.
/// @return the last end
double run(const std::vector<std::vector<Slot>>& orders, int chunks, double forward, double input,
           double weight) {
    const int p = static_cast<int>(orders.size());
    std::map<std::tuple<bool, int, int>, double>
        done;  // (backward?, virtual stage, micro-batch) → end
    std::vector<std::size_t> at(orders.size(), 0);
    std::vector<double> now(orders.size(), 0);
    bool moved = true;
    while (moved) {
        moved = false;
        for (int s = 0; s < p; ++s)
            while (at[s] < orders[s].size()) {
                const Slot slot = orders[s][at[s]];
                const int stage = slot.chunk * p + s, last = p * chunks - 1;
                double ready = now[s], takes = 0;
                if (slot.pass == Pass::forward) {
                    if (stage > 0) {
                        const auto before = done.find({false, stage - 1, slot.micro_batch});
                        if (before == done.end()) break;
                        ready = std::max(ready, before->second);
                    }
                    takes = forward;
                } else if (slot.pass == Pass::backward_weight) {
                    takes = weight;
                } else {
                    if (!done.contains({false, stage, slot.micro_batch})) break;
                    if (stage < last) {
                        const auto after = done.find({true, stage + 1, slot.micro_batch});
                        if (after == done.end()) break;
                        ready = std::max(ready, after->second);
                    }
                    takes = slot.pass == Pass::backward ? input + weight : input;
                }
                now[s] = ready + takes;
                if (slot.pass == Pass::forward) done[{false, stage, slot.micro_batch}] = now[s];
                if (slot.pass == Pass::backward || slot.pass == Pass::backward_input)
                    done[{true, stage, slot.micro_batch}] = now[s];
                ++at[s];
                moved = true;
            }
    }
    for (int s = 0; s < p; ++s)
        EXPECT_EQ(at[s], orders[s].size()) << "stage " << s << " waits for ever";
    return *std::max_element(now.begin(), now.end());
}

TEST(PipelineOrder, EveryChunkOfEveryMicroBatchRunsOnceEachWay) {
    for (const auto& [pipeline, p, v, m] :
         {std::tuple{Pipeline::gpipe, 4, 1, 6}, std::tuple{Pipeline::one_f_one_b, 4, 1, 2},
          std::tuple{Pipeline::one_f_one_b, 4, 1, 9}, std::tuple{Pipeline::interleaved, 4, 3, 8},
          std::tuple{Pipeline::interleaved, 4, 2, 4}, std::tuple{Pipeline::zero_bubble, 4, 1, 9},
          std::tuple{Pipeline::zero_bubble, 3, 1, 1}})
        for (const auto& order : pipeline_order(pipeline, p, v, m)) {
            std::map<std::tuple<Pass, int, int>, int> seen;
            for (const Slot& slot : order) ++seen[{slot.pass, slot.chunk, slot.micro_batch}];
            for (const auto& [slot, times] : seen) EXPECT_EQ(times, 1);
            EXPECT_EQ(seen.size(), static_cast<std::size_t>(
                                       v * m * (pipeline == Pipeline::zero_bubble ? 3 : 2)));
        }
}

TEST(PipelineOrder, GpipeAndOneFOneBIdleForPMinusOneMicroBatches) {
    // T = (m + p − 1)(F + B): a bubble of (p−1)/(m+p−1).
    for (const Pipeline pipeline : {Pipeline::gpipe, Pipeline::one_f_one_b})
        for (const auto& [p, m] :
             {std::pair{2, 4}, std::pair{4, 4}, std::pair{4, 16}, std::pair{8, 3}})
            EXPECT_DOUBLE_EQ(run(pipeline_order(pipeline, p, 1, m), 1, 1, 1, 1), (m + p - 1) * 3.0)
                << p << " stages, " << m << " micro-batches";
}

TEST(PipelineOrder, InterleavingDividesTheBubbleByTheChunks) {
    // T = m·v·(f + b) + (p − 1)(f + b) with f, b of one chunk.
    for (const auto& [p, v, m] : {std::tuple{2, 2, 4}, std::tuple{4, 2, 8}, std::tuple{4, 4, 16}})
        EXPECT_DOUBLE_EQ(run(pipeline_order(Pipeline::interleaved, p, v, m), v, 1, 1, 1),
                         (m * v + p - 1) * 3.0);
}

TEST(PipelineOrder, ZeroBubbleFillsTheDrainWithWeightGradients) {
    // ZB-H1: T = m(F + B + W) + (p − 1)(F + B − W); here F = B = W = 1.
    for (const auto& [p, m] :
         {std::pair{2, 4}, std::pair{4, 8}, std::pair{4, 16}, std::pair{8, 16}})
        EXPECT_DOUBLE_EQ(run(pipeline_order(Pipeline::zero_bubble, p, 1, m), 1, 1, 1, 1),
                         m * 3.0 + (p - 1))
            << p << " stages, " << m << " micro-batches";
}

TEST(PipelineOrder, NoStageHoldsMoreMicroBatchesThanOneFOneB) {
    for (const auto& order : pipeline_order(Pipeline::zero_bubble, 4, 1, 12)) {
        int held = 0, most = 0;
        for (const Slot& slot : order) {
            held += slot.pass == Pass::forward ? 1 : slot.pass == Pass::backward_weight ? -1 : 0;
            most = std::max(most, held);
        }
        EXPECT_LE(most, 4);
    }
}

}  // namespace
}  // namespace moeplan
