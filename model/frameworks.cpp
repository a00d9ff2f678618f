#include "model/frameworks.hpp"

#include <map>

namespace moeplan {
namespace {

const std::map<std::string, FrameworkRules, std::less<>>& table() {
    static const std::map<std::string, FrameworkRules, std::less<>> rules = [] {
        std::map<std::string, FrameworkRules, std::less<>> out;
        // megatron/core/parallel_state.py, transformer_config.py; Bridge, NeMo, slime, verl and
        // swift build on it.
        for (const char* name : {"megatron-core", "megatron-bridge", "megatron-lm", "megatron",
                                 "nemo", "slime", "pai-megatron-patch", "ms-swift"})
            out[name] = {.name = name,
                         .etp_is_tp = true,
                         .even_stages = true,
                         .interleaved_needs_multiple = true,
                         .moe_needs_sequence_parallel = true,
                         .gates_in_activation = true};
        // The optimizer is not sharded unless a ZeRO stage is configured; expert groups are cut
        // from the data parallel ranks (deepspeed/utils/groups.py).
        out["deepspeed"] = {.name = "deepspeed",
                            .pads_vocabulary = false,
                            .expert_group_in_data = true,
                            .refuses_sharded_pipeline = true,
                            .sharding = Sharding::none};
        // FSDP2 by default; wq, wk, wv are split by whole heads; sequence parallel with TP
        // (torchtitan/models/*/parallelize.py).
        out["torchtitan"] = {.name = "torchtitan",
                             .kv_heads_divide = true,
                             .pads_vocabulary = false,
                             .sequence_parallel_with_tp = true,
                             .fp32_weights_sharded = true,
                             .bytes_per_logit = 10,
                             .sharding = Sharding::zero3};
        out["olmo-core"] = {.name = "olmo-core",
                            .kv_heads_divide = true,
                            .pads_vocabulary = false,
                            .fp32_weights_sharded = true,
                            .bytes_per_logit = 10,
                            .sharding = Sharding::zero3};
        out["prime-rl"] = {.name = "prime-rl",
                           .kv_heads_divide = true,
                           .pads_vocabulary = false,
                           .fp32_weights_sharded = true,
                           .bytes_per_logit = 10,
                           .sharding = Sharding::zero3};
        // Composer wraps the model in PyTorch FSDP: fp32 shards, 16-bit while gathered
        // (llmfoundry/models/utils, composer/distributed). Its loss is FlashAttention's fused one
        // unless told otherwise (`loss_fn`, llmfoundry/models/mpt): logits and their gradient.
        out["llm-foundry"] = {.name = "llm-foundry",
                              .pads_vocabulary = false,
                              .fp32_weights_sharded = true,
                              .bytes_per_logit = 4,
                              .sharding = Sharding::zero3};
        // FSDP2 and DTensor over Hugging Face models (nemo_automodel/components/distributed).
        out["nemo-automodel"] = {.name = "nemo-automodel",
                                 .kv_heads_divide = true,
                                 .pads_vocabulary = false,
                                 .sequence_parallel_with_tp = true,
                                 .fp32_weights_sharded = true,
                                 .bytes_per_logit = 10,
                                 .sharding = Sharding::zero3};
        // Megatron's layers under DeepSpeed's engine; ZeRO only where it is configured.
        out["megatron-deepspeed"] = {.name = "megatron-deepspeed",
                                     .even_stages = true,
                                     .expert_group_in_data = true,
                                     .refuses_sharded_pipeline = true,
                                     .sharding = Sharding::none};
        // GPT of OneFlow's benchmarks: Megatron's splits by its own compiler, states on every
        // replica.
        out["oneflow"] = {.name = "oneflow", .even_stages = true, .sharding = Sharding::none};
        out["colossalai"] = {.name = "colossalai"};
        out["vllm"] = {.name = "vllm", .experts_divide = false, .sharding = Sharding::none};
        out["maxtext"] = {.name = "maxtext",
                          .pads_vocabulary = false,
                          .fp32_weights_sharded = true,
                          .bytes_per_logit = 10,
                          .sharding = Sharding::zero3};
        // Our own trainer (docs/training.md): every replica updates all it holds.
        out["moeplan"] = {.name = "moeplan",
                          .kv_heads_divide = true,
                          .pads_vocabulary = false,
                          .sharding = Sharding::none};
        return out;
    }();
    return rules;
}

}  // namespace

bool is_known_framework(std::string_view framework) {
    return table().find(framework) != table().end();
}

const FrameworkRules& framework_rules(std::string_view framework) {
    static const FrameworkRules none;
    const auto found = table().find(framework);
    return found == table().end() ? none : found->second;
}

}  // namespace moeplan
