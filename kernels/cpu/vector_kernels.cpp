/// The kernels that loop themselves, compiled once for each instruction set (MOEPLAN_ISA names it);
/// see simd.hpp.
#include "kernels/cpu/cpu_kernels.hpp"
#include "kernels/cpu/dispatch.hpp"
#include "kernels/cpu/simd.hpp"

namespace moeplan::cpu::MOEPLAN_ISA {
namespace {

#include "kernels/cpu/elementwise.inc"  // log_sum_exp, which the others use

#include "kernels/cpu/attention.inc"
#include "kernels/cpu/routing.inc"

}  // namespace

void fill(KernelSet& set) {
    set.embedding_forward = embedding_forward;
    set.embedding_backward = embedding_backward;
    set.rms_norm_forward = rms_norm_forward;
    set.rms_norm_backward = rms_norm_backward;
    set.residual_add = residual_add;
    set.bias_forward = bias_forward;
    set.bias_backward = bias_backward;
    set.rope_forward = rope_forward;
    set.rope_backward = rope_backward;
    set.swiglu_forward = swiglu_forward;
    set.swiglu_backward = swiglu_backward;
    set.gelu_forward = gelu_forward;
    set.gelu_backward = gelu_backward;
    set.relu_forward = relu_forward;
    set.relu_backward = relu_backward;
    set.router_forward = router_forward;
    set.router_backward = router_backward;
    set.document_pool = document_pool;
    set.permute_forward = permute_forward;
    set.permute_backward = permute_backward;
    set.unpermute_forward = unpermute_forward;
    set.unpermute_backward = unpermute_backward;
    set.attention_forward = attention_forward;
    set.attention_backward = attention_backward;
    set.cross_entropy_forward = cross_entropy_forward;
    set.cross_entropy_backward = cross_entropy_backward;
    set.adamw = adamw;
    set.gradient_norm = gradient_norm;
    set.scale = scale;
}

}  // namespace moeplan::cpu::MOEPLAN_ISA
