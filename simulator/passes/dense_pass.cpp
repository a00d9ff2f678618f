#include "simulator/passes/dense_pass.hpp"

#include <algorithm>

#include "simulator/passes/tensor_parallel.hpp"

namespace moeplan {
namespace {

/// Inner width of one tensor-parallel rank.
std::int64_t inner_width(const PassBuilder& pass, const DenseFeedForward& ffn) {
    return std::max<std::int64_t>(1, ffn.dense_hidden_size / pass.step.layout.tensor_parallel_size);
}

}  // namespace

void dense_forward(PassBuilder& pass, const DenseFeedForward& ffn, Phase phase) {
    pass.phase = phase;
    const std::int64_t T = pass.shapes.tokens, hidden = pass.step.model.hidden_size,
                       f = inner_width(pass, ffn);
    pass.in(Module::feed_forward, true);
    pass.elementwise("rms_norm_forward", pass.shapes.split_tokens, hidden);
    gather_sequence(pass);
    pass.name("feed-forward");
    pass.gemm(T, num_gates(ffn.activation) * f, hidden);
    pass.join();
    pass.name("feed-forward");
    pass.elementwise(activation_kernel(ffn.activation, true), T, f);
    row_product(pass, f, "feed-forward");
}

void dense_backward(PassBuilder& pass, const DenseFeedForward& ffn, BackwardPart which) {
    pass.phase = Phase::backward;
    const std::int64_t T = pass.shapes.tokens, hidden = pass.step.model.hidden_size,
                       f = inner_width(pass, ffn);
    const bool input = which != BackwardPart::weight;
    const Recompute& recompute = pass.step.schedule.recompute;
    pass.name("feed-forward backward");
    pass.in(Module::feed_forward, false, share_of(which));
    if (input) gather_sequence(pass);
    pass.name("feed-forward backward");
    if (input && recompute.modules.contains("mlp") && !recompute.full) {
        pass.alone();
        pass.gemm(T, num_gates(ffn.activation) * f, hidden);
        pass.elementwise(activation_kernel(ffn.activation, true), T, f);
        pass.in(Module::feed_forward, false, share_of(which));
    }
    pass.gemm_backward(T, hidden, f, which);
    pass.join();
    pass.name("feed-forward backward");
    if (input) pass.elementwise(activation_kernel(ffn.activation, false), T, f);
    column_gradients(pass, {{num_gates(ffn.activation) * f, hidden}}, which,
                     "feed-forward backward");
    if (!input) return;
    pass.name("feed-forward backward");
    norm_backward(pass);
}

}  // namespace moeplan
