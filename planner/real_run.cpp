#include "planner/real_run.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "core/child_process.hpp"
#include "core/data_files.hpp"
#include "core/errors.hpp"
#include "core/output_file.hpp"
#include "core/version.hpp"
#include "kernels/backend.hpp"
#include "kernels/machine_pace.hpp"
#include "model/layout_words.hpp"
#include "model/op_counts.hpp"
#include "model/train.hpp"

namespace moeplan {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double median_of(std::vector<double> values) {
    if (values.empty()) return 0;
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    const double upper = *middle;
    return values.size() % 2 == 1 ? upper
                                  : 0.5 * (upper + *std::max_element(values.begin(), middle));
}
/// Median absolute deviation over median.
double spread_of(std::vector<double> values) {
    const double median = median_of(values);
    for (double& value : values) value = std::abs(value - median);
    return median > 0 ? median_of(std::move(values)) / median : 0;
}

/// Whether the median of the steps so far is known to 1 % (its standard error: 1.253 · 1.4826 MAD /
/// √n).
bool is_settled(const std::vector<double>& times, int least) {
    return static_cast<int>(times.size()) >= least &&
           1.253 * 1.4826 * spread_of(times) / std::sqrt(static_cast<double>(times.size())) < 0.01;
}

std::vector<StepRecord> measured_steps(const TrainResult& result, int warm_up) {
    const auto first =
        result.steps.begin() +
        std::min<std::ptrdiff_t>(warm_up, static_cast<std::ptrdiff_t>(result.steps.size()) - 1);
    return {first, result.steps.end()};
}

StepReport report_of(const TrainResult& result, const std::vector<StepRecord>& steps,
                     std::int64_t tokens) {
    StepReport report;
    report.fidelity = Fidelity::real_run;
    const auto part = [&](const auto& of) {
        std::vector<double> values;
        for (const StepRecord& step : steps) values.push_back(of(step.times).value);
        return Seconds{median_of(std::move(values))};
    };
    report.step_time = part([](const StepTimes& t) { return t.total; });
    TimeBreakdown& parts = report.exposed;
    parts.compute = part([](const StepTimes& t) { return t.forward + t.backward; });
    parts.dispatch = part([](const StepTimes& t) { return t.dispatch; });
    parts.combine = part([](const StepTimes& t) { return t.combine; });
    parts.tensor_comm = part([](const StepTimes& t) { return t.tensor; });
    // A stage mostly waits for its neighbours: what the exchange itself takes is not told apart.
    parts.bubble = part([](const StepTimes& t) { return t.pipeline; });
    parts.data_comm = part([](const StepTimes& t) { return t.gradients; });
    parts.optimizer = part([](const StepTimes& t) { return t.optimizer; });
    // Medians of parts need not add up to the median of the sum: the remainder is the host's.
    parts.host = std::max(Seconds{}, report.step_time - parts.total());
    parts.compute += report.step_time - parts.total();
    report.busy = parts;
    report.tokens_per_second =
        report.step_time.value > 0 ? static_cast<double>(tokens) / report.step_time.value : 0;
    report.peak_memory = result.peak_memory;
    report.busy_by_rank = result.busy_by_rank;
    if (!steps.empty())
        for (std::size_t layer = 0; layer < steps.front().rank_imbalance.size(); ++layer) {
            double sum = 0;
            for (const StepRecord& step : steps) sum += step.rank_imbalance[layer];
            report.load_imbalance.push_back(sum / static_cast<double>(steps.size()));
        }
    std::vector<double> totals, paces;
    for (const StepRecord& step : steps) {
        totals.push_back(step.times.total.value);
        if (step.machine_pace) paces.push_back(step.machine_pace->value);
    }
    if (!paces.empty()) report.machine_pace = median_of(std::move(paces));
    report.relative_spread = spread_of(std::move(totals));
    report.basis.measured = 1;
    report.assumptions.push_back("median of " + std::to_string(steps.size()) +
                                 " measured steps on " + std::to_string(result.world_size) +
                                 " ranks of this machine");
    return report;
}

/// Beside it stand model.json and layout.json.
Json job_json(const StepCase& step, const RealRunOptions& options) {
    Json job;
    job["seed"] = step.seed;
    job["tokens"] = options.tokens.string();
    job["trace"] = options.trace.string();
    job["warm_up"] = options.warm_up;
    job["least_steps"] = options.least_steps;
    job["most_steps"] = options.most_steps;
    job["longest_s"] = options.longest.value;
    return job;
}

}  // namespace

StepReport measure_on_ranks(const ModelSpec& model, const ParallelLayout& layout,
                            const StepSchedule& schedule, std::uint64_t seed,
                            const RealRunOptions& options, Communicator& world) {
    TrainOptions train_options;
    train_options.model = model;
    train_options.layout = layout;
    train_options.schedule = schedule;
    train_options.seed = Seed{seed};
    train_options.optimizer.learning_rate = 1e-3;
    train_options.optimizer.warmup_steps = 0;
    Packing packing;
    packing.sequence_length = schedule.sequence_length;
    packing.held_out = 0;
    packing.seed = Seed{seed};
    const std::int64_t tokens = static_cast<std::int64_t>(schedule.micro_batch_size) *
                                schedule.num_micro_batches * layout.data_parallel_size *
                                schedule.sequence_length;
    const TokenData text =
        options.tokens.empty()
            ? synthetic_tokens(model.vocab_size, std::max<std::int64_t>(200000, 4 * tokens), 4,
                               Seed{seed})
            : read_tokens(options.tokens);
    train_options.data = std::make_shared<const PackedTokens>(pack(text, Part::train, packing));
    train_options.data_digest = text.digest;
    train_options.steps = options.warm_up + options.most_steps;
    train_options.trace = options.trace;
    train_options.trace_first = options.warm_up;
    std::vector<double> times;
    const auto begin = Clock::now();
    TrainCallbacks callbacks;
    callbacks.on_step = [&](const StepRecord& record) {
        if (record.step < options.warm_up) return;
        times.push_back(record.times.total.value);
        const double spent = std::chrono::duration<double>(Clock::now() - begin).count();
        if (options.progress)
            options.progress(std::min(1.0, spent / options.longest.value), "step");
    };
    callbacks.stop = [&] {  // rank 0 alone sees the records; its word ends the run everywhere
        const double spent = std::chrono::duration<double>(Clock::now() - begin).count();
        return world.rank() == 0 && !times.empty() &&
               (is_settled(times, options.least_steps) || spent > options.longest.value);
    };
    MachinePace pace(backend_for(Device::cpu), world);
    callbacks.machine_pace = [&] { return pace.now(); };
    const TrainResult result = train(train_options, world, callbacks);
    return report_of(result, measured_steps(result, options.warm_up), tokens);
}

void measure_worker(const fs::path& job, const fs::path& report) {
    const JsonReader reader = JsonReader::from_file(job);
    const ModelSpec model = load_model((job.parent_path() / "model.json").string());
    const fs::path layout_file = job.parent_path() / "layout.json";
    const ResolvedLayout layout =
        resolve_layout(read_layout_words(layout_file.string()), model, std::nullopt);
    RealRunOptions options;
    options.tokens = reader.at("tokens").text();
    options.trace = reader.at("trace").text();
    options.warm_up = reader.at("warm_up").count();
    options.least_steps = reader.at("least_steps").count(1);
    options.most_steps = reader.at("most_steps").count(1);
    options.longest = {reader.at("longest_s").number()};
    Communicator world = world_communicator();
    const StepReport measured = measure_on_ranks(
        model, layout.layout, layout.schedule,
        static_cast<std::uint64_t>(reader.at("seed").value().get<std::uint64_t>()), options, world);
    if (world.rank() == 0) write_whole(report, to_file_text(to_json(measured)));
}

StepReport measure_step(const StepCase& step, const RealRunOptions& options) {
    const int ranks = world_size(step.layout);
    StepReport report;
    if (ranks == 1 && launched_ranks() == 1) {
        Communicator alone;
        report =
            measure_on_ranks(step.model, step.layout, step.schedule, step.seed, options, alone);
    } else {
        const ScratchFolder folder;
        const fs::path job = folder.path() / "job.json", answer = folder.path() / "report.json";
        write_whole(job, to_file_text(job_json(step, options)));
        write_whole(folder.path() / "model.json", to_file_text(to_json(step.model)));
        write_whole(folder.path() / "layout.json",
                    to_file_text(layout_to_json(step.layout, step.schedule)));
        ChildOptions child;
        child.environment = mpirun_environment();
        const auto begin = Clock::now();
        child.poll = [&] {
            if (options.progress)
                options.progress(
                    std::min(0.99, std::chrono::duration<double>(Clock::now() - begin).count() /
                                       (options.longest.value + 2)),
                    "steps on " + std::to_string(ranks) + " ranks");
            return true;
        };
        const fs::path binary = options.binary.empty() ? own_binary() : options.binary;
        const ChildResult result = run_child(
            mpirun_words(ranks, {binary.string(), "_measure", job.string(), answer.string()}),
            child);
        if (result.status == 2) throw InputError("real run", "", "", result.error);
        if (result.status != 0 || !fs::exists(answer))
            throw EnvironmentError("the real run on " + std::to_string(ranks) +
                                   " ranks ended with status " + std::to_string(result.status) +
                                   ": " + result.error);
        report = report_from_json(JsonReader::from_file(answer));
    }
    if (step.profile) {
        const auto& peaks = step.profile->roofline.peak;
        const auto peak = peaks.find(Precision::fp32);
        if (peak != peaks.end())
            report.mfu = flops_per_token(step.model, step.schedule.sequence_length)
                             .training_causal_half.value *
                         report.tokens_per_second / (peak->second.value * ranks);
    }
    report.made = {kVersion, digest_of(step), step.seed};
    return report;
}

StepReport measure_step(const StepCase& step) { return measure_step(step, {}); }

}  // namespace moeplan
