#pragma once
/// The kernels of a device, one function pointer each, forward and backward: the list to write for
/// a new device. Row names are those of model/kernel_work.hpp (fused rows are priced by their parts);
/// kernels/kernel_rows.hpp gives each row's flops and bytes and runs it for a profiler.
///
/// Conventions
/// * All tensors are dense and row-major. `void*` tensors hold `format`; `stat` tensors hold f64 if
/// `format` is f64, else f32
///   (statistics, gates, losses, gradients of weights). Indices are int32. All pointers are device
///   memory unless named host_….
/// * A kernel writes its outputs whole, or adds to them where the comment says "+=". Gradients of
/// weights are always "+=".
/// * Every kernel is deterministic: the same bytes for the same input, whatever the number of
/// threads or blocks.
/// * Sizes may be zero: nothing is read, outputs are as an empty sum has them. A kernel that cannot
/// do a format says kUnsupported.
/// * Expert id −1: this choice was not routed (dropped); row −1 likewise. They give zeros and take
/// no gradient.

#include <cstdint>

#include "kernels/backend.hpp"

namespace moeplan {

/// y[t] = table[token[t]].
struct EmbeddingForward {
    const std::int32_t* tokens = nullptr;  ///< [num_tokens]
    const void* table = nullptr;           ///< [vocab_size, hidden_size]
    void* y = nullptr;                     ///< [num_tokens, hidden_size]
    std::int64_t num_tokens = 0, hidden_size = 0, vocab_size = 0;
    NumberFormat format = NumberFormat::f32;
};
/// dtable[token[t]] += dy[t].
struct EmbeddingBackward {
    const std::int32_t* tokens = nullptr;
    const void* dy = nullptr;  ///< [num_tokens, hidden_size]
    void* dtable = nullptr;    ///< stat [vocab_size, hidden_size], +=
    std::int64_t num_tokens = 0, hidden_size = 0, vocab_size = 0;
    NumberFormat format = NumberFormat::f32;
};

/// y = x / √(mean(x²) + epsilon) · weight, by row.
struct RmsNormForward {
    const void* x = nullptr;       ///< [rows, width]
    const void* weight = nullptr;  ///< [width], or null: ones
    void* y = nullptr;             ///< [rows, width]
    void* inverse_rms = nullptr;   ///< stat [rows]
    std::int64_t rows = 0, width = 0;
    double epsilon = 1e-6;
    NumberFormat format = NumberFormat::f32;
    bool operator==(const RmsNormForward&) const = default;
};
struct RmsNormBackward {
    const void *x = nullptr, *weight = nullptr, *inverse_rms = nullptr, *dy = nullptr;
    void* dx =
        nullptr;  ///< [rows, width]; "+=" if accumulate (the residual's gradient is already there)
    void* dweight = nullptr;  ///< stat [width], +=; may be null
    std::int64_t rows = 0, width = 0;
    bool accumulate = false;
    NumberFormat format = NumberFormat::f32;
    bool operator==(const RmsNormBackward&) const = default;
};

/// out = a + b; out may be a or b.
struct ResidualAdd {
    const void *a = nullptr, *b = nullptr;
    void* out = nullptr;
    std::int64_t count = 0;
    NumberFormat format = NumberFormat::f32;
    bool operator==(const ResidualAdd&) const = default;
};

/// y = x + bias by row, in place; group g owns rows offsets[g] … offsets[g+1]−1 and bias[g]. One
/// group without offsets.
struct BiasForward {
    void* x = nullptr;                      ///< [rows, width]
    const void* bias = nullptr;             ///< [num_groups, width]
    const std::int32_t* offsets = nullptr;  ///< [num_groups + 1], or null
    std::int64_t rows = 0, width = 0, num_groups = 1;
    NumberFormat format = NumberFormat::f32;
    bool operator==(const BiasForward&) const = default;
};
struct BiasBackward {
    const void* dy = nullptr;  ///< [rows, width]
    void* dbias = nullptr;     ///< stat [num_groups, width], +=
    const std::int32_t* offsets = nullptr;
    std::int64_t rows = 0, width = 0, num_groups = 1;
    NumberFormat format = NumberFormat::f32;
    bool operator==(const BiasBackward&) const = default;
};

/// Rotary positions, in place: in each head (x_i, x_{i+half}) turns by position ·
/// theta^(−2i/head_size), i < half = head_size/2. Forward and backward share the struct; backward
/// turns the other way.
struct Rope {
    void* x = nullptr;  ///< [num_tokens, num_heads, head_size], rows `row_stride` elements apart
    const std::int32_t* positions = nullptr;  ///< [num_tokens]
    std::int64_t num_tokens = 0, num_heads = 0, head_size = 0, row_stride = 0;
    double theta = 10000;
    NumberFormat format = NumberFormat::f32;
    bool operator==(const Rope&) const = default;
};

/// swiglu: x = [rows, 2·width] (gate columns, then up columns), y = silu(gate)·up. gelu (exact, by
/// erf), relu: x = [rows, width].
struct ActivationForward {
    const void* x = nullptr;
    void* y = nullptr;  ///< [rows, width]
    std::int64_t rows = 0, width = 0;
    NumberFormat format = NumberFormat::f32;
    bool operator==(const ActivationForward&) const = default;
};
struct ActivationBackward {
    const void *x = nullptr, *dy = nullptr;
    void* dx = nullptr;  ///< shape of x; may be x
    std::int64_t rows = 0, width = 0;
    NumberFormat format = NumberFormat::f32;
    bool operator==(const ActivationBackward&) const = default;
};

enum class ScoreKind : std::int32_t { softmax, sigmoid };

/// Scores of all experts and the chosen k of each routed unit.
///
/// logits → (mask: −inf where the unit's mask forbids an expert) → probabilities by softmax over
/// experts or sigmoid each; selection score = probability + selection_bias; with groups only
/// experts of the top_k_groups best groups stay (a group's score: the sum of its two best selection
/// scores); top_k by selection score, ties to the lower index, in falling order; gates =
/// probabilities of the chosen, divided by their sum if renormalise, times gate_scale. A unit with
/// fewer allowed experts than top_k gets id −1 and gate 0 for the rest.
struct RouterForward {
    const void* logits = nullptr;           ///< stat [units, num_experts]
    const std::uint8_t* allowed = nullptr;  ///< [num_masks, num_experts], 1 = allowed; null: all
    const std::int32_t* mask_of_unit = nullptr;  ///< [units]; needed with `allowed`
    const void* selection_bias = nullptr;        ///< stat [num_experts], or null
    void* probabilities = nullptr;               ///< stat [units, num_experts]; masked experts 0
    void* log_sum_exp = nullptr;         ///< stat [units], over allowed experts; may be null
    std::int32_t* expert_ids = nullptr;  ///< [units, top_k]; may be null if top_k = 0
    void* gates = nullptr;               ///< stat [units, top_k]
    void* probability_sums = nullptr;    ///< stat [num_experts] = Σ over units; may be null
    double* z_sum = nullptr;             ///< [1] = Σ over units of log_sum_exp²; may be null
    std::int64_t units = 0, num_experts = 0, top_k = 0;
    std::int64_t num_groups = 0, top_k_groups = 0;
    ScoreKind score = ScoreKind::softmax;
    bool renormalise = false;
    double gate_scale = 1;
    NumberFormat format = NumberFormat::f32;  ///< f64 or f32: decides `stat` alone
};
/// dlogits of gates, balance loss (linear in probabilities) and z-loss (Σ log_sum_exp² · z_scale). The
/// experts of a unit differ from each other.
struct RouterBackward {
    const void *probabilities = nullptr,
               *log_sum_exp =
                   nullptr;  ///< as forward left them; log_sum_exp may be null if z_scale = 0
    const std::int32_t* expert_ids = nullptr;
    const void *gates = nullptr, *dgates = nullptr;  ///< stat [units, top_k]
    const void* dprobability = nullptr;  ///< stat [num_rows, num_experts]: what every unit of a
                                         ///< row's group adds to dprobabilities; may be null
    const std::int32_t* dprobability_row = nullptr;  ///< [units], or null: row 0
    void* dlogits = nullptr;                         ///< stat [units, num_experts]
    std::int64_t units = 0, num_experts = 0, top_k = 0;
    ScoreKind score = ScoreKind::softmax;
    bool renormalise = false;
    double gate_scale = 1, z_scale = 0;
    NumberFormat format = NumberFormat::f32;
};

/// EMO: which experts a document may use: the pool_size experts with the largest Σ of probabilities
/// over its units, ties to the lower index.
struct DocumentPoolMask {
    const void* probabilities = nullptr;  ///< stat [units, num_experts], before masking
    const std::int32_t* document_begin =
        nullptr;  ///< [num_documents + 1], in units, ascending, first 0, last = units
    const std::int32_t* pool_size = nullptr;  ///< [num_documents]; ≥ num_experts: all
    void* scores = nullptr;                   ///< stat [num_documents, num_experts]
    std::uint8_t* allowed = nullptr;          ///< [num_documents, num_experts]
    std::int64_t units = 0, num_experts = 0, num_documents = 0;
    NumberFormat format = NumberFormat::f32;
};

/// Stable sort of slots (slot = unit · top_k + choice) by expert.
/// With a capacity, slots are counted choice by choice (all first choices, then all second …), each
/// in order of units; a slot whose place is ≥ capacity is dropped. Kept rows of an expert stay in
/// order of slots.
struct PermutationMap {
    const std::int32_t* expert_ids = nullptr;  ///< [units, top_k]; −1: not routed
    std::int32_t* rows_per_expert = nullptr;   ///< [num_experts], kept
    std::int32_t* offsets = nullptr;           ///< [num_experts + 1]
    std::int32_t* row_of_slot = nullptr;       ///< [units · top_k]; −1: dropped
    std::int32_t* slot_of_row =
        nullptr;  ///< [units · top_k]; entries beyond offsets[num_experts] are undefined
    std::int64_t units = 0, top_k = 0, num_experts = 0;
    std::int64_t capacity = 0;  ///< rows an expert takes at most; 0: dropless
};

/// y[row] = x[slot_of_row[row] / top_k].
struct PermuteForward {
    const void* x = nullptr;                    ///< [units, width]
    const std::int32_t* slot_of_row = nullptr;  ///< [rows]
    void* y = nullptr;                          ///< [rows, width]
    std::int64_t rows = 0, width = 0, top_k = 1;
    NumberFormat format = NumberFormat::f32;
};
/// dx[unit] = Σ over its choices of dy[row_of_slot].
struct PermuteBackward {
    const void* dy = nullptr;                   ///< [rows, width]
    const std::int32_t* row_of_slot = nullptr;  ///< [units, top_k]
    void* dx = nullptr;                         ///< [units, width]; "+=" if accumulate
    std::int64_t units = 0, width = 0, top_k = 1;
    bool accumulate = false;
    NumberFormat format = NumberFormat::f32;
};
/// y[unit] = Σ over its choices, in order, of gate · x[row_of_slot].
struct UnpermuteForward {
    const void* x = nullptr;                    ///< [rows, width]
    const std::int32_t* row_of_slot = nullptr;  ///< [units, top_k]
    const void* gates = nullptr;                ///< stat [units, top_k]; null: ones
    void* y = nullptr;                          ///< [units, width]; "+=" if accumulate
    std::int64_t units = 0, width = 0, top_k = 1;
    bool accumulate = false;
    NumberFormat format = NumberFormat::f32;
};
/// dx[row] = gate · dy[unit]; dgate = ⟨dy[unit], x[row]⟩ (0 where dropped).
struct UnpermuteBackward {
    const void *x = nullptr, *dy = nullptr;
    const std::int32_t* row_of_slot = nullptr;
    const void* gates = nullptr;
    void* dx = nullptr;      ///< [rows, width]; rows no slot points at are left alone
    void* dgates = nullptr;  ///< stat [units, top_k]; may be null
    std::int64_t units = 0, width = 0, top_k = 1;
    NumberFormat format = NumberFormat::f32;
};

/// Causal attention within documents: query i sees key j if j ≤ i, document[j] = document[i], and i
/// − j < window if there is one.
struct AttentionForward {
    const void *q = nullptr, *k = nullptr,
               *v = nullptr;  ///< [batch · sequence, heads, head_size], rows `stride` elements
                              ///< apart (views of one fused qkv)
    std::int64_t q_stride = 0, k_stride = 0, v_stride = 0;
    void* out = nullptr;                      ///< [batch · sequence, num_heads, head_size], dense
    void* log_sum_exp = nullptr;              ///< stat [batch, num_heads, sequence]
    const std::int32_t* documents = nullptr;  ///< [batch · sequence], ascending within a sequence;
                                              ///< null: one document a sequence
    std::int64_t batch = 0, sequence = 0, num_heads = 0, num_kv_heads = 0, head_size = 0;
    std::int64_t window = 0;  ///< 0: none
    double scale = 1;         ///< of the scores, usually 1/√head_size
    NumberFormat format = NumberFormat::f32;
    bool operator==(const AttentionForward&) const = default;
};
struct AttentionBackward {
    AttentionForward forward;    ///< with out and log_sum_exp as forward left them
    const void* dout = nullptr;  ///< [batch · sequence, num_heads, head_size], dense
    void *dq = nullptr, *dk = nullptr,
         *dv = nullptr;  ///< as q, k, v, with the same strides; written whole
    bool operator==(const AttentionBackward&) const = default;
};

/// loss[t] = log_sum_exp(logits[t]) − logits[t][target[t]]; 0 where the target is −1.
struct CrossEntropyForward {
    const void* logits = nullptr;                  ///< [num_tokens, vocab_size]
    const std::int32_t* targets = nullptr;         ///< [num_tokens]
    void *loss = nullptr, *log_sum_exp = nullptr;  ///< stat [num_tokens]
    std::int64_t num_tokens = 0, vocab_size = 0;
    NumberFormat format = NumberFormat::f32;
};
/// dlogits = scale · (softmax − one-hot); zeros where the target is −1.
struct CrossEntropyBackward {
    const void *logits = nullptr, *log_sum_exp = nullptr;
    const std::int32_t* targets = nullptr;
    void* dlogits = nullptr;  ///< [num_tokens, vocab_size]; may be logits
    std::int64_t num_tokens = 0, vocab_size = 0;
    double scale = 1;
    NumberFormat format = NumberFormat::f32;
};

/// AdamW (Loshchilov, Hutter 2019): g ← gradient_scale · g; m, v moving means; w ← w − lr·(m̂/(√v̂ +
/// ε) + weight_decay·w).
struct AdamW {
    void* weight = nullptr;  ///< `format` [count]
    void* master =
        nullptr;  ///< stat [count] the weight in full precision, or null if format is f32 or f64
    void *m = nullptr, *v = nullptr;   ///< stat [count]
    const void* gradient = nullptr;    ///< stat [count]
    std::int64_t count = 0, step = 1;  ///< step counts from 1
    double learning_rate = 0, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0,
           gradient_scale = 1;
    NumberFormat format = NumberFormat::f32;
};
/// sum[0] += Σ gradient² (f64), in a fixed order.
struct GradientNorm {
    const void* gradient = nullptr;  ///< stat [count]
    double* sum = nullptr;           ///< [1] device memory, +=
    std::int64_t count = 0;
    NumberFormat format = NumberFormat::f32;
    bool operator==(const GradientNorm&) const = default;
};

/// c = alpha · op(a) · op(b) + beta · c; op(a) is [m, k], op(b) is [k, n], c is [m, n].
struct GemmCall {
    const void *a = nullptr, *b = nullptr;
    void* c = nullptr;
    std::int64_t m = 0, n = 0, k = 0;
    std::int64_t lda = 0, ldb = 0, ldc = 0;         ///< elements between rows as stored
    bool transpose_a = false, transpose_b = false;  ///< stored as [k, m], [n, k]
    double alpha = 1, beta = 0;
    NumberFormat format = NumberFormat::f32;      ///< of a and b; accumulates in stat
    NumberFormat out_format = NumberFormat::f32;  ///< of c: `format` or its stat
    bool operator==(const GemmCall&) const = default;
};

/// The three products of a layer of experts; expert e owns rows offsets[e] … offsets[e+1]−1;
/// weights are out × in, as a Linear's.
enum class GroupedProduct : std::int32_t {
    forward,          ///< y[rows, n] = x[rows, k] · w[e][n, k]ᵀ
    data_gradient,    ///< x = dx[rows, k] := y[rows, n] · w[e][n, k]
    weight_gradient,  ///< w = stat dw[e][n, k] += y[rows of e, n]ᵀ · x[rows of e, k]; an expert
                      ///< without rows adds zero
};
struct GroupedGemmCall {
    void *x = nullptr, *w = nullptr,
         *y = nullptr;  ///< [rows, k], [num_experts, n, k], [rows, n]; the one that is written
                        ///< depends on the product
    const std::int32_t* offsets = nullptr;       ///< [num_experts + 1] device memory
    const std::int32_t* host_offsets = nullptr;  ///< the same in host memory; null if not known
                                                 ///< there (a kernel may then say kUnsupported)
    std::int64_t num_experts = 0, rows = 0, n = 0, k = 0;
    GroupedProduct product = GroupedProduct::forward;
    NumberFormat format = NumberFormat::f32;
};

/// out = in in another format.
struct Convert {
    const void* in = nullptr;
    void* out = nullptr;
    std::int64_t count = 0;
    NumberFormat in_format = NumberFormat::f32, out_format = NumberFormat::f32;
    bool operator==(const Convert&) const = default;
};
/// y = alpha·x + beta·y (a copy where alpha = 1, beta = 0).
struct Scale {
    const void* x = nullptr;
    void* y = nullptr;
    std::int64_t count = 0;
    double alpha = 1, beta = 0;
    NumberFormat format = NumberFormat::f32;
    bool operator==(const Scale&) const = default;
};

// --- Fused rows: what several of the rows above do, in one pass over memory. kernels/cpu/fused.cpp
// --- puts each together from them and is the definition.

/// router_forward on logits = x · weightᵀ + bias, which need not be stored.
struct RouteForward {
    const void* x = nullptr;       ///< [units, width] of x_format
    const void* weight = nullptr;  ///< stat [num_experts, width]
    const void* bias = nullptr;    ///< stat [num_experts], or null
    void* logits = nullptr;        ///< stat [units, num_experts]; may be null
    std::int64_t width = 0;
    NumberFormat x_format = NumberFormat::f32;
    RouterForward router;  ///< its own `logits` is not read
};

enum class ActivationKind : std::int32_t { swiglu, gelu, relu };
/// y = activation(x + bias); group g owns rows offsets[g] … offsets[g+1]−1 and bias[g]. x stays as it is.
struct ExpertActivationForward {
    const void* x = nullptr;                ///< [rows, inputs], inputs = 2·width for swiglu, else width
    const void* bias = nullptr;             ///< [num_groups, inputs], or null: none
    const std::int32_t* offsets = nullptr;  ///< [num_groups + 1], or null: one group
    void* y = nullptr;                      ///< [rows, width]
    std::int64_t rows = 0, width = 0, num_groups = 1;
    ActivationKind kind = ActivationKind::swiglu;
    NumberFormat format = NumberFormat::f32;
    bool operator==(const ExpertActivationForward&) const = default;
};
/// dx = the activation's gradient at x + bias; dbias[g] += Σ over its rows of dx, before it is rounded.
struct ExpertActivationBackward {
    const void *x = nullptr, *bias = nullptr, *dy = nullptr;
    const std::int32_t* offsets = nullptr;
    void* dx = nullptr;     ///< shape of x; may be x
    void* dbias = nullptr;  ///< stat [num_groups, inputs], +=; null without a bias
    std::int64_t rows = 0, width = 0, num_groups = 1;
    ActivationKind kind = ActivationKind::swiglu;
    NumberFormat format = NumberFormat::f32;
    bool operator==(const ExpertActivationBackward&) const = default;
};

/// sum = a + b; y = rms_norm of the sum as it is stored. `sum` may be a or b.
struct ResidualRmsNormForward {
    const void *a = nullptr, *b = nullptr;  ///< [rows, width]
    const void* weight = nullptr;           ///< [width], or null: ones
    void *sum = nullptr, *y = nullptr;      ///< [rows, width]
    void* inverse_rms = nullptr;            ///< stat [rows]
    std::int64_t rows = 0, width = 0;
    double epsilon = 1e-6;
    NumberFormat format = NumberFormat::f32;
    bool operator==(const ResidualRmsNormForward&) const = default;
};

/// cross_entropy_forward and _backward in place: the loss of each token, and its gradient where the
/// logits were.
struct CrossEntropyInPlace {
    void* logits = nullptr;                 ///< [num_tokens, vocab_size] → scale · (softmax − one-hot)
    const std::int32_t* targets = nullptr;  ///< [num_tokens]; −1: loss 0, zeros
    void* loss = nullptr;                   ///< stat [num_tokens]
    std::int64_t num_tokens = 0, vocab_size = 0;
    double scale = 1;
    NumberFormat format = NumberFormat::f32;
};

/// adamw on each of many tensors, of any formats, none of which overlap.
struct AdamWTensors {
    const AdamW* tensors = nullptr;  ///< host memory [num_tensors]
    std::int64_t num_tensors = 0;
};
/// sum[0] += Σ over all tensors of Σ gradient² (f64), in a fixed order.
struct GradientPart {
    const void* gradient = nullptr;  ///< stat [count]
    std::int64_t count = 0;
};
struct GradientNorms {
    const GradientPart* parts = nullptr;  ///< host memory [num_parts]
    std::int64_t num_parts = 0;
    double* sum = nullptr;  ///< [1] device memory, +=
    NumberFormat format = NumberFormat::f32;
};

/// Null pointers: this device lacks the kernel.
struct KernelSet {
    Status (*embedding_forward)(const EmbeddingForward*, Stream_*) = nullptr;
    Status (*embedding_backward)(const EmbeddingBackward*, Stream_*) = nullptr;
    Status (*rms_norm_forward)(const RmsNormForward*, Stream_*) = nullptr;
    Status (*rms_norm_backward)(const RmsNormBackward*, Stream_*) = nullptr;
    Status (*residual_add)(const ResidualAdd*, Stream_*) = nullptr;
    Status (*bias_forward)(const BiasForward*, Stream_*) = nullptr;
    Status (*bias_backward)(const BiasBackward*, Stream_*) = nullptr;
    Status (*rope_forward)(const Rope*, Stream_*) = nullptr;
    Status (*rope_backward)(const Rope*, Stream_*) = nullptr;
    Status (*swiglu_forward)(const ActivationForward*, Stream_*) = nullptr;
    Status (*swiglu_backward)(const ActivationBackward*, Stream_*) = nullptr;
    Status (*gelu_forward)(const ActivationForward*, Stream_*) = nullptr;
    Status (*gelu_backward)(const ActivationBackward*, Stream_*) = nullptr;
    Status (*relu_forward)(const ActivationForward*, Stream_*) = nullptr;
    Status (*relu_backward)(const ActivationBackward*, Stream_*) = nullptr;
    Status (*router_forward)(const RouterForward*, Stream_*) = nullptr;
    Status (*router_backward)(const RouterBackward*, Stream_*) = nullptr;
    Status (*document_pool)(const DocumentPoolMask*, Stream_*) = nullptr;
    Status (*permutation_map)(const PermutationMap*, Stream_*) = nullptr;
    Status (*permute_forward)(const PermuteForward*, Stream_*) = nullptr;
    Status (*permute_backward)(const PermuteBackward*, Stream_*) = nullptr;
    Status (*unpermute_forward)(const UnpermuteForward*, Stream_*) = nullptr;
    Status (*unpermute_backward)(const UnpermuteBackward*, Stream_*) = nullptr;
    Status (*attention_forward)(const AttentionForward*, Stream_*) = nullptr;
    Status (*attention_backward)(const AttentionBackward*, Stream_*) = nullptr;
    Status (*cross_entropy_forward)(const CrossEntropyForward*, Stream_*) = nullptr;
    Status (*cross_entropy_backward)(const CrossEntropyBackward*, Stream_*) = nullptr;
    Status (*adamw)(const AdamW*, Stream_*) = nullptr;
    Status (*gradient_norm)(const GradientNorm*, Stream_*) = nullptr;
    Status (*gemm)(const GemmCall*, Stream_*) = nullptr;
    Status (*grouped_gemm)(const GroupedGemmCall*, Stream_*) = nullptr;
    Status (*convert)(const Convert*, Stream_*) = nullptr;
    Status (*scale)(const Scale*, Stream_*) = nullptr;
    Status (*route_forward)(const RouteForward*, Stream_*) = nullptr;
    Status (*expert_activation_forward)(const ExpertActivationForward*, Stream_*) = nullptr;
    Status (*expert_activation_backward)(const ExpertActivationBackward*, Stream_*) = nullptr;
    Status (*residual_rms_norm_forward)(const ResidualRmsNormForward*, Stream_*) = nullptr;
    Status (*cross_entropy_in_place)(const CrossEntropyInPlace*, Stream_*) = nullptr;
    Status (*adamw_tensors)(const AdamWTensors*, Stream_*) = nullptr;
    Status (*gradient_norms)(const GradientNorms*, Stream_*) = nullptr;
};

/// f64 for f64, else f32.
constexpr NumberFormat stat_format(NumberFormat format) {
    return format == NumberFormat::f64 ? NumberFormat::f64 : NumberFormat::f32;
}

}  // namespace moeplan
