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

std::vector<Slot> one_f_one_b_order(int stage, int p, int m, bool pairs) {
    std::vector<Slot> slots;
    const int ahead = std::min(p - 1 - stage + pairs, m);
    for (int i = 0; i < ahead; ++i) slots.push_back({Pass::forward, 0, i});
    for (int i = ahead; i < m; ++i) {
        slots.push_back({Pass::forward, 0, i, pairs});
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

std::vector<Slot> interleaved_order(int stage, int p, int v, int m, bool pairs) {
    std::vector<Slot> slots;
    const int total = m * v;
    const int ahead =
        std::min(total, m == p && !pairs ? total : 2 * (p - 1 - stage) + (v - 1) * p + pairs);
    for (int k = 0; k < ahead; ++k) slots.push_back(interleaved_slot(Pass::forward, k, p, v));
    for (int k = ahead; k < total; ++k) {
        slots.push_back(interleaved_slot(Pass::forward, k, p, v));
        slots.back().with_next = pairs;
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

/// ZB-V. Stage s has the s-th half-stage on the way into the model and the s-th from its end, so a
/// micro-batch turns round on the last stage without a message, and the first stage has its loss. p
/// micro-batches of a whole stage are held everywhere; where F = I = W no stage ever waits.
std::vector<Slot> zero_bubble_v_order(int stage, int p, int m) {
    std::vector<Slot> slots;
    int forwards[2] = {}, inputs[2] = {}, weights[2] = {};
    const auto add = [&](Pass pass, int chunk, int i) {
        // with few micro-batches what a full pipeline would do is left out
        if (i < m) slots.push_back({pass, chunk, i});
    };
    const auto forward = [&](int chunk) { add(Pass::forward, chunk, forwards[chunk]++); };
    const auto input = [&](int chunk) { add(Pass::backward_input, chunk, inputs[chunk]++); };
    const auto weight = [&](int chunk) { add(Pass::backward_weight, chunk, weights[chunk]++); };
    const int whole = std::max(m, 2 * p - 1), after = p - stage;

    // in: until the first micro-batch is back
    for (int i = 0; i < 2 * after - 1; ++i) forward(0);
    for (int i = 0; i < stage; ++i) {
        forward(1);
        forward(0);
    }
    for (int i = 0; i < after; ++i) {
        forward(1);
        input(1);
        weight(1);
    }
    // steady: one of each
    while (forwards[1] < forwards[0] || forwards[0] < whole) {
        if (forwards[0] < whole) forward(0);
        input(0);
        weight(0);
        forward(1);
        input(1);
        weight(1);
    }
    // out: input gradients first, for the stages before
    for (int i = 0; i < stage; ++i) {
        input(0);
        input(1);
    }
    for (int i = 0; i < after; ++i) {
        input(0);
        weight(0);
    }
    while (weights[1] < inputs[1]) weight(1);
    while (weights[0] < inputs[0]) weight(0);
    return slots;
}

/// DualPipe. A stage serves two directions: `near` is that whose micro-batches enter at the end of
/// the pipeline that lies closer. It holds p + 1 micro-batches at most.
std::vector<Slot> dual_pipe_order(int stage, int p, int m) {
    std::vector<Slot> slots;
    const int half = p / 2, depth = std::min(stage, p - 1 - stage);  // stages between it and its end
    const int near = stage < half ? 0 : 1, far = 1 - near;
    const int each[2] = {m - m / 2, m / 2};
    int forwards[2] = {}, backwards[2] = {};
    std::vector<Slot> owed;  // weight gradients whose turn is later
    std::size_t paid = 0;
    const auto slot = [&](Pass pass, int chunk, int i) {
        return Slot{pass, chunk, chunk == 0 ? i : each[0] + i};
    };
    const auto forward = [&](int chunk) {
        slots.push_back(slot(Pass::forward, chunk, forwards[chunk]++));
    };
    const auto backward = [&](int chunk) {
        slots.push_back(slot(Pass::backward, chunk, backwards[chunk]++));
    };
    const auto input = [&](int chunk) {
        owed.push_back(slot(Pass::backward_weight, chunk, backwards[chunk]));
        slots.push_back(slot(Pass::backward_input, chunk, backwards[chunk]++));
    };
    const auto weight = [&] { slots.push_back(owed[paid++]); };
    const auto both = [&](int forward_chunk, int backward_chunk) {
        forward(forward_chunk);
        slots.back().with_next = true;
        backward(backward_chunk);
    };

    // in
    for (int i = 0; i < 2 * (half - depth - 1); ++i) forward(near);
    for (int i = 0; i < depth + 1; ++i) {
        forward(near);
        forward(far);
    }
    for (int i = 0; i < half - depth - 1; ++i) {
        input(far);
        weight();
        forward(far);
    }
    // steady: a forward of one direction beside a backward of the other
    for (int i = 0; i < each[near] - p + depth + 1; ++i) {
        if (i == 0 && depth == half - 1) {  // in the middle one after the other: sent sooner
            forward(near);
            backward(far);
        } else {
            both(near, far);
        }
        both(far, near);
    }
    // out: weight gradients wait, from the middle of the last backwards on
    for (int i = 0; i < half - depth - 1; ++i) {
        backward(far);
        both(far, near);
    }
    const int last = depth + 1;
    for (int i = 0; i < last; ++i) {
        const bool odd = depth % 2 == 1;
        i > last / 2 || (i == last / 2 && odd) ? input(far) : backward(far);
        i >= last / 2 ? input(near) : backward(near);
    }
    for (int i = 0; i < half - depth - 1; ++i) {
        weight();
        input(near);
    }
    while (paid < owed.size()) weight();
    return slots;
}

}  // namespace

std::vector<std::vector<Slot>> pipeline_order(Pipeline pipeline, int num_stages, int num_chunks,
                                              int num_micro_batches, bool pairs) {
    assert(num_stages > 0 && num_chunks > 0 && num_micro_batches > 0);
    if (num_stages == 1 && num_chunks == 1)
        pipeline = Pipeline::one_f_one_b;  // without stages every order is this one
    assert(num_chunks == 2 ||
           (pipeline != Pipeline::dual_pipe && pipeline != Pipeline::zero_bubble_v));
    std::vector<std::vector<Slot>> orders;
    for (int s = 0; s < num_stages; ++s) {
        if (pipeline == Pipeline::gpipe)
            orders.push_back(gpipe_order(num_chunks, num_micro_batches));
        else if (pipeline == Pipeline::zero_bubble)
            orders.push_back(zero_bubble_order(s, num_stages, num_micro_batches));
        else if (pipeline == Pipeline::zero_bubble_v)
            orders.push_back(zero_bubble_v_order(s, num_stages, num_micro_batches));
        else if (pipeline == Pipeline::dual_pipe)
            orders.push_back(dual_pipe_order(s, num_stages, num_micro_batches));
        else if (pipeline == Pipeline::interleaved || num_chunks > 1)
            orders.push_back(interleaved_order(s, num_stages, num_chunks, num_micro_batches, pairs));
        else
            orders.push_back(one_f_one_b_order(s, num_stages, num_micro_batches, pairs));
    }
    return orders;
}

}  // namespace moeplan
