#include "simulator/passes/shared_experts.hpp"

#include <algorithm>

#include "simulator/passes/tensor_parallel.hpp"

namespace moeplan {
namespace {

/// Inner width of all shared experts.
std::int64_t inner_width(const MoeFeedForward& moe) {
    return static_cast<std::int64_t>(moe.num_shared_experts) * moe.shared_expert_hidden_size;
}
/// … of one tensor-parallel rank.
std::int64_t inner_width(const PassBuilder& pass, const MoeFeedForward& moe) {
    return std::max<std::int64_t>(1, inner_width(moe) / pass.step.layout.tensor_parallel_size);
}

void products_forward(PassBuilder& pass, const MoeFeedForward& moe) {
    if (inner_width(moe) <= 0) return;
    const std::int64_t T = pass.shapes.tokens, hidden = pass.step.model.hidden_size,
                       f = inner_width(pass, moe);
    pass.in(Module::shared_experts, true);
    pass.gemm(T, num_gates(moe.activation) * f, hidden);
    pass.elementwise(activation_kernel(moe.activation, true), T, f);
    pass.gemm(T, hidden, f);
    pass.elementwise("residual_add", T, hidden);
}

void products_backward(PassBuilder& pass, const MoeFeedForward& moe, BackwardPart which) {
    if (inner_width(moe) <= 0) return;
    const std::int64_t T = pass.shapes.tokens, hidden = pass.step.model.hidden_size,
                       f = inner_width(pass, moe);
    const bool input = which != BackwardPart::weight;
    const Recompute& recompute = pass.step.schedule.recompute;
    if (input && recompute.modules.contains("shared_experts") && !recompute.full)
        products_forward(pass, moe);
    pass.in(Module::shared_experts, false, share_of(which));
    pass.gemm_backward(T, hidden, f, which);
    if (input) pass.elementwise(activation_kernel(moe.activation, false), T, f);
    pass.gemm_backward(T, num_gates(moe.activation) * f, hidden, which);
}

/// @param exchanges  false: no exchange is needed, as for weight gradients alone
template <class Products>
void between_exchanges(PassBuilder& pass, bool exchanges, Products products) {
    if (exchanges && pass.step.schedule.sequence_parallel)
        pass.exchange(Collective::all_gather, Group::tensor, sequence_bytes(pass), Stream::tensor,
                      Part::tensor_comm);
    products();
    if (exchanges)
        pass.exchange(sum_over_ranks(pass.step), Group::tensor, sequence_bytes(pass),
                      Stream::tensor, Part::tensor_comm);
}

}  // namespace

bool shards_shared_experts(const StepCase& step, const MoeFeedForward& moe) {
    return step.layout.tensor_parallel_size > 1 && moe.num_shared_experts > 0;
}

void shared_experts_forward(PassBuilder& pass, const MoeFeedForward& moe) {
    between_exchanges(pass, shards_shared_experts(pass.step, moe),
                      [&] { products_forward(pass, moe); });
}

void shared_experts_backward(PassBuilder& pass, const MoeFeedForward& moe, BackwardPart which) {
    between_exchanges(pass, shards_shared_experts(pass.step, moe) && which != BackwardPart::weight,
                      [&] { products_backward(pass, moe, which); });
}

}  // namespace moeplan
