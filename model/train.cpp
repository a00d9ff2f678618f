#include "model/train.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/errors.hpp"
#include "core/json.hpp"
#include "model/check.hpp"
#include "model/checkpoint.hpp"
#include "model/optimizer_sharding.hpp"
#include "model/training_step.hpp"

namespace moeplan {
namespace {

std::unique_ptr<TraceRecorder> open_trace(TrainingRun& run) {
    const TrainOptions& options = run.options;
    if (options.trace.empty()) return nullptr;
    if (run.moe_specs.empty())
        throw InputError("--trace", "", options.trace.string(),
                         "a model with experts: " + options.model.name + " is dense");
    const MoeFeedForward& first = *run.moe_specs.front();
    for (const MoeFeedForward* moe : run.moe_specs)
        if (moe->num_experts != first.num_experts || moe->top_k != first.top_k ||
            moe->num_moe_heads != first.num_moe_heads)
            throw InputError(
                "--trace", "", options.trace.string(),
                "MoE layers of one shape: a trace has one number of experts, choices and heads");
    TraceHeader header;
    header.model = options.model.name;
    header.source = "training";
    header.num_moe_layers = int(run.moe_specs.size());
    header.num_experts = first.num_experts;
    header.top_k = first.top_k;
    header.num_moe_heads = first.num_moe_heads;
    header.num_ranks = run.shape.num_ranks;
    header.num_micro_batches = options.schedule.num_micro_batches;
    header.sequence_length = options.schedule.sequence_length;
    header.tokens_per_step = run.shape.global_batch_size() * options.schedule.sequence_length;
    header.gates = first.renormalise_gates ? "renormalised" : "raw";
    header.document_order = std::string(name_of(options.data->packing.order));
    header.seed = options.seed.value;
    return std::make_unique<TraceRecorder>(options.trace, header, run.world, run.groups.place,
                                           options.trace_gates);
}

std::vector<double> of_all_ranks(const Communicator& world, double mine) {
    std::vector<double> out(std::size_t(world.size()));
    const std::vector<std::int64_t> sizes(std::size_t(world.size()), sizeof(double));
    world.all_gather_v(&mine, sizeof mine, out.data(), sizes);
    return out;
}

/// The memory model at what the run routed: the mean load of the busiest expert rank, and without
/// the rows that were dropped.
std::vector<Bytes> modelled_memory(const TrainingRun& run, const std::vector<StepRecord>& steps) {
    StepSchedule schedule = run.options.schedule;
    schedule.software.framework = "moeplan";
    schedule.precision =
        run.options.format == NumberFormat::bf16 ? Precision::bf16 : Precision::fp32;
    double load = 0, count = 0, dropped = 0;
    for (const StepRecord& step : steps) {
        dropped += step.dropped_choices / double(steps.size());
        for (const double imbalance : step.rank_imbalance) {
            load += imbalance;
            ++count;
        }
    }
    ModelSpec model = run.options.model;
    if (dropped > 0)
        for (LayerSpec& layer : model.layers)
            if (auto* moe = std::get_if<MoeFeedForward>(&layer.feed_forward))
                moe->capacity_factor = 1 - dropped;
    const auto stages =
        memory_by_stage(model, run.options.layout, schedule, count > 0 ? load / count : 1);
    const double wider = run.options.format == NumberFormat::f64 ? 2 : 1;
    std::vector<Bytes> out;
    for (int rank = 0; rank < run.world.size(); ++rank)
        out.push_back(stages.at(std::size_t(place_of(run.options.layout, rank).stage)).total() *
                      wider);
    return out;
}

}  // namespace

ModelSpec with_gates(ModelSpec model, std::optional<bool> renormalise) {
    if (renormalise)
        for (LayerSpec& layer : model.layers)
            if (auto* moe = std::get_if<MoeFeedForward>(&layer.feed_forward))
                moe->renormalise_gates = *renormalise;
    return model;
}

TrainResult train(const TrainOptions& options, Communicator& world,
                  const TrainCallbacks& callbacks) {
    TrainingRun run(options, world);
    TrainResult result;
    result.world_size = world.size();
    result.exchange = run.exchange;
    result.parameters = count_parameters_of_all(run.model->parameters(), run.groups, world);

    CheckpointState state;
    state.seed = options.seed.value;
    state.model = to_json(run.model->spec());
    state.layout = to_json(options.layout);
    state.data_digest = options.data_digest;
    if (options.resume) {
        const auto newest = latest_checkpoint(options.checkpoint);
        if (!newest)
            throw InputError("--continue", "", options.checkpoint.string(),
                             "a folder with a checkpoint in it (step-*/state.json)");
        const CheckpointState found = read_checkpoint_state(*newest);
        if (found.model != state.model)
            throw InputError((*newest / "state.json").string(), "/model", "",
                             "the model of this run: the shapes differ");
        if (found.seed != state.seed)
            throw InputError((*newest / "state.json").string(), "/seed", std::to_string(found.seed),
                             "this run's --seed (" + std::to_string(state.seed) + ")");
        if (found.data_digest != state.data_digest)
            throw InputError((*newest / "state.json").string(), "/data_digest", found.data_digest,
                             "this run's text (" + state.data_digest + ")");
        load_checkpoint(*newest, run.rt, *run.model);
        result.first_step = int(found.step);
    }
    const auto save = [&](int done) {
        state.step = done;
        save_checkpoint(options.checkpoint, state, run.rt, *run.model, run.groups, world);
    };

    const std::unique_ptr<TraceRecorder> recorder = open_trace(run);
    double busy = 0;
    Seconds pace_before;
    if (callbacks.machine_pace) pace_before = callbacks.machine_pace();
    for (int step = result.first_step; step < options.steps && !result.stopped; ++step) {
        const bool stop_asked = callbacks.stop && callbacks.stop();
        StepRecord record = training_step(run, step, recorder.get(), stop_asked, result.stopped);
        if (callbacks.machine_pace) {
            const Seconds pace_after = callbacks.machine_pace();
            record.machine_pace = (pace_before + pace_after) * 0.5;
            pace_before = pace_after;
        }
        busy +=
            record.times.forward.value + record.times.backward.value + record.times.optimizer.value;
        const bool last = step + 1 == options.steps || result.stopped;
        bool paused = false;
        if (options.held_out &&
            (last || (options.evaluate_every > 0 && (step + 1) % options.evaluate_every == 0))) {
            const Evaluation evaluation =
                held_out_loss(run, *options.held_out, options.evaluate_sequences, {});
            record.held_out_loss = result.held_out_loss = evaluation.loss;
            result.held_out_by_domain = evaluation.by_domain;
            paused = true;
        }
        if (!options.checkpoint.empty() &&
            (last || (options.checkpoint_every > 0 && (step + 1) % options.checkpoint_every == 0)))
            save(step + 1), paused = true;
        if (paused && callbacks.machine_pace) pace_before = callbacks.machine_pace();
        if (world.rank() == 0 && callbacks.on_step) callbacks.on_step(record);
        result.steps.push_back(std::move(record));
    }
    if (recorder) recorder->finish();
    for (const double bytes : of_all_ranks(world, double(run.rt.memory.peak())))
        result.peak_memory.push_back({bytes});
    result.modelled_memory = modelled_memory(run, result.steps);
    result.stretches = run.rt.graphs.counts();
    result.choices = choices_of(run.rt.backend);
    const double steps = std::max<double>(1, double(result.steps.size()));
    for (const double seconds : of_all_ranks(world, busy / steps))
        result.busy_by_rank.push_back({seconds});
    return result;
}

Evaluation evaluate(const TrainOptions& options, const std::filesystem::path& checkpoint,
                    Communicator& world, const std::vector<std::vector<std::uint8_t>>& kept) {
    if (!options.held_out)
        throw InputError("--held-out", "", "", "a share of the text to evaluate on");
    TrainingRun run(options, world);
    const auto newest = latest_checkpoint(checkpoint);
    if (!newest)
        throw InputError("--evaluate", "", checkpoint.string(),
                         "a folder with a checkpoint in it (step-*/state.json)");
    load_checkpoint(*newest, run.rt, *run.model);
    return held_out_loss(run, *options.held_out, options.evaluate_sequences, kept);
}

}  // namespace moeplan
