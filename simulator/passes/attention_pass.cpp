#include "simulator/passes/attention_pass.hpp"

#include <algorithm>

#include "simulator/overlap.hpp"
#include "simulator/passes/tensor_parallel.hpp"

namespace moeplan {
namespace {

/// Bytes of a score that attention with scores in memory reads and writes beside its products:
/// scale, mask, soft-max, dropout; forward and backward.
constexpr double kScoreBytes = 9, kScoreGradientBytes = 13;

/// Products of an attention layer, sharded over heads.
struct AttentionSizes {
    std::int64_t query_heads = 0, kv_heads = 0, head = 0, rope_items = 0, norm_items = 0,
                 output_width = 0;
    std::vector<std::pair<std::int64_t, std::int64_t>>
        inputs;                    ///< (n, k) of the products before the core
    std::int64_t latent_norm = 0;  ///< RMSNorm width on the compressed vectors, not sharded
    double kv_width = 0;           ///< of keys and values that context parallelism gathers

    /// So many items of every token, in rows of one head.
    std::int64_t head_rows(std::int64_t tokens, std::int64_t items) const {
        return tokens * items / std::max<std::int64_t>(1, head);
    }
};

/// @param fused   one product makes queries, keys and values
/// @param rotary  else positions are learned, and nothing is rotated
AttentionSizes sizes_of(const GroupedQueryAttention& gqa, std::int64_t hidden, std::int64_t tp,
                        bool fused, bool rotary) {
    AttentionSizes out;
    out.query_heads = std::max<std::int64_t>(1, gqa.num_attention_heads / tp);
    out.kv_heads = std::max<std::int64_t>(1, gqa.num_kv_heads / tp);
    out.head = gqa.head_size;
    if (fused)
        out.inputs = {{(out.query_heads + 2 * out.kv_heads) * gqa.head_size, hidden}};
    else
        out.inputs = {{out.query_heads * gqa.head_size, hidden},
                      {out.kv_heads * gqa.head_size, hidden},
                      {out.kv_heads * gqa.head_size, hidden}};
    const std::int64_t items = (out.query_heads + out.kv_heads) * gqa.head_size;
    if (rotary) out.rope_items = items;
    if (gqa.qk_norm) out.norm_items = items;
    out.output_width = out.query_heads * gqa.head_size;
    out.kv_width = 2.0 * static_cast<double>(out.kv_heads * gqa.head_size);
    return out;
}

AttentionSizes sizes_of(const LatentAttention& mla, std::int64_t hidden, std::int64_t tp) {
    AttentionSizes out;
    out.query_heads = out.kv_heads = std::max<std::int64_t>(1, mla.num_attention_heads / tp);
    const std::int64_t query = mla.nope_size + mla.rope_size;
    out.head = (query + mla.value_size) /
               2;  // the core multiplies s × query and s × value: their mean has the same work
    if (mla.q_lora_rank > 0) {
        out.inputs = {{mla.q_lora_rank, hidden}, {out.query_heads * query, mla.q_lora_rank}};
        out.latent_norm += mla.q_lora_rank;
    } else {
        out.inputs = {{out.query_heads * query, hidden}};
    }
    out.inputs.push_back({mla.kv_lora_rank + mla.rope_size, hidden});
    out.inputs.push_back({out.query_heads * (mla.nope_size + mla.value_size), mla.kv_lora_rank});
    out.latent_norm += mla.kv_lora_rank;
    out.rope_items = out.query_heads * mla.rope_size + mla.rope_size;
    out.output_width = out.query_heads * mla.value_size;
    out.kv_width = static_cast<double>(mla.kv_lora_rank + mla.rope_size);
    return out;
}

AttentionSizes sizes_of(const StepCase& step, const Attention& attention) {
    const std::int64_t hidden = step.model.hidden_size, tp = step.layout.tensor_parallel_size;
    if (const auto* gqa = std::get_if<GroupedQueryAttention>(&attention))
        return sizes_of(*gqa, hidden, tp, !is_own_trainer(step), !step.model.learned_positions);
    return sizes_of(std::get<LatentAttention>(attention), hidden, tp);
}

AttentionShape core_shape(const PassBuilder& pass, const AttentionSizes& a,
                          const LayerSpec& layer) {
    return {pass.shapes.sequences,
            pass.step.schedule.sequence_length,
            a.query_heads,
            a.kv_heads,
            a.head,
            layer.window};
}

/// Of the sequence that this rank has (context parallelism).
double sequence_share(const StepCase& step) {
    return 1.0 / static_cast<double>(step.layout.context_parallel_size);
}

/// softmax(q·kᵀ)·v of all heads, or its gradients.
void attention_core(PassBuilder& pass, const AttentionShape& shape, bool forward) {
    const double share = sequence_share(pass.step);
    if (pass.software.fused_attention) {
        pass.add({forward ? "attention_forward" : "attention_backward", shape, share});
        return;
    }
    // every score is made, the causal half thrown away: batched products of all heads
    const std::int64_t s = shape.sequence, rows = shape.batch * shape.num_heads * s;
    const auto scores = [&](double bytes) {
        pass.add({"copy",
                  Streamed{Bytes{bytes * static_cast<double>(rows) * static_cast<double>(s)}, s},
                  share});
    };
    const auto products = [&](int score_sized, int value_sized) {
        for (int i = 0; i < score_sized; ++i)
            pass.add({"gemm", Gemm{rows, s, shape.head_size}, share});
        for (int i = 0; i < value_sized; ++i)
            pass.add({"gemm", Gemm{rows, shape.head_size, s}, share});
    };
    products(1, forward ? 1 : 3);
    scores(forward ? kScoreBytes : kScoreGradientBytes);
}

/// Context parallelism: keys and values of the other ranks, or the sums of their gradients.
void exchange_keys_and_values(PassBuilder& pass, const AttentionSizes& a, bool forward) {
    const std::int64_t cp = pass.step.layout.context_parallel_size;
    if (cp == 1) return;
    const double bytes =
        static_cast<double>(pass.shapes.tokens * cp) * a.kv_width * pass.shapes.element.value;
    if (forward)
        pass.beside(Collective::all_gather, Group::context, bytes, Stream::context,
                    Part::context_comm, true);
    else
        pass.beside(Collective::reduce_scatter, Group::context, bytes * 2, Stream::context,
                    Part::context_comm, true);
}

/// Modules of attention that selective recomputation rebuilds: the core, and what the compressed
/// vectors are projected up to.
void recompute_modules(PassBuilder& pass, const AttentionSizes& a, const AttentionShape& shape,
                       BackwardPart which) {
    const Recompute& recompute = pass.step.schedule.recompute;
    if (recompute.full) return;
    if (recompute.modules.contains("core_attn")) {
        pass.phase = Phase::recompute;
        pass.alone();
        attention_core(pass, shape, true);
        pass.in(Module::attention, false, share_of(which));
        pass.phase = Phase::backward;
    }
    if (recompute.modules.contains("mla_up_proj") && a.inputs.size() > 1) {
        const std::int64_t T = pass.shapes.tokens;
        pass.alone();
        for (std::size_t i = 1; i < a.inputs.size(); i += 2)
            pass.gemm(T, a.inputs[i].first, a.inputs[i].second);
        pass.elementwise("rope_forward", a.head_rows(T, a.rope_items), a.head);
        pass.in(Module::attention, false, share_of(which));
    }
}

}  // namespace

void attention_forward(PassBuilder& pass, const LayerSpec& layer, Phase phase) {
    pass.phase = phase;
    const StepCase& step = pass.step;
    const std::int64_t T = pass.shapes.tokens;
    const AttentionSizes a = sizes_of(step, layer.attention);
    pass.name("attention");
    pass.latent(std::holds_alternative<LatentAttention>(layer.attention));
    pass.in(Module::attention, true);
    pass.elementwise("rms_norm_forward", pass.shapes.split_tokens, step.model.hidden_size);
    gather_sequence(pass);
    pass.name("attention");
    for (const auto& [n, k] : a.inputs) pass.gemm(T, n, k);
    pass.join();
    pass.name("attention");
    pass.elementwise("rms_norm_forward", a.head_rows(T, a.norm_items), a.head);
    pass.elementwise("rms_norm_forward", T, a.latent_norm);
    pass.elementwise("rope_forward", a.head_rows(T, a.rope_items), a.head);
    if (!is_own_trainer(step))  // queries, keys and values out of one product
        pass.elementwise("copy", T, (a.query_heads + a.kv_heads) * a.head);
    exchange_keys_and_values(pass, a, true);
    pass.name("attention");
    attention_core(pass, core_shape(pass, a, layer), true);
    if (step.layout.context_parallel_size > 1) pass.join();
    row_product(pass, a.output_width, "attention");
}

void attention_backward(PassBuilder& pass, const LayerSpec& layer, BackwardPart which) {
    pass.phase = Phase::backward;
    const StepCase& step = pass.step;
    const std::int64_t T = pass.shapes.tokens;
    const AttentionSizes a = sizes_of(step, layer.attention);
    const bool input = which != BackwardPart::weight;
    pass.name("attention backward");
    pass.latent(std::holds_alternative<LatentAttention>(layer.attention));
    pass.in(Module::attention, false, share_of(which));
    if (input) gather_sequence(pass);
    pass.name("attention backward");
    pass.gemm_backward(T, step.model.hidden_size, a.output_width, which);
    pass.join();
    pass.name("attention backward");
    if (input) {
        const AttentionShape shape = core_shape(pass, a, layer);
        recompute_modules(pass, a, shape, which);
        exchange_keys_and_values(pass, a, false);
        pass.name("attention backward");
        attention_core(pass, shape, false);
        if (step.layout.context_parallel_size > 1) pass.join();
        pass.name("attention backward");
        if (!is_own_trainer(step))
            pass.elementwise("copy", T, (a.query_heads + a.kv_heads) * a.head);
        pass.elementwise("rope_backward", a.head_rows(T, a.rope_items), a.head);
        pass.elementwise("rms_norm_backward", a.head_rows(T, a.norm_items), a.head);
        pass.elementwise("rms_norm_backward", T, a.latent_norm);
    }
    column_gradients(pass, a.inputs, which, "attention backward");
    if (!input) return;
    pass.name("attention backward");
    if (step.schedule.recompute.modules.contains("layernorm"))
        pass.elementwise("rms_norm_forward", 2 * pass.shapes.split_tokens, step.model.hidden_size);
    norm_backward(pass);
}

}  // namespace moeplan
