#include "simulator/passes/end_passes.hpp"

#include <algorithm>

#include "model/kernel_work.hpp"
#include "simulator/overlap.hpp"
#include "simulator/passes/tensor_parallel.hpp"

namespace moeplan {
namespace {

/// Cross-entropy over logits in two bytes, worked on in four: read, up-cast, soft-max, loss; and
/// back. Eight bytes an entry each way where fused, in place of one pass's two and four.
constexpr double kLossForward = 8.0 / 2, kLossBackward = 8.0 / 4;

}  // namespace

void embedding_pass(PassBuilder& pass, bool forward) {
    pass.phase = forward ? Phase::forward : Phase::backward;
    pass.name(forward ? "embedding" : "embedding backward");
    pass.streamed(forward ? "embedding_forward" : "embedding_backward", pass.shapes.split_tokens,
                  pass.step.model.hidden_size);
    pass.launches(1);
}

void head_pass(PassBuilder& pass, bool forward, BackwardPart which) {
    const StepCase& step = pass.step;
    const SoftwareCosts& software = pass.software;
    pass.phase = forward ? Phase::forward : Phase::backward;
    const std::int64_t tp = step.layout.tensor_parallel_size, T = pass.shapes.tokens,
                       hidden = step.model.hidden_size,
                       vocab = std::max<std::int64_t>(1, step.model.vocab_size / tp);
    const bool input = which != BackwardPart::weight;
    const double whole = sequence_bytes(pass);
    pass.in(Module::ends, forward, forward ? 1 : share_of(which));
    if (forward) {
        pass.name("head and loss");
        pass.elementwise("rms_norm_forward", pass.shapes.split_tokens, hidden);
        if (step.schedule.sequence_parallel && tp > 1)
            pass.exchange(Collective::all_gather, Group::tensor, whole, Stream::tensor,
                          Part::tensor_comm);
        pass.name("head and loss");
        pass.gemm(T, vocab, hidden, false);
        pass.streamed("cross_entropy_forward", T, vocab, 0,
                      software.counted ? 1 : kLossForward * software.loss_bytes);
        return;
    }
    pass.name("head and loss backward");
    if (input)
        pass.streamed("cross_entropy_backward", T, vocab, 0,
                      software.counted ? 1 : kLossBackward * software.loss_bytes);
    pass.gemm_backward(T, vocab, hidden, which, false);
    if (!input) return;
    if (tp > 1)
        pass.exchange(sum_over_ranks(step), Group::tensor, whole, Stream::tensor,
                      Part::tensor_comm);
    pass.name("head and loss backward");
    pass.elementwise("rms_norm_backward", pass.shapes.split_tokens, hidden);
}

void mtp_projection_pass(PassBuilder& pass, bool forward, BackwardPart which) {
    pass.phase = forward ? Phase::forward : Phase::backward;
    const std::int64_t hidden = pass.step.model.hidden_size, T = pass.shapes.split_tokens;
    pass.name(forward ? "next-token module" : "next-token module backward");
    if (forward) {
        pass.streamed("embedding_forward", T, hidden);
        pass.elementwise("rms_norm_forward", 2 * T, hidden);
        pass.gemm(T, hidden, 2 * hidden);
    } else {
        pass.gemm_backward(T, hidden, 2 * hidden, which);
        if (which != BackwardPart::weight) pass.elementwise("rms_norm_backward", 2 * T, hidden);
        if (which != BackwardPart::weight) pass.streamed("embedding_backward", T, hidden);
    }
    pass.launches(3);
}

void optimizer_pass(PassBuilder& pass, double owned, double local) {
    const StepCase& step = pass.step;
    pass.phase = Phase::optimizer;
    pass.part = Part::optimizer;
    pass.name("optimizer");
    pass.in(Module::optimizer, true);
    const auto state = [&](std::string_view kernel, double items, double element) {
        if (items > 0)
            pass.add({kernel, Streamed{streamed_bytes(kernel, items, Bytes{element})}, 1, false,
                      false, true});
    };
    state("gradient_norm", owned, 4);
    if (!pass.software.counted) {
        // the host reads the norm before it clips and updates; what a step costs it besides comes
        // here too
        pass.host(
            Seconds{pass.software.step_work * step.profile->calibration[Constant::step_overhead]});
        pass.sync();
        pass.name("optimizer");
    }
    state("adamw", owned, 4);
    if (is_own_trainer(step)) {  // gradients set to zero: four bytes written
        if (has_curve(*step.profile, "zero", Precision::fp32))
            state("zero", local, 4);
        else
            state("copy", local, 2);
    }
    if (step.schedule.precision != Precision::fp32) {
        state("copy", owned, 3);  // master in four bytes → parameters in two
        state("copy", local,
              size_of(step.schedule.main_gradients).value /
                  2);  // gradients set to zero: written only
    }
}

}  // namespace moeplan
