#pragma once
/// The rows of KernelSet on CUDA; each is defined in the file of its kernel and put together in backend.cu.

#include "kernels/kernel_set.hpp"

namespace moeplan::cuda {

/// kOk if the kernels of this module run on the current device.
Status supports_this_device();

Status embedding_forward(const EmbeddingForward*, Stream_*);
Status embedding_backward(const EmbeddingBackward*, Stream_*);
Status rms_norm_forward(const RmsNormForward*, Stream_*);
Status rms_norm_backward(const RmsNormBackward*, Stream_*);
Status residual_add(const ResidualAdd*, Stream_*);
Status bias_forward(const BiasForward*, Stream_*);
Status bias_backward(const BiasBackward*, Stream_*);
Status rope_forward(const Rope*, Stream_*);
Status rope_backward(const Rope*, Stream_*);
Status swiglu_forward(const ActivationForward*, Stream_*);
Status swiglu_backward(const ActivationBackward*, Stream_*);
Status gelu_forward(const ActivationForward*, Stream_*);
Status gelu_backward(const ActivationBackward*, Stream_*);
Status relu_forward(const ActivationForward*, Stream_*);
Status relu_backward(const ActivationBackward*, Stream_*);
Status router_forward(const RouterForward*, Stream_*);
Status router_backward(const RouterBackward*, Stream_*);
Status document_pool(const DocumentPoolMask*, Stream_*);
Status permutation_map(const PermutationMap*, Stream_*);
Status permute_forward(const PermuteForward*, Stream_*);
Status permute_backward(const PermuteBackward*, Stream_*);
Status unpermute_forward(const UnpermuteForward*, Stream_*);
Status unpermute_backward(const UnpermuteBackward*, Stream_*);
Status attention_forward(const AttentionForward*, Stream_*);
Status attention_backward(const AttentionBackward*, Stream_*);
Status cross_entropy_forward(const CrossEntropyForward*, Stream_*);
Status cross_entropy_backward(const CrossEntropyBackward*, Stream_*);
Status adamw(const AdamW*, Stream_*);
Status gradient_norm(const GradientNorm*, Stream_*);
Status gemm(const GemmCall*, Stream_*);
Status grouped_gemm(const GroupedGemmCall*, Stream_*);
Status convert(const Convert*, Stream_*);
Status scale(const Scale*, Stream_*);
Status route_forward(const RouteForward*, Stream_*);
Status expert_activation_forward(const ExpertActivationForward*, Stream_*);
Status expert_activation_backward(const ExpertActivationBackward*, Stream_*);
Status residual_rms_norm_forward(const ResidualRmsNormForward*, Stream_*);
Status cross_entropy_in_place(const CrossEntropyInPlace*, Stream_*);
Status adamw_tensors(const AdamWTensors*, Stream_*);
Status gradient_norms(const GradientNorms*, Stream_*);

}  // namespace moeplan::cuda
