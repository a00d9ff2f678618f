#include "planner/export/parts.hpp"

namespace moeplan {

Exported to_torchtitan(const StepCase& step) {
    Exported out;
    const ParallelLayout& layout = step.layout;
    const StepSchedule& schedule = step.schedule;
    out.refused = foreign_layers(step.model, "torchtitan");
    const int tp = layout.tensor_parallel_size, etp = layout.expert_tensor_parallel_size;
    if (out.refused.empty() && layout.expert_parallel_size > 1 && etp != 1 && etp != tp)
        out.refused = "torchtitan takes an expert tensor-parallel size of 1 or tp (" +
                      std::to_string(tp) + "), not " + std::to_string(etp);
    if (!out.refused.empty()) return out;

    // A local batch holds all micro-batches of a pipeline; without one it is one micro-batch, and
    // the rest is gradient accumulation by global_batch_size.
    const bool pipeline = layout.pipeline_parallel_size > 1;
    const int local = pipeline ? schedule.micro_batch_size * schedule.num_micro_batches
                               : schedule.micro_batch_size;
    const bool sharded = schedule.sharding != Sharding::none;
    if (schedule.sharding == Sharding::zero1 || schedule.sharding == Sharding::zero2)
        out.notes.push_back(
            "planned with " + std::string(name_of(schedule.sharding)) +
            "; torchtitan shards weights too (FSDP), unless resharding after forward is "
            "switched off as here");
    if (pipeline && schedule.pipeline == Pipeline::dual_pipe)
        out.notes.push_back(
            "torchtitan's DualPipeV is DualPipe folded at its middle: half as many ranks, each "
            "layer held once");
    out.notes.push_back("[model] and its flavor name a shape registered in torchtitan: register " +
                        step.model.name);

    std::string& text = out.text;
    text = origin(step, "#");
    for (const std::string& note : out.notes) text += "# " + note + "\n";
    const auto line = [&](const std::string& key, const auto& value) {
        if constexpr (std::is_convertible_v<decltype(value), std::string>)
            text += key + " = \"" + std::string(value) + "\"\n";
        else
            text += key + " = " + std::to_string(value) + "\n";
    };
    text += "\n[training]\n";
    line("local_batch_size", local);
    line("global_batch_size", global_batch(step));
    line("seq_len", schedule.sequence_length);
    text += "\n[parallelism]\n";
    line("data_parallel_replicate_degree", sharded ? 1 : layout.data_parallel_size);
    line("data_parallel_shard_degree", sharded ? layout.data_parallel_size : 1);
    line("fsdp_reshard_after_forward",
         std::string(schedule.sharding == Sharding::zero3 ? "always" : "never"));
    line("tensor_parallel_degree", tp);
    line("context_parallel_degree", layout.context_parallel_size);
    line("expert_parallel_degree", layout.expert_parallel_size);
    line("expert_tensor_parallel_degree", etp);
    line("pipeline_parallel_degree", layout.pipeline_parallel_size);
    if (pipeline) {
        line("pipeline_parallel_schedule",
             std::string(schedule.pipeline == Pipeline::zero_bubble_v ? "ZBVZeroBubble"
                         : schedule.virtual_pipeline_size > 1         ? "Interleaved1F1B"
                         : schedule.pipeline == Pipeline::gpipe       ? "GPipe"
                         : schedule.pipeline == Pipeline::zero_bubble ? "InterleavedZeroBubble"
                         : schedule.pipeline == Pipeline::dual_pipe   ? "DualPipeV"
                                                                      : "1F1B"));
        line("pipeline_parallel_microbatch_size", schedule.micro_batch_size);
    }
    text += "\n[activation_checkpoint]\n";
    line("mode", std::string(schedule.recompute.full              ? "full"
                             : schedule.recompute.modules.empty() ? "none"
                                                                  : "selective"));
    return out;
}

}  // namespace moeplan
