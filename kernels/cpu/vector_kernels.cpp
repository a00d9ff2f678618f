/// The kernels that loop themselves, compiled once for each instruction set (MOEPLAN_ISA names it);
/// see simd.hpp.
#include "kernels/cpu/cpu_kernels.hpp"
#include "kernels/cpu/dispatch.hpp"
#include "kernels/cpu/simd.hpp"

namespace moeplan::cpu::MOEPLAN_ISA {
namespace {

// clang-format off: in this order
#include "kernels/cpu/elementwise.inc"  // log_sum_exp, which the others use
#include "kernels/cpu/attention.inc"
#include "kernels/cpu/routing.inc"
#include "kernels/cpu/bf16.inc"  // stands on the others
// clang-format on

}  // namespace

void fill(KernelSet& set) {
    set.embedding_forward = mixed::embedding_forward;
    set.embedding_backward = mixed::embedding_backward;
    set.rms_norm_forward = mixed::rms_norm_forward;
    set.rms_norm_backward = mixed::rms_norm_backward;
    set.residual_add = mixed::residual_add;
    set.bias_forward = mixed::bias_forward;
    set.bias_backward = mixed::bias_backward;
    set.rope_forward = mixed::rope_forward;
    set.rope_backward = mixed::rope_backward;
    set.swiglu_forward = mixed::swiglu_forward;
    set.swiglu_backward = mixed::swiglu_backward;
    set.gelu_forward = mixed::gelu_forward;
    set.gelu_backward = mixed::gelu_backward;
    set.relu_forward = mixed::relu_forward;
    set.relu_backward = mixed::relu_backward;
    set.router_forward = mixed::router_forward;
    set.router_backward = mixed::router_backward;
    set.document_pool = mixed::document_pool;
    set.permute_forward = mixed::permute_forward;
    set.permute_backward = mixed::permute_backward;
    set.unpermute_forward = mixed::unpermute_forward;
    set.unpermute_backward = mixed::unpermute_backward;
    set.attention_forward = mixed::attention_forward;
    set.attention_backward = mixed::attention_backward;
    set.cross_entropy_forward = mixed::cross_entropy_forward;
    set.cross_entropy_backward = mixed::cross_entropy_backward;
    set.adamw = mixed::adamw;
    set.gradient_norm = mixed::gradient_norm;
    set.scale = mixed::scale;
    set.convert = mixed::convert;
}

}  // namespace moeplan::cpu::MOEPLAN_ISA
