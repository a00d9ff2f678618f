#pragma once
/// Orders of passes run by hand: fixed times, free messages. What the step's graph must come to where
/// nothing else costs time.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "model/stage_layers.hpp"
#include "simulator/step_order.hpp"

namespace moeplan::tests {

/// Seconds of a forward, an input gradient and a weight gradient of one chunk, and of a forward and
/// a backward that take turns (F&B). Messages are free.
struct PassTimes {
    double forward = 1, input = 1, weight = 1, both = forward + input + weight;
    bool turns = true;  ///< else the forward of a pair is over, and sent, before the backward begins
};
struct Ran {
    double end = 0;              // the last
    std::vector<double> busy;    // [stages]
    std::vector<double> idle;    // [stages] between its first begin and its last end
};

inline Ran run(Pipeline pipeline, int p, int v, int m, const PassTimes& times, bool pairs = false) {
    const auto orders = pipeline_order(pipeline, p, v, m, pairs);
    const int last = (pipeline == Pipeline::dual_pipe ? 1 : v) * p - 1;
    std::map<std::tuple<bool, int, int>, double>
        done;  // (backward?, virtual stage, micro-batch) → end
    std::vector<std::size_t> at(orders.size(), 0);
    std::vector<double> now(orders.size(), 0), first(orders.size(), -1);
    Ran out;
    out.busy.assign(orders.size(), 0);
    const auto stage_of = [&](int s, const Slot& slot) {
        return virtual_stage(pipeline, p, s, slot.chunk);
    };
    // when what a slot waits for is there; −1: not yet
    const auto ready = [&](int s, const Slot& slot) {
        const int stage = stage_of(s, slot);
        const auto when = [&](bool backward, int where) {
            const auto found = done.find({backward, where, slot.micro_batch});
            return found == done.end() ? -1.0 : found->second;
        };
        if (slot.pass == Pass::forward) return stage == 0 ? 0.0 : when(false, stage - 1);
        if (slot.pass == Pass::backward_weight) return 0.0;
        if (when(false, stage) < 0) return -1.0;
        return stage == last ? when(false, stage) : when(true, stage + 1);
    };
    bool moved = true;
    while (moved) {
        moved = false;
        for (int s = 0; s < p; ++s)
            while (at[s] < orders[s].size()) {
                const Slot slot = orders[s][at[s]];
                double begin = ready(s, slot),
                       takes = slot.pass == Pass::forward           ? times.forward
                               : slot.pass == Pass::backward_weight ? times.weight
                               : slot.pass == Pass::backward_input  ? times.input
                                                                    : times.input + times.weight;
                std::vector<Slot> ends = {slot};
                if (slot.with_next && times.turns) {
                    const Slot next = orders[s].at(at[s] + 1);
                    EXPECT_NE(next.micro_batch, slot.micro_batch);
                    EXPECT_EQ(next.pass, Pass::backward);
                    begin = begin < 0 || ready(s, next) < 0 ? -1 : std::max(begin, ready(s, next));
                    takes = times.both;
                    ends.push_back(next);
                }
                if (begin < 0) break;
                begin = std::max(begin, now[s]);
                if (first[s] < 0) first[s] = begin;
                now[s] = begin + takes;
                out.busy[s] += takes;
                for (const Slot& one : ends)
                    if (one.pass != Pass::backward_weight)
                        done[{one.pass != Pass::forward, stage_of(s, one), one.micro_batch}] =
                            now[s];
                at[s] += ends.size();
                moved = true;
            }
    }
    for (int s = 0; s < p; ++s) {
        EXPECT_EQ(at[s], orders[s].size()) << "stage " << s << " waits for ever";
        out.idle.push_back(now[s] - first[s] - out.busy[s]);
    }
    out.end = *std::max_element(now.begin(), now.end());
    return out;
}

}  // namespace moeplan::tests
