#include "model/train.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "core/errors.hpp"
#include "core/json.hpp"
#include "core/quantity_text.hpp"
#include "core/text.hpp"
#include "kernels/nccl/nccl_communicator.hpp"
#include "model/checkpoint.hpp"
#include "model/layers/transformer.hpp"
#include "model/micro_batch.hpp"
#include "model/op_counts.hpp"
#include "model/trace_recorder.hpp"

namespace moeplan {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// Everything of a run that lives on this rank.
struct Run {
    const TrainOptions& options;
    Communicator& world;
    std::optional<Communicator> devices;  ///< NCCL between the GPUs of all ranks, where it is
    std::string exchange;                 ///< TrainResult's
    Communicator expert_group, expert_data_group;
    Runtime rt;
    ExpertGroup group;
    std::unique_ptr<Transformer> model;
    BatchShape shape;

    Run(const TrainOptions& o, Communicator& w)
        : options(o), world(w), rt(backend_for(o.device, o.device_ordinal), o.format) {}
    /// Of all ranks, for what lies on the device.
    const Communicator& everyone() const { return devices ? *devices : world; }
};

void check_options(const TrainOptions& options, int ranks) {
    const ParallelLayout& layout = options.layout;
    const auto refuse = [](const char* flag, const std::string& value,
                           const std::string& expected) {
        throw InputError(flag, "", value, expected);
    };
    if (layout.tensor_parallel_size != 1)
        refuse("--tp", std::to_string(layout.tensor_parallel_size),
               "1: training here spreads data and experts, not tensors");
    if (layout.context_parallel_size != 1)
        refuse("--cp", std::to_string(layout.context_parallel_size),
               "1: training here spreads data and experts, not sequences");
    if (layout.pipeline_parallel_size != 1)
        refuse("--pp", std::to_string(layout.pipeline_parallel_size),
               "1: training here spreads data and experts, not layers");
    if (layout.expert_tensor_parallel_size != 1)
        refuse("--etp", std::to_string(layout.expert_tensor_parallel_size), "1");
    if (layout.data_parallel_size != ranks)
        refuse("--dp", std::to_string(layout.data_parallel_size),
               std::to_string(ranks) + ", the number of ranks (launch with mpirun -n " +
                   std::to_string(layout.data_parallel_size) + ")");
    if (layout.expert_parallel_size < 1 || ranks % layout.expert_parallel_size != 0)
        refuse("--ep", std::to_string(layout.expert_parallel_size),
               "a divisor of the number of ranks (" + std::to_string(ranks) + ")");
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

std::unique_ptr<Run> begin_run(const TrainOptions& options, Communicator& world) {
    check_options(options, world.size());
    auto run = std::make_unique<Run>(options, world);
    // Weight, gradient and two moments, in bf16 a master weight too; experts are spread. A model
    // that cannot fit is refused before memory runs out.
    const ParameterCounts counts = count_parameters(options.model);
    const auto experts = counts.parts.find("experts");
    const double spread = experts == counts.parts.end() ? 0 : double(experts->second);
    const Bytes need =
        (size_of(stat_format(options.format)) * 4.0 +
         (options.format == NumberFormat::bf16 ? size_of(options.format) : Bytes{})) *
        (double(counts.total) - spread + spread / options.layout.expert_parallel_size);
    const Bytes have{double(run->rt.backend.facts->memory_bytes)};
    if (have.value > 0 && need > have)
        throw EnvironmentError(std::string(run->rt.backend.facts->name) + " has " + to_text(have) +
                               " of memory; " + options.model.name + " needs " + to_text(need) +
                               " a rank for weights, gradients and moments alone: take a smaller "
                               "model, or more ranks with --ep");
    const int ep = options.layout.expert_parallel_size;
    // Expert ranks are innermost (model/parallel_layout.hpp): ranks r·ep … r·ep + ep − 1 share the
    // experts.
    if (options.device == Device::cuda && world.size() > 1) {
        std::string why;
        run->devices = nccl_communicator(world, options.device_ordinal, &why);
        run->exchange = run->devices ? "nccl" : "host memory: " + why;
    }
    run->expert_group = run->everyone().split(world.rank() / ep, world.rank());
    run->expert_data_group = run->everyone().split(world.rank() % ep, world.rank());
    run->group.experts = &run->expert_group;
    run->group.world = &world;
    run->model = std::make_unique<Transformer>(
        run->rt, with_gates(options.model, options.renormalise_gates), run->group, options.seed);
    run->shape = {options.schedule.micro_batch_size, options.schedule.num_micro_batches,
                  world.size()};
    return run;
}

void sum_gradient(Runtime& rt, Tensor& gradient, const Communicator& group) {
    if (group.size() == 1) return;
    if (group.accepts(rt.backend.device)) {
        group.all_reduce(gradient.data(), gradient.count(), gradient.format(), Reduction::sum,
                         rt.stream);
        return;
    }
    std::vector<char> host(gradient.bytes());
    rt.copy(host.data(), gradient.data(), host.size());
    check(rt.backend.synchronise(rt.stream), "synchronise");
    group.all_reduce(host.data(), gradient.count(), gradient.format());
    rt.copy(gradient.data(), host.data(), host.size());
    check(rt.backend.synchronise(rt.stream), "synchronise");
}

Evaluation held_out_loss(Run& run, const PackedTokens& text, int sequences,
                         const std::vector<std::vector<std::uint8_t>>& kept) {
    const TrainOptions& options = run.options;
    const int size = options.schedule.micro_batch_size, ranks = run.world.size();
    const std::int64_t batches = std::max<std::int64_t>(
        1, (sequences + std::int64_t(size) * ranks - 1) / (std::int64_t(size) * ranks));
    std::size_t domains = 0;
    for (const std::uint16_t domain : text.domains)
        domains = std::max(domains, std::size_t(domain) + 1);
    const auto layers = run.model->moe_layers();
    for (std::size_t i = 0; i < layers.size(); ++i) {
        layers[i]->use_pools = false;  // as at inference
        if (!kept.empty()) layers[i]->keep_experts(kept.at(i));
    }
    std::vector<double> sums(2 * (domains + 1), 0);  // loss and tokens, of all and of each domain
    for (std::int64_t b = 0; b < batches; ++b) {
        const TokenBatch batch = read_batch(text, (b * ranks + run.world.rank()) * size, size);
        const MicroBatch device = on_device(run.rt, batch, b, 1);
        const auto result = run.model->evaluate(device);
        for (std::size_t t = 0; t < result.token_loss.size(); ++t)
            for (const std::size_t slot : {std::size_t(0), std::size_t(batch.domains[t]) + 1}) {
                sums[2 * slot] += result.token_loss[t];
                sums[2 * slot + 1] += 1;
            }
    }
    run.world.all_reduce(sums.data(), std::int64_t(sums.size()), NumberFormat::f64);
    for (MoeLayer* layer : layers) {
        layer->use_pools = true;
        layer->keep_experts({});
    }
    Evaluation out;
    out.loss = sums[0] / sums[1];
    out.tokens = std::int64_t(sums[1]);
    for (std::size_t d = 0; d < domains; ++d)
        out.by_domain.push_back(sums[2 * d + 3] > 0 ? sums[2 * d + 2] / sums[2 * d + 3]
                                                    : std::numeric_limits<double>::quiet_NaN());
    return out;
}

std::unique_ptr<TraceRecorder> open_trace(Run& run) {
    const TrainOptions& options = run.options;
    if (options.trace.empty()) return nullptr;
    const auto layers = run.model->moe_layers();
    if (layers.empty())
        throw InputError("--trace", "", options.trace.string(),
                         "a model with experts: " + options.model.name + " is dense");
    const MoeFeedForward& first = layers.front()->spec();
    for (MoeLayer* layer : layers)
        if (layer->spec().num_experts != first.num_experts || layer->spec().top_k != first.top_k ||
            layer->spec().num_moe_heads != first.num_moe_heads)
            throw InputError(
                "--trace", "", options.trace.string(),
                "MoE layers of one shape: a trace has one number of experts, choices and heads");
    TraceHeader header;
    header.model = options.model.name;
    header.source = "training";
    header.num_moe_layers = int(layers.size());
    header.num_experts = first.num_experts;
    header.top_k = first.top_k;
    header.num_moe_heads = first.num_moe_heads;
    header.num_ranks = run.world.size();
    header.num_micro_batches = options.schedule.num_micro_batches;
    header.sequence_length = options.schedule.sequence_length;
    header.tokens_per_step = run.shape.global_batch_size() * options.schedule.sequence_length;
    header.gates = first.renormalise_gates ? "renormalised" : "raw";
    header.document_order = std::string(name_of(options.data->packing.order));
    header.seed = options.seed.value;
    return std::make_unique<TraceRecorder>(options.trace, header, run.world, options.trace_gates);
}

double max_over_mean(const std::vector<double>& loads) {
    double sum = 0, most = 0;
    for (const double load : loads) {
        sum += load;
        most = std::max(most, load);
    }
    return sum > 0 ? most * double(loads.size()) / sum : 1;
}

/// One step: micro-batches, gradients summed over ranks, clipped, applied.
StepRecord one_step(Run& run, int step, TraceRecorder* recorder, bool stop_asked, bool& stopped) {
    const TrainOptions& options = run.options;
    Runtime& rt = run.rt;
    const auto begin = Clock::now();
    const std::int64_t batch_tokens =
        std::int64_t(options.schedule.micro_batch_size) * options.schedule.sequence_length;
    StepRecord record;
    record.step = step;
    record.tokens = run.shape.global_batch_size() * options.schedule.sequence_length;
    record.learning_rate = learning_rate_at(options.optimizer, step, options.steps);
    const double weight =
        double(batch_tokens) /
        double(record.tokens);  // of the whole step, not of this rank: layouts agree
    run.group.dispatch_seconds = run.group.combine_seconds = run.group.balance_seconds = 0;
    run.model->parameters().zero_gradients();

    const auto layers = run.model->moe_layers();
    const std::size_t per_layer =
        6;  // balance, z, gate sum, units, dropped choices, dropped tokens; then counts by expert
    std::vector<double> sums(2, 0);  // loss, stop
    std::vector<std::vector<double>> layer_sums;
    for (MoeLayer* layer : layers)
        layer_sums.emplace_back(per_layer + std::size_t(layer->spec().num_experts), 0);
    double forward = 0, backward = 0;
    const bool recording = recorder && step >= options.trace_first &&
                           (step - options.trace_first) % std::max(1, options.trace_every) == 0;
    for (int m = 0; m < options.schedule.num_micro_batches; ++m) {
        const TokenBatch text =
            read_micro_batch(*options.data, run.shape, step, m, run.world.rank());
        const std::int64_t index =
            (std::int64_t(step) * options.schedule.num_micro_batches + m) * run.world.size() +
            run.world.rank();
        const MicroBatch batch = on_device(rt, text, index, weight);
        std::vector<MoeChoices> choices;
        const auto result =
            run.model->train(batch, recording ? &choices : nullptr, forward, backward);
        sums[0] += result.loss_sum;
        for (std::size_t l = 0; l < layers.size(); ++l) {
            const MoeReport& moe = result.moe[l];
            auto& to = layer_sums[l];
            to[0] += moe.balance_loss * weight;
            to[1] += moe.z_loss * weight;
            to[2] += moe.gate_sum * weight;
            to[3] += double(moe.units);
            to[4] += double(moe.dropped_units);
            to[5] += double(moe.dropped_tokens);
            for (std::size_t e = 0; e < moe.chosen.size(); ++e)
                to[per_layer + e] += double(moe.chosen[e]);
        }
        if (recording) recorder->add(m, text, std::move(choices));
    }

    // Losses and counts of all ranks in one message; so every rank knows at the same step whether
    // to go on.
    sums[1] = stop_asked ? 1 : 0;
    for (const auto& layer : layer_sums) sums.insert(sums.end(), layer.begin(), layer.end());
    run.world.all_reduce(sums.data(), std::int64_t(sums.size()), NumberFormat::f64);
    stopped = sums[1] > 0;
    record.loss = sums[0] / double(record.tokens);
    // A router that gives no numbers drops its rows, and the loss may be one all the same.
    bool finite = std::isfinite(record.loss);
    for (std::size_t l = 0, at = 2; l < layers.size();
         at += per_layer + std::size_t(layers[l++]->spec().num_experts))
        finite = finite && std::isfinite(sums[at]) && std::isfinite(sums[at + 1]);
    if (!finite) {
        std::string part;
        for (int m = 0; m < options.schedule.num_micro_batches && part.empty(); ++m) {
            const TokenBatch text =
                read_micro_batch(*options.data, run.shape, step, m, run.world.rank());
            const MicroBatch batch = on_device(
                rt, text,
                (std::int64_t(step) * options.schedule.num_micro_batches + m) * run.world.size() +
                    run.world.rank(),
                weight);
            part = run.model->first_bad_part(batch);
        }
        throw Diverged("step " + std::to_string(step) +
                       ": the loss or a router's is not a number; the first output that is not "
                       "finite is that of " +
                       part + ". A lower --lr, a longer --warmup or --clip usually helps");
    }

    auto mark = Clock::now();
    for (Parameter* parameter : run.model->parameters().all())
        sum_gradient(rt, parameter->gradient,
                     parameter->held == Held::by_all ? run.everyone() : run.expert_data_group);
    run.everyone().wait(rt.backend, rt.stream);
    record.times.gradients = {seconds_since(mark) + run.group.balance_seconds};

    mark = Clock::now();
    record.gradient_norm = gradient_norm(rt, run.model->parameters(), run.expert_group);
    if (!std::isfinite(record.gradient_norm)) {
        std::string first;
        for (Parameter* parameter : run.model->parameters().all()) {
            const auto values =
                rt.download(parameter->gradient.data(), parameter->count(), rt.stat);
            if (!std::all_of(values.begin(), values.end(),
                             [](double g) { return std::isfinite(g); })) {
                first = parameter->name;
                break;
            }
        }
        throw Diverged("step " + std::to_string(step) + ": the gradient of " +
                       (first.empty() ? "another rank's experts" : first) +
                       " is not finite while the loss is " + exact_text(record.loss) +
                       ". A lower --lr or a longer --warmup usually helps");
    }
    const double clip = options.optimizer.clip;
    const double scale = clip > 0 && record.gradient_norm > clip ? clip / record.gradient_norm : 1;
    update(rt, run.model->parameters(), options.optimizer, record.learning_rate, step + 1, scale);
    std::size_t at = 2;
    double units = 0, dropped = 0, lost = 0, slots = 0;
    for (std::size_t l = 0; l < layers.size(); ++l) {
        const MoeFeedForward& moe = layers[l]->spec();
        const double* from = sums.data() + at;
        const std::vector<double> counts(from + per_layer, from + per_layer + moe.num_experts);
        record.balance_loss += from[0] / double(layers.size());
        record.z_loss += from[1] / double(layers.size());
        record.gate_sum.push_back(from[2]);
        record.expert_imbalance.push_back(max_over_mean(counts));
        const int ep = options.layout.expert_parallel_size, each = moe.num_experts / ep;
        std::vector<double> by_rank(std::size_t(ep), 0);
        for (int e = 0; e < moe.num_experts; ++e)
            by_rank[std::size_t(e / each)] += counts[std::size_t(e)];
        record.rank_imbalance.push_back(max_over_mean(by_rank));
        layers[l]->move_selection_bias(std::vector<std::int64_t>(counts.begin(), counts.end()),
                                       options.optimizer.selection_bias_rate);
        units += from[3];
        slots += from[3] * moe.top_k;
        dropped += from[4];
        lost += from[5] * moe.num_moe_heads;  // of units, as the denominator is
        at += per_layer + std::size_t(moe.num_experts);
    }
    record.dropped_choices = slots > 0 ? dropped / slots : 0;
    record.dropped_tokens = units > 0 ? lost / units : 0;
    check(rt.backend.synchronise(rt.stream), "synchronise");
    record.times.optimizer = {seconds_since(mark)};
    if (recording) recorder->end_step(step, record.loss);

    // Exchanges happen inside forward (dispatch, combine) and backward (the same two, turned
    // round): half of each is taken out of each.
    const double moved =
        run.group.dispatch_seconds + run.group.combine_seconds + run.group.balance_seconds;
    record.times.forward = {std::max(
        0.0, forward - (moved - run.group.balance_seconds) / 2 - run.group.balance_seconds)};
    record.times.backward = {std::max(0.0, backward - (moved - run.group.balance_seconds) / 2)};
    record.times.dispatch = {run.group.dispatch_seconds};
    record.times.combine = {run.group.combine_seconds};
    record.times.total = {seconds_since(begin)};
    record.times.other = record.times.total - record.times.forward - record.times.backward -
                         record.times.dispatch - record.times.combine - record.times.gradients -
                         record.times.optimizer;
    record.tokens_per_second = double(record.tokens) / record.times.total.value;
    return record;
}

std::vector<double> of_all_ranks(const Communicator& world, double mine) {
    std::vector<double> out(std::size_t(world.size()));
    const std::vector<std::int64_t> sizes(std::size_t(world.size()), sizeof(double));
    world.all_gather_v(&mine, sizeof mine, out.data(), sizes);
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
    const std::unique_ptr<Run> run = begin_run(options, world);
    TrainResult result;
    result.world_size = world.size();
    result.exchange = run->exchange;
    result.parameters =
        run->model->parameters().count(Held::by_all) +
        run->model->parameters().count(Held::by_expert_rank) * options.layout.expert_parallel_size;

    CheckpointState state;
    state.seed = options.seed.value;
    state.model = to_json(run->model->spec());
    state.data_digest = options.data_digest;
    const bool writes_experts = run->expert_data_group.rank() == 0;
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
        load_checkpoint(*newest, run->rt, *run->model);
        result.first_step = int(found.step);
    }
    const auto save = [&](int done) {
        state.step = done;
        save_checkpoint(options.checkpoint, state, run->rt, *run->model, world, writes_experts);
    };

    const std::unique_ptr<TraceRecorder> recorder = open_trace(*run);
    double busy = 0;
    for (int step = result.first_step; step < options.steps && !result.stopped; ++step) {
        const bool stop_asked = callbacks.stop && callbacks.stop();
        StepRecord record = one_step(*run, step, recorder.get(), stop_asked, result.stopped);
        busy +=
            record.times.forward.value + record.times.backward.value + record.times.optimizer.value;
        const bool last = step + 1 == options.steps || result.stopped;
        if (options.held_out &&
            (last || (options.evaluate_every > 0 && (step + 1) % options.evaluate_every == 0))) {
            const Evaluation evaluation =
                held_out_loss(*run, *options.held_out, options.evaluate_sequences, {});
            record.held_out_loss = result.held_out_loss = evaluation.loss;
            result.held_out_by_domain = evaluation.by_domain;
        }
        if (!options.checkpoint.empty() &&
            (last || (options.checkpoint_every > 0 && (step + 1) % options.checkpoint_every == 0)))
            save(step + 1);
        if (world.rank() == 0 && callbacks.on_step) callbacks.on_step(record);
        result.steps.push_back(std::move(record));
    }
    if (recorder) recorder->finish();
    for (const double bytes : of_all_ranks(world, double(run->rt.memory.peak())))
        result.peak_memory.push_back({bytes});
    const double steps = std::max<double>(1, double(result.steps.size()));
    for (const double seconds : of_all_ranks(world, busy / steps))
        result.busy_by_rank.push_back({seconds});
    return result;
}

Evaluation evaluate(const TrainOptions& options, const std::filesystem::path& checkpoint,
                    Communicator& world, const std::vector<std::vector<std::uint8_t>>& kept) {
    if (!options.held_out)
        throw InputError("--held-out", "", "", "a share of the text to evaluate on");
    const std::unique_ptr<Run> run = begin_run(options, world);
    const auto newest = latest_checkpoint(checkpoint);
    if (!newest)
        throw InputError("--evaluate", "", checkpoint.string(),
                         "a folder with a checkpoint in it (step-*/state.json)");
    load_checkpoint(*newest, run->rt, *run->model);
    return held_out_loss(*run, *options.held_out, options.evaluate_sequences, kept);
}

Json to_json(const StepRecord& r) {
    Json out;
    out["step"] = r.step;
    out["loss"] = r.loss;
    out["balance_loss"] = r.balance_loss;
    out["z_loss"] = r.z_loss;
    out["gradient_norm"] = r.gradient_norm;
    out["learning_rate"] = r.learning_rate;
    out["tokens"] = r.tokens;
    out["tokens_per_second"] = r.tokens_per_second;
    out["step_time_s"] = r.times.total.value;
    out["times"] = {
        {"forward_s", r.times.forward.value},     {"backward_s", r.times.backward.value},
        {"dispatch_s", r.times.dispatch.value},   {"combine_s", r.times.combine.value},
        {"gradients_s", r.times.gradients.value}, {"optimizer_s", r.times.optimizer.value},
        {"other_s", r.times.other.value}};
    out["gate_sum"] = r.gate_sum;
    out["expert_imbalance"] = r.expert_imbalance;
    out["rank_imbalance"] = r.rank_imbalance;
    out["dropped_choices"] = r.dropped_choices;
    out["dropped_tokens"] = r.dropped_tokens;
    if (r.held_out_loss) out["held_out_loss"] = *r.held_out_loss;
    return out;
}

}  // namespace moeplan
