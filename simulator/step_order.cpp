#include "simulator/step_order.hpp"

#include <algorithm>
#include <cassert>
#include <cstddef>

namespace moeplan {
namespace {

std::vector<Slot> gpipe_order(int chunks, int m) {
    std::vector<Slot> slots;
    for (int c = 0; c < chunks; ++c)
        for (int i = 0; i < m; ++i) slots.push_back({Pass::forward, c, i});
    for (int c = chunks - 1; c >= 0; --c)
        for (int i = 0; i < m; ++i) slots.push_back({Pass::backward, c, i});
    return slots;
}

std::vector<Slot> one_f_one_b_order(int stage, int p, int m) {
    std::vector<Slot> slots;
    const int ahead = std::min(p - 1 - stage, m);
    for (int i = 0; i < ahead; ++i) slots.push_back({Pass::forward, 0, i});
    for (int i = ahead; i < m; ++i) {
        slots.push_back({Pass::forward, 0, i});
        slots.push_back({Pass::backward, 0, i - ahead});
    }
    for (int i = m - ahead; i < m; ++i) slots.push_back({Pass::backward, 0, i});
    return slots;
}

/// The k-th forward (or backward) unit of a stage: micro-batches go in turns of p, chunk by chunk.
Slot interleaved_slot(Pass pass, int k, int p, int v) {
    const int turn = k / (p * v), inside = k % (p * v);
    const int chunk = inside / p;
    return {pass, pass == Pass::forward ? chunk : v - 1 - chunk, turn * p + inside % p};
}

std::vector<Slot> interleaved_order(int stage, int p, int v, int m) {
    std::vector<Slot> slots;
    const int total = m * v;
    const int ahead = std::min(total, m == p ? total : 2 * (p - 1 - stage) + (v - 1) * p);
    for (int k = 0; k < ahead; ++k) slots.push_back(interleaved_slot(Pass::forward, k, p, v));
    for (int k = ahead; k < total; ++k) {
        slots.push_back(interleaved_slot(Pass::forward, k, p, v));
        slots.push_back(interleaved_slot(Pass::backward, k - ahead, p, v));
    }
    for (int k = total - ahead; k < total; ++k)
        slots.push_back(interleaved_slot(Pass::backward, k, p, v));
    return slots;
}

/// ZB-H1: 1F1B with the backward split. Stage s is s weight gradients behind its input gradients,
/// so that the first ones return the faster the later the stage; what is left fills its drain. p
/// micro-batches are held everywhere.
std::vector<Slot> zero_bubble_order(int stage, int p, int m) {
    std::vector<Slot> slots;
    int weights = 0;
    const auto backward = [&](int i) {
        slots.push_back({Pass::backward_input, 0, i});
        if (i >= stage) slots.push_back({Pass::backward_weight, 0, weights++});
    };
    const int ahead = std::min(p - 1 - stage, m);
    for (int i = 0; i < ahead; ++i) slots.push_back({Pass::forward, 0, i});
    for (int i = ahead; i < m; ++i) {
        slots.push_back({Pass::forward, 0, i});
        backward(i - ahead);
    }
    for (int i = m - ahead; i < m; ++i) backward(i);
    while (weights < m) slots.push_back({Pass::backward_weight, 0, weights++});
    return slots;
}

}  // namespace

bool can_order(Pipeline pipeline) { return pipeline != Pipeline::dual_pipe; }

std::vector<std::vector<Slot>> pipeline_order(Pipeline pipeline, int num_stages, int num_chunks,
                                              int num_micro_batches) {
    assert(can_order(pipeline) && num_stages > 0 && num_chunks > 0 && num_micro_batches > 0);
    if (num_stages == 1 && num_chunks == 1)
        pipeline = Pipeline::one_f_one_b;  // without stages every order is this one
    std::vector<std::vector<Slot>> orders;
    for (int s = 0; s < num_stages; ++s) {
        if (pipeline == Pipeline::gpipe)
            orders.push_back(gpipe_order(num_chunks, num_micro_batches));
        else if (pipeline == Pipeline::zero_bubble)
            orders.push_back(zero_bubble_order(s, num_stages, num_micro_batches));
        else if (pipeline == Pipeline::interleaved || num_chunks > 1)
            orders.push_back(interleaved_order(s, num_stages, num_chunks, num_micro_batches));
        else
            orders.push_back(one_f_one_b_order(s, num_stages, num_micro_batches));
    }
    return orders;
}

}  // namespace moeplan
