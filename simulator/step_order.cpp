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
    for (int k = total - ahead; k < total; ++k) slots.push_back(interleaved_slot(Pass::backward, k, p, v));
    return slots;
}

/// ZB-H1 by list scheduling in unit time (F = B = W): a stage takes a ready B, else a ready F while it holds fewer than
/// p − s micro-batches, else a W. The order it finds is kept; real times then run through it.
std::vector<std::vector<Slot>> zero_bubble_order(int p, int m) {
    std::vector<std::vector<Slot>> orders(p);
    std::vector<int> forwards(p, 0), inputs(p, 0), weights(p, 0);
    std::vector<std::vector<int>> forward_end(p, std::vector<int>(m, -1)), input_end(p, std::vector<int>(m, -1));
    for (int now = 0;; ++now) {
        bool all = true;
        std::vector<Slot> chosen;
        std::vector<int> who;
        for (int s = 0; s < p; ++s) {
            if (weights[s] == m) continue;
            all = false;
            const int i = inputs[s], f = forwards[s];
            const bool input_ready = i < m && forward_end[s][i] >= 0 && forward_end[s][i] <= now &&
                                     (s == p - 1 || (input_end[s + 1][i] >= 0 && input_end[s + 1][i] <= now));
            // activations are held until the weight gradient is done: p of them, as the first stage of 1F1B
            const bool forward_ready = f < m && f - weights[s] < p && f - inputs[s] < p - s &&
                                       (s == 0 || (forward_end[s - 1][f] >= 0 && forward_end[s - 1][f] <= now));
            if (input_ready)
                chosen.push_back({Pass::backward_input, 0, i}), who.push_back(s);
            else if (forward_ready)
                chosen.push_back({Pass::forward, 0, f}), who.push_back(s);
            else if (weights[s] < inputs[s])
                chosen.push_back({Pass::backward_weight, 0, weights[s]}), who.push_back(s);
        }
        if (all) break;
        for (std::size_t j = 0; j < chosen.size(); ++j) {
            const int s = who[j];
            orders[s].push_back(chosen[j]);
            if (chosen[j].pass == Pass::forward) forward_end[s][forwards[s]++] = now + 1;
            if (chosen[j].pass == Pass::backward_input) input_end[s][inputs[s]++] = now + 1;
            if (chosen[j].pass == Pass::backward_weight) ++weights[s];
        }
    }
    return orders;
}

}  // namespace

bool can_order(Pipeline pipeline) { return pipeline != Pipeline::dual_pipe; }

std::vector<std::vector<Slot>> pipeline_order(Pipeline pipeline, int num_stages, int num_chunks, int num_micro_batches) {
    assert(can_order(pipeline) && num_stages > 0 && num_chunks > 0 && num_micro_batches > 0);
    if (num_stages == 1 && num_chunks == 1) pipeline = Pipeline::one_f_one_b;     // without stages every order is this one
    if (pipeline == Pipeline::zero_bubble) return zero_bubble_order(num_stages, num_micro_batches);
    std::vector<std::vector<Slot>> orders;
    for (int s = 0; s < num_stages; ++s) {
        if (pipeline == Pipeline::gpipe)
            orders.push_back(gpipe_order(num_chunks, num_micro_batches));
        else if (pipeline == Pipeline::interleaved || num_chunks > 1)
            orders.push_back(interleaved_order(s, num_stages, num_chunks, num_micro_batches));
        else
            orders.push_back(one_f_one_b_order(s, num_stages, num_micro_batches));
    }
    return orders;
}

}  // namespace moeplan
