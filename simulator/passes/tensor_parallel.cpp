#include "simulator/passes/tensor_parallel.hpp"

#include "simulator/overlap.hpp"

namespace moeplan {
namespace {

/// Pieces in which an overlapped product and its exchange follow one another.
constexpr double kOverlapChunks = 4;

bool is_split(const StepCase& step) { return step.layout.tensor_parallel_size > 1; }

}  // namespace

double sequence_bytes(const PassBuilder& pass) {
    return static_cast<double>(pass.shapes.tokens) *
           static_cast<double>(pass.step.model.hidden_size) * pass.shapes.element.value;
}

Collective sum_over_ranks(const StepCase& step) {
    return step.schedule.sequence_parallel ? Collective::reduce_scatter : Collective::all_reduce;
}

void gather_sequence(PassBuilder& pass) {
    if (!pass.step.schedule.sequence_parallel || !is_split(pass.step)) return;
    pass.beside(Collective::all_gather, Group::tensor, sequence_bytes(pass), Stream::tensor,
                Part::tensor_comm, effective_overlap(pass.step).tensor);
}

void row_product(PassBuilder& pass, std::int64_t k, const char* name) {
    const std::int64_t T = pass.shapes.tokens, hidden = pass.step.model.hidden_size;
    const bool split = is_split(pass.step);
    const Collective kind = sum_over_ranks(pass.step);
    pass.name(name);
    if (split && effective_overlap(pass.step).tensor) {
        // in chunks: all but the first are multiplied while those before them travel
        pass.gemm(T, hidden, k, true, 1.0 / kOverlapChunks);
        pass.beside(kind, Group::tensor, sequence_bytes(pass), Stream::tensor, Part::tensor_comm,
                    true);
        pass.name(name);
        pass.gemm(T, hidden, k, true, 1 - 1.0 / kOverlapChunks);
        pass.join();
    } else {
        pass.gemm(T, hidden, k);
        if (split)
            pass.exchange(kind, Group::tensor, sequence_bytes(pass), Stream::tensor,
                          Part::tensor_comm);
    }
    pass.name(name);
    pass.elementwise("residual_add", pass.shapes.split_tokens, hidden);
}

void column_gradients(PassBuilder& pass,
                      const std::vector<std::pair<std::int64_t, std::int64_t>>& shapes,
                      BackwardPart which, const char* name) {
    const std::int64_t T = pass.shapes.tokens;
    const double bytes = sequence_bytes(pass);
    const bool split = is_split(pass.step), gathers = pass.step.schedule.sequence_parallel && split,
               input = which != BackwardPart::weight, weight = which != BackwardPart::input;
    const Collective kind = sum_over_ranks(pass.step);
    // The gathered input is needed again for the weights' gradients: it travels beside the input's
    // gradient, and that beside the weights'.
    const auto& recompute = pass.step.schedule.recompute;
    if (gathers && weight && !pass.software.keeps_gathered)
        pass.beside(Collective::all_gather, Group::tensor, bytes, Stream::tensor, Part::tensor_comm,
                    true);
    else if (gathers && weight && !recompute.full && !recompute.modules.empty())
        pass.exchange(Collective::all_gather, Group::tensor, bytes, Stream::tensor,
                      Part::tensor_comm);  // selective checkpoints drop what was gathered
    pass.name(name);
    const bool beside =
        split && input && weight &&
        (pass.software.overlaps_weight_gradient || effective_overlap(pass.step).tensor);
    if (!beside) {
        for (const auto& [n, k] : shapes) pass.gemm_backward(T, n, k, which);
        pass.join();
        if (split && input)
            pass.exchange(kind, Group::tensor, bytes, Stream::tensor, Part::tensor_comm);
        return;
    }
    for (const auto& [n, k] : shapes) pass.input_gradient(T, n, k);
    pass.join();
    pass.beside(kind, Group::tensor, bytes, Stream::tensor, Part::tensor_comm, true);
    pass.name(name);
    for (const auto& [n, k] : shapes) pass.weight_gradient(T, n, k);
    pass.join();
}

void norm_backward(PassBuilder& pass) {
    const std::int64_t hidden = pass.step.model.hidden_size;
    pass.elementwise("rms_norm_backward", pass.shapes.split_tokens, hidden);
    if (!is_own_trainer(pass.step))
        pass.elementwise("residual_add", pass.shapes.split_tokens, hidden);
}

}  // namespace moeplan
