/// Bytes of a training step, by class (docs/memory.md has every equation with its source).
#include "model/memory.hpp"

#include <algorithm>
#include <cmath>

#include "model/check.hpp"
#include "model/frameworks.hpp"
#include "model/op_counts.hpp"
#include "model/stage_layers.hpp"
#include "model/trainer_memory.hpp"

namespace moeplan {
namespace {

/// Parameters of one rank, by the group that shares their optimizer state.
struct RankParameters {
    double dense = 0, expert = 0;
    RankParameters& operator+=(const RankParameters& other) {
        dense += other.dense;
        expert += other.expert;
        return *this;
    }
};

double query_part(const ModelSpec& model, const Attention& attention, double tp) {
    const double d = model.hidden_size;
    if (const auto* mla = std::get_if<LatentAttention>(&attention)) {
        // The down projections and their norms are whole on every tensor rank; what goes by heads
        // is split.
        const double heads = mla->num_attention_heads, qk = mla->nope_size + mla->rope_size;
        const double whole = d * (mla->kv_lora_rank + mla->rope_size) + mla->kv_lora_rank +
                             (mla->q_lora_rank > 0 ? d * mla->q_lora_rank + mla->q_lora_rank : 0);
        const double split = (mla->q_lora_rank > 0 ? mla->q_lora_rank : d) * heads * qk +
                             mla->kv_lora_rank * heads * (mla->nope_size + mla->value_size) +
                             heads * mla->value_size * d;
        return whole + split / tp;
    }
    const auto& gqa = std::get<GroupedQueryAttention>(attention);
    const double query = static_cast<double>(gqa.num_attention_heads) * gqa.head_size,
                 key = static_cast<double>(gqa.num_kv_heads) * gqa.head_size;
    const double key_split =
        std::min<double>(tp, gqa.num_kv_heads);  // beyond that, ranks hold copies
    double out = 2 * d * query / tp + 2 * d * key / key_split;
    if (gqa.bias) out += query / tp + 2 * key / key_split;
    if (gqa.output_bias) out += d;
    if (gqa.qk_norm_full)
        out += query / tp + key / key_split;
    else if (gqa.qk_norm)
        out += 2.0 * gqa.head_size;
    if (gqa.sinks) out += gqa.num_attention_heads / tp;
    return out;
}

RankParameters layer_on_rank(const ModelSpec& model, const LayerSpec& layer,
                             const LayerParameters& whole, const ParallelLayout& layout) {
    const double tp = layout.tensor_parallel_size;
    RankParameters out;
    out.dense =
        query_part(model, layer.attention, tp) +
        static_cast<double>(whole.dense + whole.shared_experts + whole.mh_projections) / tp +
        static_cast<double>(whole.router + whole.norms);
    if (const auto* moe = std::get_if<MoeFeedForward>(&layer.feed_forward))
        out.expert =
            std::ceil(static_cast<double>(moe->num_experts) / layout.expert_parallel_size) *
            static_cast<double>(whole.one_expert) / layout.expert_tensor_parallel_size;
    return out;
}

}  // namespace

LayerActivations layer_activations(const ModelSpec& model, const LayerSpec& layer,
                                   const ParallelLayout& layout, const StepSchedule& schedule,
                                   double hot_rank_load) {
    const FrameworkRules& rules = framework_rules(schedule.software.framework);
    const double d = model.hidden_size, tp = layout.tensor_parallel_size;
    const double a = schedule.precision == Precision::fp32 ? 4 : 2;
    // What a GEMM keeps of its input for the weight gradient, by recipe.
    const bool fp8 = schedule.precision == Precision::fp8 || schedule.precision == Precision::mxfp8;
    const double g = fp8 ? 1
                     : schedule.precision == Precision::nvfp4
                         ? 0.5625
                         : a;  // 4 bits and an 8-bit scale for 16 of them
    const double tokens = static_cast<double>(schedule.micro_batch_size) *
                          schedule.sequence_length / layout.context_parallel_size;
    const double split =
        schedule.sequence_parallel ? tokens / tp : tokens;  // outside the tensor parallel parts
    const auto recomputed = [&](const char* module) {
        return schedule.recompute.modules.count(module) > 0;
    };
    const double normed = recomputed("layernorm") ? 0 : split * d * g;

    LayerActivations out;
    out.input = Bytes{split * d * a};
    double kept = split * d * a + normed;  // residual stream into the first norm; its output
    if (const auto* mla = std::get_if<LatentAttention>(&layer.attention)) {
        const double heads = mla->num_attention_heads / tp, qk = mla->nope_size + mla->rope_size;
        kept += split * (mla->q_lora_rank * (a + g) + mla->kv_lora_rank * (a + g) +
                         mla->rope_size * a);  // latents before and after their norms
        if (!recomputed("mla_up_proj")) kept += tokens * heads * (2 * qk + mla->value_size) * a;
        kept += tokens * heads * mla->value_size * (g == a ? a : a + g) + tokens * heads * 4;
    } else {
        const auto& gqa = std::get<GroupedQueryAttention>(layer.attention);
        const double query = gqa.num_attention_heads * static_cast<double>(gqa.head_size) / tp,
                     key = gqa.num_kv_heads * static_cast<double>(gqa.head_size) /
                           std::min<double>(tp, gqa.num_kv_heads);
        kept += tokens * (query + 2 * key) * a;  // q, k, v
        if ((gqa.qk_norm || gqa.qk_norm_full) && !recomputed("layernorm"))
            kept += tokens * (query + key) * a;
        kept += tokens * query *
                (g == a ? a : a + g);  // the output, for flash attention and for the projection
        kept += tokens * gqa.num_attention_heads / tp * 4;  // logsumexp
    }
    kept += split * d * a + normed;  // residual stream into the second norm; its output
    if (const auto* dense = std::get_if<DenseFeedForward>(&layer.feed_forward)) {
        const double gated = dense->activation == Activation::swiglu ? 2 : 1,
                     inner = dense->dense_hidden_size / tp;
        if (!recomputed("mlp")) kept += tokens * inner * (gated * a + g);
    } else {
        const auto& moe = std::get<MoeFeedForward>(layer.feed_forward);
        const double heads = moe.num_moe_heads, width = d / heads,
                     gated = moe.activation == Activation::swiglu ? 2 : 1;
        const double etp = layout.expert_tensor_parallel_size;
        const double load = moe.capacity_factor               ? *moe.capacity_factor
                            : layout.expert_parallel_size > 1 ? std::max(1.0, hot_rank_load)
                                                              : 1.0;
        // Rows (routed units × choices) on this rank: each rank of the expert group brings its own
        // tokens, each ETP rank holds all rows of its experts.
        const double sent = split * heads * moe.top_k, rows = sent * etp * load;
        double inside = 0;
        inside += split * heads * moe.num_experts * 2 * 4;  // logits and probabilities, fp32
        if (moe.num_moe_heads > 1)
            inside += split * d * a + split * d * g;  // after the head projection; before the merge
        inside += rows * width * g;  // permuted copies of the hidden state: the experts' input
        const double inner = moe.expert_hidden_size / etp;
        inside += rows * inner * gated * a;
        if (!recomputed("moe_act")) inside += rows * inner * g;
        if (moe.sub_norm) inside += rows * inner * a;
        if (!rules.gates_in_activation)
            inside += rows * width * a;  // outputs, for the gates' gradient
        if (moe.num_shared_experts > 0 && !recomputed("shared_experts"))
            inside += tokens * moe.num_shared_experts * moe.shared_expert_hidden_size / tp *
                      (gated * a + g);
        if (!recomputed("moe")) kept += inside;
        if (layout.expert_parallel_size * etp > 1) {
            // One exchange at a time: what leaves and what arrives. A deduplicating dispatcher
            // sends from the hidden states themselves.
            const double leaving =
                schedule.dispatcher == Dispatcher::deduplicating ? split * d : sent * width;
            out.dispatch = Bytes{(leaving + rows * width) * a};
        }
        out.inside = Bytes{inside};
    }
    out.kept = Bytes{schedule.recompute.full ? split * d * a : kept};
    out.all = Bytes{kept};
    return out;
}

std::vector<std::vector<int>> passes_in_flight(const ParallelLayout& layout,
                                               const StepSchedule& schedule) {
    const int pp = layout.pipeline_parallel_size, vpp = num_chunks(layout, schedule),
              m = schedule.num_micro_batches;
    std::vector<std::vector<int>> out(static_cast<std::size_t>(pp),
                                      std::vector<int>(static_cast<std::size_t>(vpp), 0));
    for (int rank = 0; rank < pp; ++rank) {
        auto& chunks = out[static_cast<std::size_t>(rank)];
        if (vpp == 1) {
            int passes = m;  // gpipe: all of them
            if (schedule.pipeline == Pipeline::one_f_one_b ||
                schedule.pipeline == Pipeline::interleaved)
                passes = std::min(m, pp - rank);
            if (schedule.pipeline == Pipeline::zero_bubble) passes = std::min(m, pp);
            chunks[0] = passes;
            continue;
        }
        if (schedule.pipeline == Pipeline::dual_pipe) {
            // p + 1 of both directions
            chunks[0] = std::min(m - m / 2, pp - rank);
            chunks[1] = std::min(m / 2, rank + 1);
            continue;
        }
        if (schedule.pipeline == Pipeline::zero_bubble_v && vpp == 2) {
            // 2p passes of half a stage, on every stage: fewer of the chunk that lies further on
            chunks[0] = std::min(m, 2 * pp - 1 - rank);
            chunks[1] = std::min(m, rank + 1);
            continue;
        }
        // Warm-up of the interleaved schedule: pp micro-batches of chunk 0, pp of chunk 1 …
        // (Narayanan et al. 2021, §2.2).
        const long long all = static_cast<long long>(m) * vpp;
        const long long passes = std::min<long long>(
            all, 2LL * (pp - rank - 1) + static_cast<long long>(vpp - 1) * pp + 1);
        for (int c = 0; c < vpp; ++c) {
            const long long round = static_cast<long long>(pp) * vpp, full = passes / round,
                            rest = passes % round;
            chunks[static_cast<std::size_t>(c)] = static_cast<int>(std::min<long long>(
                m,
                full * pp + std::clamp<long long>(rest - static_cast<long long>(c) * pp, 0, pp)));
        }
    }
    return out;
}

std::vector<StageMemory> memory_by_stage(const ModelSpec& model, const ParallelLayout& layout,
                                         const StepSchedule& schedule, double hot_rank_load,
                                         double expert_copies) {
    const FrameworkRules& rules = framework_rules(schedule.software.framework);
    if (rules.name == "moeplan")
        return trainer_memory_by_stage(model, layout, schedule, hot_rank_load);
    const int pp = layout.pipeline_parallel_size;
    const double tp = layout.tensor_parallel_size, d = model.hidden_size;
    const bool fp32 = schedule.precision == Precision::fp32;
    const double dp = static_cast<double>(layout.data_parallel_size) * layout.context_parallel_size,
                 edp = expert_data_parallel_size(layout);
    const bool whole_weights = schedule.sharding != Sharding::zero3;
    const bool whole_gradients =
        schedule.sharding == Sharding::none || schedule.sharding == Sharding::zero1;
    const bool whole_optimizer = schedule.sharding == Sharding::none;

    const auto chunks = stage_chunks(static_cast<int>(model.layers.size()), layout, schedule);
    const auto in_flight = passes_in_flight(layout, schedule);
    const int last = schedule.pipeline == Pipeline::dual_pipe
                         ? pp - 1
                         : pp * std::max(1, schedule.virtual_pipeline_size) - 1;
    const double norm = model.norm == Norm::layer ? 2 * d : d;
    const double vocabulary = std::ceil(model.vocab_size / tp);
    const double a = fp32 ? 4 : 2;
    const double tokens = static_cast<double>(schedule.micro_batch_size) *
                          schedule.sequence_length / layout.context_parallel_size;
    const double split = schedule.sequence_parallel ? tokens / tp : tokens;

    const auto layer_cost = [&](const LayerSpec& layer, const LayerParameters& whole) {
        RankParameters one = layer_on_rank(model, layer, whole, layout);
        one.expert *= expert_copies;
        return one;
    };

    std::vector<StageMemory> out;
    for (int stage = 0; stage < pp; ++stage) {
        StageMemory memory;
        memory.stage = stage;
        memory.rank = stage * layout.tensor_parallel_size * layout.context_parallel_size *
                      layout.data_parallel_size;
        RankParameters held, largest;  // of the stage; of its largest layer
        Bytes working, dispatch;       // what one layer needs while it is recomputed; its exchange
        const auto s = static_cast<std::size_t>(stage);
        bool has_table = false;
        for (std::size_t c = 0; c < chunks[s].size(); ++c)
            has_table = has_table || virtual_stage(schedule.pipeline, pp, stage,
                                                   static_cast<int>(c)) == 0;
        for (std::size_t c = 0; c < chunks[s].size(); ++c) {
            const int part = virtual_stage(schedule.pipeline, pp, stage, static_cast<int>(c));
                for (int i = chunks[s][c].first; i < chunks[s][c].first + chunks[s][c].count; ++i) {
                    const LayerSpec& layer = model.layers[static_cast<std::size_t>(i)];
                    const RankParameters one = layer_cost(layer, layer_parameters(model, layer));
                    held += one;
                    if (one.dense + one.expert > largest.dense + largest.expert) largest = one;
                    const LayerActivations activations =
                        layer_activations(model, layer, layout, schedule, hot_rank_load);
                    memory.activations +=
                        activations.kept *
                        static_cast<double>(in_flight[s][std::min(c, in_flight[s].size() - 1)]);
                    if (schedule.recompute.full)
                        working = std::max(working, activations.all);
                    else if (schedule.recompute.modules.count("moe"))
                        working = std::max(working, activations.inside);
                    dispatch = std::max(dispatch, activations.dispatch);
                }
            if (part == 0)
                held.dense +=
                    (vocabulary + (model.learned_positions ? model.max_sequence_length : 0)) * d;
            if (part == last) {
                held.dense += norm;
                // tied: a last stage that has not the first layers too has a copy of the table
                if (!model.tied_embeddings || !has_table) held.dense += vocabulary * d;
                double heads = 1;
                if (model.num_mtp_layers > 0) {
                    LayerSpec layer = model.layers.back();
                    RankParameters one = layer_cost(layer, layer_parameters(model, layer));
                    one.dense += 2 * d * d / tp + 3 * norm;
                    const LayerActivations activations =
                        layer_activations(model, layer, layout, schedule, hot_rank_load);
                    for (int i = 0; i < model.num_mtp_layers; ++i) {
                        held += one;
                        memory.activations += activations.kept;
                    }
                    heads += model.num_mtp_layers;
                    if (!has_table) held.dense += vocabulary * d;  // MTP embeds the next tokens
                }
                // Logits of one micro-batch: in the training format, and in fp32 for the loss and
                // its gradient; input and output of the last norm.
                memory.activations +=
                    Bytes{heads * (tokens * vocabulary * (fp32 ? 8 : rules.bytes_per_logit) +
                                   2 * split * d * a)};
            }
        }
        memory.activations += working;
        memory.dispatch = dispatch;

        const double weight = rules.fp32_weights_sharded && !whole_weights ? 4 : a;
        const double gradient = size_of(fp32 ? NumberFormat::f32 : schedule.main_gradients).value;
        const double states = fp32 || (rules.fp32_weights_sharded && !whole_weights)
                                  ? 8
                                  : 12;  // master weight, first and second moment
        const auto sum = [&](double bytes, bool whole) {
            return Bytes{bytes *
                         (whole ? held.dense + held.expert : held.dense / dp + held.expert / edp)};
        };
        memory.weights = sum(weight, whole_weights);
        memory.gradients = sum(gradient, whole_gradients);
        memory.optimizer = sum(states, whole_optimizer);
        const double group = std::max(dp, edp);
        if (!whole_weights && group > 1) {
            // FSDP: the layer at work and the next one gathered, and the first one's gradient
            // before it is scattered.
            const double one = (dp > 1 ? largest.dense : 0) + (edp > 1 ? largest.expert : 0);
            memory.other += Bytes{one * a * 3};
        } else if (!whole_gradients && group > 1) {
            memory.other += Bytes{((dp > 1 ? largest.dense : 0) + (edp > 1 ? largest.expert : 0)) *
                                  a};  // zero2: one layer's gradient
        }
        out.push_back(memory);
    }
    return out;
}

}  // namespace moeplan
