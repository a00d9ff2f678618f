#pragma once
/// What the CPU backend is put together from.

#include "kernels/kernel_set.hpp"

namespace moeplan::cpu {

/// @name The same sources compiled for three instruction sets; each fills in all rows but the
/// products and the permutation map.
/// @{
namespace baseline {
void fill(KernelSet& set);
}
namespace avx2 {
void fill(KernelSet& set);
}
namespace avx512 {
void fill(KernelSet& set);
}
/// @}

/// c = alpha · op(a) · op(b) + beta · c (gemm.cpp): oneDNN for f32, plain loops for f64.
void multiply(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k,
              float alpha, const float* a, std::int64_t lda, const float* b, std::int64_t ldb,
              float beta, float* c, std::int64_t ldc);
void multiply(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k,
              double alpha, const double* a, std::int64_t lda, const double* b, std::int64_t ldb,
              double beta, double* c, std::int64_t ldc);

Status gemm(const GemmCall*, Stream_*);
Status grouped_gemm(const GroupedGemmCall*, Stream_*);
Status permutation_map(const PermutationMap*, Stream_*);
Status convert(const Convert*, Stream_*);

/// head_size/2 cosines, then as many sines, of the angles position · theta^(−2i/head_size), made in
/// double; valid until this thread's next call (rotation_table.cpp).
template <class T>
const T* rotation(std::int64_t position, std::int64_t head_size, double theta);

/// @name Fused rows, each put together from the rows that it fuses (fused.cpp).
/// @{
Status route_forward(const RouteForward*, Stream_*);
Status expert_activation_forward(const ExpertActivationForward*, Stream_*);
Status expert_activation_backward(const ExpertActivationBackward*, Stream_*);
Status residual_rms_norm_forward(const ResidualRmsNormForward*, Stream_*);
Status cross_entropy_in_place(const CrossEntropyInPlace*, Stream_*);
Status adamw_tensors(const AdamWTensors*, Stream_*);
Status gradient_norms(const GradientNorms*, Stream_*);
/// @}

/// Scratch memory of this thread, at least so many bytes; content undefined, valid until the next
/// call with the same slot.
void* scratch(int slot, std::size_t bytes);

}  // namespace moeplan::cpu
