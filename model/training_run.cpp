#include "model/training_run.hpp"

#include <algorithm>

#include "core/errors.hpp"
#include "core/quantity_text.hpp"
#include "kernels/nccl/nccl_communicator.hpp"
#include "model/check.hpp"
#include "model/micro_batch.hpp"
#include "model/op_counts.hpp"

namespace moeplan {
namespace {

[[noreturn]] void refuse(const std::string& flag, const std::string& value,
                         const std::string& expected) {
    throw InputError(flag, "", value, expected);
}

/// What the layout rules know, and then what training lacks.
void check_layout_of_run(const TrainOptions& options, int ranks) {
    const ParallelLayout& layout = options.layout;
    StepSchedule schedule = options.schedule;
    schedule.software.framework = "moeplan";
    for (const int size :
         {layout.tensor_parallel_size, layout.context_parallel_size, layout.pipeline_parallel_size,
          layout.data_parallel_size, layout.expert_parallel_size,
          layout.expert_tensor_parallel_size, schedule.virtual_pipeline_size})
        if (size < 1) refuse("layout", std::to_string(size), "sizes of 1 or more");
    if (layout.context_parallel_size != 1)
        refuse("--cp", std::to_string(layout.context_parallel_size),
               "1: training here does not split sequences");
    if (schedule.virtual_pipeline_size != 1)
        refuse("--vpp", std::to_string(schedule.virtual_pipeline_size),
               "1: training here has one chunk of layers a stage");
    if (world_size(layout) != ranks)
        refuse("layout", "TP·PP·DP = " + std::to_string(world_size(layout)),
               std::to_string(ranks) + ", the number of ranks (launch with mpirun -n " +
                   std::to_string(world_size(layout)) + ")");
    if (schedule.pipeline != Pipeline::one_f_one_b && schedule.pipeline != Pipeline::gpipe)
        refuse("--schedule", std::string(name_of(schedule.pipeline)),
               "1f1b or gpipe: training here has no other schedule");
    if (schedule.sharding != Sharding::none && schedule.sharding != Sharding::zero1)
        refuse("--zero", std::string(name_of(schedule.sharding)),
               "0 or 1: training here shards the optimizer, not gradients or weights");
    if (schedule.sequence_parallel && layout.tensor_parallel_size > 1)
        refuse("--sequence-parallel", "true",
               "false: tensor parallel ranks hold whole sequences in training here");
    if (schedule.recompute.full || !schedule.recompute.modules.empty())
        refuse("--recompute", "", "none: training here keeps what backward needs");
    for (const Finding& finding : check_layout(options.model, layout, schedule, ranks))
        if (finding.severity == Severity::broken) {
            std::string flag = "--" + finding.key;
            std::replace(flag.begin(), flag.end(), '_', '-');
            refuse(flag, finding.value, "another layout: " + finding.detail);
        }
}

void check_options(const TrainOptions& options, int ranks) {
    check_layout_of_run(options, ranks);
    if (options.schedule.micro_batch_size < 1)
        refuse("--micro-batch", std::to_string(options.schedule.micro_batch_size), "1 or more");
    if (options.schedule.num_micro_batches < 1)
        refuse("--global-batch", std::to_string(options.schedule.num_micro_batches),
               "1 micro-batch or more a rank");
    if (options.steps < 1) refuse("--steps", std::to_string(options.steps), "1 or more");
    if (options.format != NumberFormat::f32 && options.format != NumberFormat::f64 &&
        options.format != NumberFormat::bf16)
        refuse("--precision", std::string(name_of(options.format)),
               "fp32 or bf16 (f64 as a reference)");
    if (!options.data) refuse("--data", "", "text to train on");
    for (const std::uint16_t token : options.data->tokens)
        if (token >= options.model.vocab_size)
            refuse("--data", "token id " + std::to_string(token),
                   "ids below the model's vocab_size (" + std::to_string(options.model.vocab_size) +
                       ")");
}

/// A model that cannot fit is refused before memory runs out: weight, gradient and two moments.
void check_memory(const TrainOptions& options, const Runtime& rt) {
    const ParallelLayout& layout = options.layout;
    const ParameterCounts counts = count_parameters(options.model);
    const auto experts = counts.parts.find("experts");
    const double spread = experts == counts.parts.end() ? 0 : double(experts->second);
    // At least: what is not split at all is counted as if it were.
    const double held = (double(counts.total) - spread) / layout.tensor_parallel_size +
                        spread / (layout.expert_parallel_size * layout.expert_tensor_parallel_size);
    // Weight and gradient, in bf16 a rounded weight too; two moments.
    const Bytes each = size_of(stat_format(options.format)) *
                           (options.schedule.sharding == Sharding::none ? 4.0 : 2.0) +
                       (options.format == NumberFormat::bf16 ? size_of(options.format) : Bytes{});
    const Bytes need = each * held / layout.pipeline_parallel_size,
                have{double(rt.backend.facts->memory_bytes)};
    if (have.value > 0 && need > have)
        throw EnvironmentError(std::string(rt.backend.facts->name) + " has " + to_text(have) +
                               " of memory; " + options.model.name + " needs " + to_text(need) +
                               " a rank for weights, gradients and moments alone: take a smaller "
                               "model, or more ranks with --ep, --tp or --pp");
}

/// NCCL, where ranks have GPUs. @param exchange  set to how they reach each other
std::optional<Communicator> device_ranks(const TrainOptions& options, const Communicator& world,
                                         std::string& exchange) {
    if (options.device != Device::cuda || world.size() == 1) return std::nullopt;
    std::string why;
    std::optional<Communicator> out = nccl_communicator(world, options.device_ordinal, &why);
    exchange = out ? "nccl" : "host memory: " + why;
    return out;
}

/// Options are looked at before anything is split or allocated.
const TrainOptions& checked(const TrainOptions& options, int ranks) {
    check_options(options, ranks);
    return options;
}

}  // namespace

TrainingRun::TrainingRun(const TrainOptions& of, Communicator& ranks)
    : options(checked(of, ranks.size())),
      world(ranks),
      devices(device_ranks(of, ranks, exchange)),
      groups(of.layout, ranks, devices ? *devices : ranks),
      rt(backend_for(of.device, of.device_ordinal), of.format) {
    check_memory(options, rt);
    const ModelSpec spec = with_gates(options.model, options.renormalise_gates);
    const auto chunks = stage_chunks(int(spec.layers.size()), options.layout, options.schedule);
    model = std::make_unique<Transformer>(rt, spec, groups, options.seed,
                                          chunks.at(std::size_t(groups.place.stage)).front(),
                                          is_sharded());
    shape = {options.schedule.micro_batch_size, options.schedule.num_micro_batches,
             options.layout.data_parallel_size};
    for (const LayerSpec& layer : model->spec().layers)
        if (const auto* moe = std::get_if<MoeFeedForward>(&layer.feed_forward))
            moe_specs.push_back(moe);
}

std::int64_t TrainingRun::hidden_count() const {
    return std::int64_t{1} * options.schedule.micro_batch_size * options.schedule.sequence_length *
           options.model.hidden_size;
}

double TrainingRun::micro_batch_weight() const {
    return double(options.schedule.micro_batch_size) / double(shape.global_batch_size());
}

TokenBatch TrainingRun::read(int step, int micro_batch) const {
    return read_micro_batch(*options.data, shape, step, micro_batch, groups.place.data);
}

MicroBatch TrainingRun::on_device(const TokenBatch& batch, int step, int micro_batch) {
    const std::int64_t index =
        (std::int64_t(step) * shape.num_micro_batches + micro_batch) * shape.num_ranks +
        groups.place.data;
    return moeplan::on_device(rt, batch, index, micro_batch_weight());
}

}  // namespace moeplan
