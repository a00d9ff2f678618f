#include <nlohmann/json.hpp>

#include "core/json.hpp"
#include "planner/export/parts.hpp"

namespace moeplan {

Exported to_deepspeed(const StepCase& step) {
    Exported out;
    const ParallelLayout& layout = step.layout;
    const StepSchedule& schedule = step.schedule;
    out.refused = foreign_layers(step.model, "DeepSpeed");
    if (out.refused.empty() && layout.pipeline_parallel_size > 1 && layout.expert_parallel_size > 1)
        out.refused = "DeepSpeed does not run experts inside a pipeline: pp is " +
                      std::to_string(layout.pipeline_parallel_size);
    if (out.refused.empty() && layout.context_parallel_size > 1)
        out.refused = "no context parallelism in DeepSpeed's configuration: cp is " +
                      std::to_string(layout.context_parallel_size);
    if (out.refused.empty() && schedule.sharding == Sharding::zero3 &&
        layout.expert_parallel_size > 1)
        out.refused = "DeepSpeed's expert parallelism goes with ZeRO stage 2 at most";
    if (!out.refused.empty()) return out;

    Json config = {{"train_batch_size", global_batch(step)},
                   {"train_micro_batch_size_per_gpu", schedule.micro_batch_size},
                   {"gradient_accumulation_steps", schedule.num_micro_batches},
                   {"gradient_clipping", 1.0}};
    int stage = 0;
    switch (schedule.sharding) {
        case Sharding::none:
            stage = 0;
            break;
        case Sharding::zero1:
            stage = 1;
            break;
        case Sharding::zero2:
            stage = 2;
            break;
        case Sharding::zero3:
            stage = 3;
            break;
    }
    config["zero_optimization"] = {{"stage", stage}, {"overlap_comm", schedule.overlap.gradients}};
    config["bf16"] = {{"enabled", schedule.precision == Precision::bf16}};
    if (schedule.precision == Precision::fp16) config["fp16"] = {{"enabled", true}};
    if (schedule.precision != Precision::bf16 && schedule.precision != Precision::fp16 &&
        schedule.precision != Precision::fp32)
        out.notes.push_back("precision " + std::string(name_of(schedule.precision)) +
                            " is not a setting of DeepSpeed");
    if (schedule.main_gradients == NumberFormat::f32)
        config["data_types"] = {{"grad_accum_dtype", "fp32"}};
    if (const MoeFeedForward* moe = first_moe(step.model))
        out.notes.push_back("the model code takes deepspeed.moe.layer.MoE(num_experts=" +
                            std::to_string(moe->num_experts) +
                            ", ep_size=" + std::to_string(layout.expert_parallel_size) +
                            ", k=" + std::to_string(moe->top_k) +
                            ", drop_tokens=" + (moe->capacity_factor ? "True" : "False") + ")");
    if (layout.tensor_parallel_size > 1)
        out.notes.push_back(
            "tensor parallelism " + std::to_string(layout.tensor_parallel_size) +
            " is the model code's (Megatron-DeepSpeed: --tensor-model-parallel-size)");
    if (schedule.recompute.full)
        out.notes.push_back("full recompute: deepspeed.checkpointing in the model code");
    out.text = to_file_text(config);
    return out;
}

}  // namespace moeplan
