#include "core/text.hpp"
#include "planner/export/parts.hpp"

namespace moeplan {
namespace {

/// Flags, one a line, in a bash array.
struct Flags {
    std::string text;
    void add(const std::string& flag, const std::string& value = {}) {
        text += "  --" + flag + (value.empty() ? "" : " " + value) + "\n";
    }
    void add(const std::string& flag, long long value) { add(flag, std::to_string(value)); }
};

void add_attention(Flags& flags, const Attention& attention) {
    if (const auto* latent = std::get_if<LatentAttention>(&attention)) {
        flags.add("multi-latent-attention");
        flags.add("num-attention-heads", latent->num_attention_heads);
        if (latent->q_lora_rank > 0) flags.add("q-lora-rank", latent->q_lora_rank);
        flags.add("kv-lora-rank", latent->kv_lora_rank);
        flags.add("qk-head-dim", latent->nope_size);
        flags.add("qk-pos-emb-head-dim", latent->rope_size);
        flags.add("v-head-dim", latent->value_size);
        return;
    }
    const auto& grouped = std::get<GroupedQueryAttention>(attention);
    flags.add("num-attention-heads", grouped.num_attention_heads);
    if (grouped.num_kv_heads != grouped.num_attention_heads) {
        flags.add("group-query-attention");
        flags.add("num-query-groups", grouped.num_kv_heads);
    }
    flags.add("kv-channels", grouped.head_size);
    if (grouped.bias) flags.add("add-qkv-bias");
    if (grouped.qk_norm || grouped.qk_norm_full) flags.add("qk-layernorm");
}

/// "([0]*3+[1]*58)": runs of dense (0) and MoE (1) layers.
std::string layer_pattern(const ModelSpec& model) {
    std::string out;
    for (std::size_t i = 0; i < model.layers.size();) {
        const bool moe = std::holds_alternative<MoeFeedForward>(model.layers[i].feed_forward);
        std::size_t end = i;
        while (end < model.layers.size() &&
               std::holds_alternative<MoeFeedForward>(model.layers[end].feed_forward) == moe)
            ++end;
        out += (out.empty() ? "[" : "+[") + std::string(moe ? "1" : "0") + "]*" +
               std::to_string(end - i);
        i = end;
    }
    return "\"(" + out + ")\"";
}

void add_moe(Flags& flags, const ModelSpec& model, const StepCase& step, Exported& out) {
    const MoeFeedForward* moe = first_moe(model);
    if (!moe) return;
    flags.add("num-experts", moe->num_experts);
    flags.add("moe-router-topk", moe->top_k);
    flags.add("moe-ffn-hidden-size", moe->expert_hidden_size);
    if (moe->num_shared_experts > 0)
        flags.add("moe-shared-expert-intermediate-size",
                  static_cast<long long>(moe->num_shared_experts) * moe->shared_expert_hidden_size);
    if (num_moe_layers(model) != static_cast<int>(model.layers.size()))
        flags.add("moe-layer-freq", layer_pattern(model));
    flags.add("moe-router-load-balancing-type", moe->balance == BalanceScope::sequence
                                                    ? "seq_aux_loss"
                                                : moe->balance_coefficient > 0 ? "aux_loss"
                                                                               : "none");
    if (moe->balance == BalanceScope::global)
        out.notes.push_back(
            "balance over the global batch: Megatron-LM balances a micro-batch here");
    if (moe->balance_coefficient > 0)
        flags.add("moe-aux-loss-coeff", exact_text(moe->balance_coefficient));
    if (moe->z_loss_coefficient > 0)
        flags.add("moe-z-loss-coeff", exact_text(moe->z_loss_coefficient));
    if (moe->selection_bias) {
        flags.add("moe-router-score-function", "sigmoid");
        flags.add("moe-router-enable-expert-bias");
    }
    if (!moe->renormalise_gates && !moe->selection_bias) flags.add("moe-router-pre-softmax");
    if (moe->num_groups > 1) {
        flags.add("moe-router-num-groups", moe->num_groups);
        flags.add("moe-router-group-topk", moe->top_k_groups);
    }
    if (moe->routed_scale != 1)
        flags.add("moe-router-topk-scaling-factor", exact_text(moe->routed_scale));
    if (moe->capacity_factor)
        flags.add("moe-expert-capacity-factor", exact_text(*moe->capacity_factor));
    flags.add("moe-router-dtype", "fp32");
    flags.add("moe-grouped-gemm");
    flags.add("moe-permute-fusion");
    switch (step.schedule.dispatcher) {
        case Dispatcher::all_gather:
            flags.add("moe-token-dispatcher-type", "allgather");
            break;
        case Dispatcher::all_to_all:
            flags.add("moe-token-dispatcher-type", "alltoall");
            break;
        case Dispatcher::deduplicating:
            flags.add("moe-token-dispatcher-type", "flex");
            flags.add("moe-enable-deepep");
            break;
    }
}

void add_parallelism(Flags& flags, const StepCase& step, Exported& out) {
    const ParallelLayout& layout = step.layout;
    const StepSchedule& schedule = step.schedule;
    flags.add("tensor-model-parallel-size", layout.tensor_parallel_size);
    flags.add("pipeline-model-parallel-size", layout.pipeline_parallel_size);
    flags.add("context-parallel-size", layout.context_parallel_size);
    flags.add("expert-model-parallel-size", layout.expert_parallel_size);
    // Said even when 1: without the flag Megatron takes the tensor-parallel size.
    flags.add("expert-tensor-parallel-size", layout.expert_tensor_parallel_size);
    if (schedule.virtual_pipeline_size > 1)
        flags.add("num-virtual-stages-per-pipeline-rank", schedule.virtual_pipeline_size);
    if (schedule.sequence_parallel && layout.tensor_parallel_size > 1)
        flags.add("sequence-parallel");
    flags.add("micro-batch-size", schedule.micro_batch_size);
    flags.add("global-batch-size", global_batch(step));
    switch (schedule.sharding) {
        case Sharding::none:
            break;
        case Sharding::zero1:
            flags.add("use-distributed-optimizer");
            break;
        case Sharding::zero2:
        case Sharding::zero3:
            flags.add("use-megatron-fsdp");
            flags.add("data-parallel-sharding-strategy",
                      schedule.sharding == Sharding::zero2 ? "optim_grads" : "optim_grads_params");
            flags.add("use-distributed-optimizer");
            flags.add("no-gradient-accumulation-fusion");
            flags.add("ckpt-format", "fsdp_dtensor");
            break;
    }
    if (schedule.overlap.gradients) flags.add("overlap-grad-reduce");
    if (schedule.overlap.parameters && schedule.sharding != Sharding::none)
        flags.add("overlap-param-gather");
    if (schedule.overlap.experts) {
        flags.add("overlap-moe-expert-parallel-comm");
        if (layout.pipeline_parallel_size > 1 && schedule.virtual_pipeline_size == 1)
            out.notes.push_back(
                "Megatron-LM overlaps micro-batches of a pipeline only in its interleaved schedule: "
                "give --num-virtual-stages-per-pipeline-rank");
    } else if (schedule.overlap.shared_experts) {
        flags.add("moe-shared-expert-overlap");
    }
    if (schedule.recompute.full) {
        flags.add("recompute-granularity", "full");
        flags.add("recompute-method", "uniform");
        flags.add("recompute-num-layers", 1);
    } else if (!schedule.recompute.modules.empty()) {
        flags.add("recompute-granularity", "selective");
        std::string modules;
        for (const std::string& module : schedule.recompute.modules)
            modules += (modules.empty() ? "" : " ") + module;
        flags.add("recompute-modules", modules);
    }
    if (!schedule.stage_layers.empty())
        out.notes.push_back("uneven stages: give --pipeline-model-parallel-layout by hand");
    if (schedule.pipeline != Pipeline::one_f_one_b && schedule.pipeline != Pipeline::interleaved)
        out.notes.push_back("Megatron-LM runs 1F1B: schedule " +
                            std::string(name_of(schedule.pipeline)) + " is not one of its own");
}

void add_precision(Flags& flags, const StepSchedule& schedule) {
    switch (schedule.precision) {
        case Precision::fp32:
            break;
        case Precision::fp16:
            flags.add("fp16");
            break;
        case Precision::bf16:
            flags.add("bf16");
            break;
        case Precision::fp8:
            flags.add("bf16");
            flags.add("fp8-format", "hybrid");
            break;
        case Precision::mxfp8:
            flags.add("bf16");
            flags.add("fp8-format", "e4m3");
            flags.add("fp8-recipe", "mxfp8");
            break;
        case Precision::nvfp4:
            flags.add("bf16");
            flags.add("fp4-format", "e2m1");
            flags.add("fp4-recipe", "nvfp4");
            break;
    }
    if (schedule.main_gradients == NumberFormat::bf16) flags.add("grad-reduce-in-bf16");
}

}  // namespace

Exported to_megatron(const StepCase& step) {
    Exported out;
    const ModelSpec& model = step.model;
    out.refused = foreign_layers(model, "Megatron-LM");
    if (!out.refused.empty() || model.layers.empty()) return out;

    Flags flags;
    flags.add("use-mcore-models");
    flags.add("num-layers", static_cast<long long>(model.layers.size()));
    flags.add("hidden-size", model.hidden_size);
    long long dense = 0;
    Activation activation = Activation::swiglu;
    for (const LayerSpec& layer : model.layers) {
        if (const auto* ffn = std::get_if<DenseFeedForward>(&layer.feed_forward)) {
            dense = ffn->dense_hidden_size;
            activation = ffn->activation;
        } else if (dense == 0) {
            activation = std::get<MoeFeedForward>(layer.feed_forward).activation;
        }
    }
    const MoeFeedForward* moe = first_moe(model);
    flags.add("ffn-hidden-size", dense > 0 ? dense : moe ? moe->expert_hidden_size : 0);
    if (activation == Activation::swiglu) flags.add("swiglu");
    if (activation == Activation::relu) {
        out.refused = "Megatron-LM has no flag for plain ReLU";
        return out;
    }
    add_attention(flags, model.layers.front().attention);
    if (model.norm == Norm::rms) flags.add("normalization", "RMSNorm");
    flags.add("disable-bias-linear");
    flags.add("position-embedding-type", "rope");
    flags.add("rotary-base", static_cast<long long>(model.rope_theta));
    if (!model.tied_embeddings) flags.add("untie-embeddings-and-output-weights");
    flags.add("vocab-size", model.vocab_size);
    flags.add("seq-length", step.schedule.sequence_length);
    flags.add("max-position-embeddings", step.schedule.sequence_length);
    if (model.num_mtp_layers > 0) flags.add("mtp-num-layers", model.num_mtp_layers);
    const std::string shape = std::move(flags.text);
    flags.text.clear();
    add_moe(flags, model, step, out);
    const std::string experts = std::move(flags.text);
    flags.text.clear();
    add_parallelism(flags, step, out);
    add_precision(flags, step.schedule);
    for (const LayerSpec& layer : model.layers)
        if (layer.window) {
            out.notes.push_back("sliding-window attention: --window-size is for all layers alike");
            break;
        }
    out.notes.push_back(
        "data, tokenizer, learning rate and checkpoints are left to the run: $DATA_ARGS");

    out.text = "#!/bin/bash\n" + origin(step, "#");
    for (const std::string& note : out.notes) out.text += "# " + note + "\n";
    out.text += "set -eu\nMODEL_ARGS=(\n" + shape + ")\n";
    if (!experts.empty()) out.text += "MOE_ARGS=(\n" + experts + ")\n";
    out.text += "PARALLEL_ARGS=(\n" + flags.text + ")\n";
    out.text += "torchrun --nnodes \"${NNODES:-" + std::to_string(step.cluster.num_nodes) +
                "}\" --nproc-per-node " + std::to_string(step.cluster.gpus_per_node) +
                " \\\n  --rdzv-backend c10d --rdzv-endpoint "
                "\"${MASTER_ADDR:-localhost}:${MASTER_PORT:-29500}\" "
                "\\\n  pretrain_gpt.py \"${MODEL_ARGS[@]}\" " +
                (experts.empty() ? "" : "\"${MOE_ARGS[@]}\" ") +
                "\"${PARALLEL_ARGS[@]}\" ${DATA_ARGS:-} \"$@\"\n";
    return out;
}

}  // namespace moeplan
