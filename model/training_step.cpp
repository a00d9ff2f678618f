#include "model/training_step.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "core/text.hpp"
#include "model/optimizer_sharding.hpp"
#include "model/pipeline.hpp"

namespace moeplan {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

double max_over_mean(const std::vector<double>& loads) {
    double sum = 0, most = 0;
    for (const double load : loads) {
        sum += load;
        most = std::max(most, load);
    }
    return sum > 0 ? most * double(loads.size()) / sum : 1;
}

/// Sums of a step over micro-batches, layers and ranks, laid out as one message.
class StepSums {
  public:
    explicit StepSums(const std::vector<const MoeFeedForward*>& layers) {
        std::size_t at = kOwn;
        for (const MoeFeedForward* moe : layers) {
            begin_.push_back(at);
            at += kPerLayer + std::size_t(moe->num_experts);
        }
        values_.assign(at, 0);
    }
    double& loss() { return values_[0]; }
    double& stop() { return values_[1]; }
    /// @param layer  of all MoE layers
    void add(std::size_t layer, const MoeReport& moe, double weight) {
        double* to = values_.data() + begin_[layer];
        to[0] += moe.balance_loss * weight;
        to[1] += moe.z_loss * weight;
        to[2] += moe.gate_sum * weight;
        to[3] += double(moe.units);
        to[4] += double(moe.dropped_units);
        to[5] += double(moe.dropped_tokens);
        for (std::size_t e = 0; e < moe.chosen.size(); ++e)
            to[kPerLayer + e] += double(moe.chosen[e]);
    }
    void sum_over(const Communicator& world) {
        world.all_reduce(values_.data(), std::int64_t(values_.size()), NumberFormat::f64);
    }
    const double* of_layer(std::size_t layer) const { return values_.data() + begin_[layer]; }
    std::vector<double> counts(std::size_t layer, int num_experts) const {
        const double* from = of_layer(layer) + kPerLayer;
        return {from, from + num_experts};
    }

  private:
    static constexpr std::size_t kOwn = 2, kPerLayer = 6;
    std::vector<double> values_;
    std::vector<std::size_t> begin_;  ///< [MoE layers]
};

/// The first text that is not empty, in order of ranks (of stages, then). Collective.
std::string first_text(const Communicator& world, const std::string& mine) {
    std::vector<std::int64_t> sizes(std::size_t(world.size()), 0);
    const std::vector<std::int64_t> of_one(sizes.size(), sizeof(std::int64_t));
    const auto size = std::int64_t(mine.size());
    world.all_gather_v(&size, sizeof size, sizes.data(), of_one);
    std::int64_t total = 0, first = 0;
    for (const std::int64_t s : sizes) {
        if (total == 0) first = s;
        total += s;
    }
    std::string all(std::size_t(total), ' ');
    world.all_gather_v(mine.data(), size, all.data(), sizes);
    return all.substr(0, std::size_t(first));
}

[[noreturn]] void stop_at_loss(TrainingRun& run, int step) {
    std::string part;
    for (int m = 0; m < run.options.schedule.num_micro_batches; ++m) {
        const MicroBatch batch = run.on_device(run.read(step, m), step, m);
        Tensor out;
        const std::string found = run.model->first_bad_part(
            batch, receive_hidden(run.rt, run.groups, run.hidden_count()), &out);
        send_hidden(run.rt, run.groups, std::move(out));
        if (part.empty()) part = found;
    }
    part = first_text(run.world, part);
    throw Diverged("step " + std::to_string(step) +
                   ": the loss or a router's is not a number; the first output that is not finite is that of " +
                   (part.empty() ? "lm_head" : part) +
                   ". A lower --lr, a longer --warmup or --clip usually helps");
}

[[noreturn]] void stop_at_gradient(TrainingRun& run, int step, double loss) {
    std::string first;
    for (Parameter* parameter : run.model->parameters().all()) {
        const auto values =
            run.rt.download(parameter->gradient.data(), parameter->gradient.count(), run.rt.stat);
        if (!std::all_of(values.begin(), values.end(), [](double g) { return std::isfinite(g); })) {
            first = parameter->name;
            break;
        }
    }
    first = first_text(run.world, first);
    throw Diverged("step " + std::to_string(step) + ": the gradient of " +
                   (first.empty() ? "no single parameter" : first) +
                   " is not finite while the loss is " + exact_text(loss) +
                   ". A lower --lr or a longer --warmup usually helps");
}

/// Losses, shares and loads by layer, and the selection biases that follow from them.
void report_layers(TrainingRun& run, const StepSums& sums, StepRecord& record) {
    const auto own = run.model->moe_layers();
    double units = 0, dropped = 0, lost = 0, slots = 0;
    for (std::size_t l = 0; l < run.moe_specs.size(); ++l) {
        const MoeFeedForward& moe = *run.moe_specs[l];
        const double* from = sums.of_layer(l);
        const std::vector<double> counts = sums.counts(l, moe.num_experts);
        record.balance_loss += from[0] / double(run.moe_specs.size());
        record.z_loss += from[1] / double(run.moe_specs.size());
        record.gate_sum.push_back(from[2]);
        record.expert_imbalance.push_back(max_over_mean(counts));
        const int ep = run.options.layout.expert_parallel_size, each = moe.num_experts / ep;
        std::vector<double> by_rank(std::size_t(ep), 0);
        for (int e = 0; e < moe.num_experts; ++e)
            by_rank[std::size_t(e / each)] += counts[std::size_t(e)];
        record.rank_imbalance.push_back(max_over_mean(by_rank));
        const std::size_t first = std::size_t(run.model->first_moe_layer());
        if (l >= first && l < first + own.size())
            own[l - first]->move_selection_bias(
                std::vector<std::int64_t>(counts.begin(), counts.end()),
                run.options.optimizer.selection_bias_rate);
        units += from[3];
        slots += from[3] * moe.top_k;
        dropped += from[4];
        lost += from[5] * moe.num_moe_heads;  // of units, as the denominator is
    }
    record.dropped_choices = slots > 0 ? dropped / slots : 0;
    record.dropped_tokens = units > 0 ? lost / units : 0;
}

}  // namespace

StepRecord training_step(TrainingRun& run, int step, TraceRecorder* recorder, bool stop_asked,
                         bool& stopped) {
    const TrainOptions& options = run.options;
    Runtime& rt = run.rt;
    const auto start = Clock::now();
    StepRecord record;
    record.step = step;
    record.tokens = run.shape.global_batch_size() * options.schedule.sequence_length;
    record.learning_rate = learning_rate_at(options.optimizer, step, options.steps);
    run.groups.times = {};
    run.model->parameters().zero_gradients();

    StepSums sums(run.moe_specs);
    double forward = 0, backward = 0;
    const bool recording = recorder && step >= options.trace_first &&
                           (step - options.trace_first) % std::max(1, options.trace_every) == 0;
    std::vector<TokenBatch> texts(recording ? std::size_t(run.shape.num_micro_batches) : 0);
    const auto begin = [&](int m) {
        TokenBatch text = run.read(step, m);
        MicroBatch batch = run.on_device(text, step, m);
        if (recording) texts[std::size_t(m)] = std::move(text);
        return batch;
    };
    const auto finish = [&](int m, Flight& flight) {
        forward += flight.pass.forward_seconds;
        backward += flight.pass.backward_seconds;
        if (!run.reports()) return;
        const Transformer::Result& result = flight.pass.result;
        sums.loss() += result.loss_sum;
        for (std::size_t l = 0; l < result.moe.size(); ++l)
            sums.add(l + std::size_t(run.model->first_moe_layer()), result.moe[l],
                     run.micro_batch_weight());
        if (recording)
            recorder->add(m, texts[std::size_t(m)], std::move(flight.choices),
                          run.model->first_moe_layer());
    };
    const bool forwards_first =
        options.schedule.pipeline == Pipeline::gpipe || run.model->has_global_balance();
    run_micro_batches(
        rt, *run.model, run.groups, run.shape.num_micro_batches, run.hidden_count(),
        forwards_first ? PassOrder::forwards_first : PassOrder::one_forward_one_backward, recording,
        begin, finish);

    // Losses and counts of all ranks in one message; so every rank knows at the same step whether
    // to go on.
    sums.stop() = stop_asked ? 1 : 0;
    sums.sum_over(run.world);
    stopped = sums.stop() > 0;
    record.loss = sums.loss() / double(record.tokens);
    // A router that gives no numbers drops its rows, and the loss may be one all the same.
    bool finite = std::isfinite(record.loss);
    for (std::size_t l = 0; l < run.moe_specs.size(); ++l)
        finite = finite && std::isfinite(sums.of_layer(l)[0]) && std::isfinite(sums.of_layer(l)[1]);
    if (!finite) stop_at_loss(run, step);

    double gradients = run.groups.times.balance;
    sum_gradients(rt, *run.model, run.groups, gradients);

    const auto mark = Clock::now();
    const ParameterSet& parameters = run.model->parameters();
    record.gradient_norm = gradient_norm(rt, parameters, run.groups, run.world);
    if (!std::isfinite(record.gradient_norm)) stop_at_gradient(run, step, record.loss);
    const double clip = options.optimizer.clip;
    const double scale = clip > 0 && record.gradient_norm > clip ? clip / record.gradient_norm : 1;
    update(rt, parameters, options.optimizer, record.learning_rate, step + 1, scale);
    report_layers(run, sums, record);
    check(rt.backend.synchronise(rt.stream), "synchronise");
    record.times.optimizer = {seconds_since(mark)};
    gather_parameters(rt, parameters, run.groups, gradients);
    if (recording) recorder->end_step(step, record.loss);

    // Exchanges happen inside forward and backward, the same in both: half of each is taken out of
    // each. Exchanges between stages and of balance counts happen outside.
    const ExchangeTimes& times = run.groups.times;
    const double inside = (times.dispatch + times.combine + times.tensor) / 2;
    record.times.forward = {std::max(0.0, forward - inside)};
    record.times.backward = {std::max(0.0, backward - inside)};
    record.times.dispatch = {times.dispatch};
    record.times.combine = {times.combine};
    record.times.tensor = {times.tensor};
    record.times.pipeline = {times.pipeline};
    record.times.gradients = {gradients};
    record.times.total = {seconds_since(start)};
    record.times.other = record.times.total - record.times.forward - record.times.backward -
                         record.times.dispatch - record.times.combine - record.times.tensor -
                         record.times.pipeline - record.times.gradients - record.times.optimizer;
    record.tokens_per_second = double(record.tokens) / record.times.total.value;
    return record;
}

}  // namespace moeplan
