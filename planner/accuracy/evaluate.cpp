#include "planner/accuracy/evaluate.hpp"

#include <algorithm>
#include <map>
#include <mutex>

#include "core/errors.hpp"
#include "core/text.hpp"
#include "model/op_counts.hpp"
#include "planner/accuracy/collective_records.hpp"
#include "planner/accuracy/kernel_records.hpp"
#include "planner/parallel_for.hpp"

namespace moeplan {
namespace {

std::string lower(std::string text) {
    std::transform(text.begin(), text.end(), text.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return text;
}

std::string layout_words(const TrainingRecord& record) {
    std::string out;
    const auto add = [&](const char* name, int size) {
        if (size > 1) out += name + std::string(" ") + std::to_string(size) + ", ";
    };
    add("tp", record.tp);
    add("pp", record.pp);
    add("vpp", record.vpp);
    add("cp", record.cp);
    add("ep", record.ep);
    return out + "micro-batch " + std::to_string(record.micro_batch);
}

/// What a source states of software and routing beyond framework and release. Dispatcher, overlap,
/// sharding and recomputation are not part of it: a planner chooses them as it does the layout.
std::string software_words(const TrainingRecord& record) {
    const SoftwareState& state = record.software.state;
    std::string out = state.framework + "@" + state.release;
    for (const std::string& part : {state.fusion, state.graph_scope, state.fp8_recipe,
                                    record.routing.value_or("balanced")})
        out += "; " + part;
    return out;
}

AccuracyRow row_of(const TrainingRecord& record, const RecordCase& run) {
    AccuracyRow row;
    row.id = record.id;
    row.source = record.source.title;
    row.gpu = record.gpu;
    row.precision = std::string(name_of(record.precision));
    row.architecture = first_moe(record.model) ? "moe" : "dense";
    row.framework = record.software.state.framework;
    row.release = record.software.state.release;
    row.sweep = record.sweep;
    row.model = record.model_name;
    row.layout = layout_words(record);
    row.software = software_words(record);
    row.gpus = record.gpus;
    row.seq = record.seq;
    row.global_batch = record.global_batch;
    row.assumed = run.assumed;
    row.warnings = run.warnings;
    row.fits = run.fits;
    row.notes = record.notes;
    if (record.step_time)
        for (const OtherRelease& other : record.other_releases)
            if (other.tokens_per_second > 0)
                row.other_releases.emplace_back(
                    other.release, 1.0 * record.seq * record.global_batch / record.gpus /
                                       other.tokens_per_second / record.step_time->value);
    return row;
}

/// Rows of one record, or why there are none.
struct Outcome {
    std::vector<AccuracyRow> rows;
    std::optional<SkippedRecord> skipped;
};

Outcome predict(const TrainingRecord& record, const EvaluationOptions& options) {
    Outcome out;
    auto built = case_of(record, options.profiles);
    if (auto* skipped = std::get_if<SkippedRecord>(&built)) {
        out.skipped = std::move(*skipped);
        return out;
    }
    RecordCase& run = std::get<RecordCase>(built);
    StepReport report;
    try {
        report = estimate_step(run.step);
    } catch (const InputError& error) {
        out.skipped = SkippedRecord{record.id, "training", record.source.title, error.what(),
                                    "not_simulated"};
        return out;
    }
    AccuracyRow base = row_of(record, run);
    base.exposed = report.exposed;
    base.busy = report.busy;
    base.predicted = report.step_time.value;
    const auto again = [&](const ProfileSource& profiles) -> std::optional<double> {
        if (!profiles || !(record.step_time || record.tflops_per_gpu)) return std::nullopt;
        run.step.profile = profiles(record.gpu);
        return estimate_step(run.step).step_time.value;
    };
    base.predicted_neutral = again(options.neutral);
    if (const auto left_out = options.source_left_out.find(record.source.title);
        left_out != options.source_left_out.end())
        base.predicted_source_left_out = again(left_out->second);
    if (record.step_time) {
        AccuracyRow row = base;
        row.metric = record.sweep.empty() ? Metric::step_time : Metric::step_time_of_sweep;
        row.measured = record.step_time->value;
        out.rows.push_back(std::move(row));
    } else if (record.tflops_per_gpu) {
        std::string convention;
        if (const auto time = step_time_of_rate(record, convention)) {
            AccuracyRow row = base;
            row.metric = Metric::step_time_of_rate;
            row.measured = time->value;
            if (!convention.empty())
                row.assumed.push_back({"tflops_convention", convention, "unstated"});
            out.rows.push_back(std::move(row));
        } else if (!record.peak_memory) {
            out.skipped =
                SkippedRecord{record.id, "training", record.source.title,
                              "a rate of flops counted by a convention that is not known (\"" +
                                  record.tflops_convention + "\")",
                              "convention"};
        }
    }
    if (record.peak_memory && !report.peak_memory.empty()) {
        AccuracyRow row = base;
        row.metric = record.peak_memory_kind == "reserved" ? Metric::peak_memory_reserved
                                                           : Metric::peak_memory_allocated;
        row.measured = record.peak_memory->value;
        row.predicted =
            std::max_element(report.peak_memory.begin(), report.peak_memory.end())->value;
        row.predicted_neutral = row.predicted_source_left_out = std::nullopt;
        out.rows.push_back(std::move(row));
    }
    return out;
}

}  // namespace

template <>
const EnumNames<Metric>& enum_names<Metric>() {
    static const EnumNames<Metric> names = {
        {Metric::step_time, "step_time"},
        {Metric::step_time_of_sweep, "step_time_of_sweep"},
        {Metric::step_time_of_rate, "step_time_of_rate"},
        {Metric::peak_memory_allocated, "peak_memory_allocated"},
        {Metric::peak_memory_reserved, "peak_memory_reserved"}};
    return names;
}

ProfileSource shipped_profile_source(std::optional<Calibration> calibration) {
    struct Cache {
        std::mutex mutex;
        std::map<std::string, std::shared_ptr<const Profile>> profiles;
    };
    auto cache = std::make_shared<Cache>();
    return [cache, calibration = std::move(calibration)](const std::string& gpu) {
        const std::lock_guard lock(cache->mutex);
        auto& found = cache->profiles[gpu];
        if (!found) {
            Profile profile = load_profile(gpu);
            if (calibration) profile.calibration = *calibration;
            found = std::make_shared<const Profile>(std::move(profile));
        }
        return found;
    };
}

std::optional<Seconds> step_time_of_rate(const TrainingRecord& record, std::string& convention) {
    const TokenFlops flops = flops_per_token(record.model, record.seq);
    const std::string stated = lower(record.tflops_convention);
    const double rate = *record.tflops_per_gpu * 1e12 * record.gpus,
                 tokens = 1.0 * record.seq * record.global_batch;
    double each = 0;
    if (stated == "causal attention") {
        each = flops.training_causal_half.value;
    } else if (stated == "full attention") {
        each = flops.training.value;
    } else if (stated == "full attention + recomputation") {
        each = flops.training.value + flops.forward.value;
    } else if (!stated.empty()) {
        return std::nullopt;
    } else if (record.software.state.framework == "megatron-core") {
        // Megatron-Core halves the causal scores since 2025; its 0.x releases before 0.10 did not.
        const std::string& release = record.software.state.release;
        const bool early = release.starts_with("0.") && release < "0.10" && release.size() <= 3;
        convention = early ? "full attention" : "causal attention";
        each = (early ? flops.training : flops.training_causal_half).value;
    } else {
        return std::nullopt;
    }
    return Seconds{each * tokens / rate};
}

Evaluation evaluate_training(const std::vector<Record>& records, const EvaluationOptions& options) {
    std::vector<Outcome> outcomes(records.size());
    parallel_for(
        records.size(), options.num_threads,
        [&](std::size_t i) {
            if (const auto* training = std::get_if<TrainingRecord>(&records[i]))
                outcomes[i] = predict(*training, options);
            else if (const auto* skipped = std::get_if<SkippedRecord>(&records[i]))
                outcomes[i].skipped = *skipped;
        },
        [&](std::size_t done) {
            if (options.progress) options.progress(done, records.size());
        });
    Evaluation out;
    for (Outcome& outcome : outcomes) {
        if (outcome.skipped) out.skipped.push_back(std::move(*outcome.skipped));
        for (AccuracyRow& row : outcome.rows) out.rows.push_back(std::move(row));
    }
    return out;
}

Evaluation evaluate(const std::vector<Record>& records, const EvaluationOptions& options) {
    Evaluation out = evaluate_training(records, options);
    std::vector<CurveRecord> curves;
    for (const Record& record : records)
        if (const auto* curve = std::get_if<CurveRecord>(&record)) curves.push_back(*curve);
    for (HeldOutAnswers& answers :
         std::array{predict_kernel_records(curves), predict_collective_records(curves)}) {
        for (HeldOutRow& row : answers.rows) out.held_out.push_back(std::move(row));
        for (SkippedRecord& skipped : answers.skipped) out.skipped.push_back(std::move(skipped));
    }
    return out;
}

}  // namespace moeplan
