#pragma once
/// What training software takes for granted and what it refuses. Named by the user; nothing here is
/// guessed from a layout.

#include <string>
#include <string_view>

#include "model/step_schedule.hpp"

namespace moeplan {

struct FrameworkRules {
    std::string name;
    bool etp_is_tp = false;    ///< an unset expert tensor size is the tensor size
                               ///< (megatron/core/parallel_state.py)
    bool even_stages = false;  ///< refuses layers % (pp · vpp) ≠ 0 without an explicit split
    bool kv_heads_divide =
        false;  ///< needs kv heads % tp = 0; otherwise tp % kv heads = 0 is served by copies
    bool experts_divide = true;   ///< needs experts % ep = 0
    bool pads_vocabulary = true;  ///< vocabularies that tp does not divide are padded
    bool expert_group_in_data =
        false;  ///< expert groups lie inside data parallel ranks (DeepSpeed): ep divides dp
    bool sequence_parallel_with_tp = false;  ///< sequence parallelism comes with tensor parallelism
    bool fp32_main_gradients = true;         ///< accumulates in fp32 unless told otherwise
    bool interleaved_needs_multiple = false;  ///< interleaved schedule: micro-batches % pp = 0
    bool moe_needs_sequence_parallel =
        false;                         ///< refuses MoE with tp > 1 and no sequence parallelism
    bool gates_in_activation = false;  ///< gates weigh the inner activation, so the experts' output
                                       ///< is not kept for backward
    bool fp32_weights_sharded = false;  ///< FSDP2: the sharded weights are the fp32 masters; 16-bit
                                        ///< copies exist only gathered
    bool refuses_sharded_pipeline = false;  ///< zero2 and zero3 exclude pipelines
    double bytes_per_logit = 6;  ///< of the loss, 16-bit recipes: logits (2) and their fp32 form,
                                 ///< softmax and gradient in place (4); eager PyTorch holds fp32
                                 ///< logits and log-softmax and a 16-bit gradient (10)
    Sharding sharding = Sharding::zero1;  ///< where nothing is said
};

/// Unknown names get the rules of no framework, with the name kept.
const FrameworkRules& framework_rules(std::string_view framework);
bool is_known_framework(std::string_view framework);

}  // namespace moeplan
