#include "cli/accuracy_fit.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/command.hpp"
#include "cli/table.hpp"
#include "core/data_files.hpp"
#include "core/errors.hpp"
#include "core/output_file.hpp"
#include "core/text.hpp"
#include "planner/accuracy/calibrate.hpp"
#include "planner/accuracy/error_bands.hpp"
#include "planner/accuracy/ranking.hpp"
#include "planner/accuracy/summary.hpp"

namespace moeplan::cli {
namespace {

std::string percent(double share) { return fmt::format("{:.1f}", 100 * share); }

std::filesystem::path study_file() {
    return data_folder() / "validation" / "calibration_left_out.json";
}
CalibrationStudy shipped_study() {
    return std::filesystem::exists(study_file())
               ? read_calibration_study(JsonReader::from_file(study_file()))
               : CalibrationStudy{};
}

void print_constants(const Calibration& before, const Calibration& after) {
    Table table({"constant", "before", "after", "range"});
    for (const ConstantFacts& facts : constant_facts())
        table.row({std::string(facts.name), fmt::format("{:.4g}", before[facts.constant]),
                   fmt::format("{:.4g}", after[facts.constant]),
                   fmt::format("{:g} … {:g}", facts.least, facts.most)});
    fmt::print("{}\n", table.text());
}

}  // namespace

EvaluationOptions three_predictions(const std::vector<Record>& records, int threads) {
    EvaluationOptions options;
    options.num_threads = threads;
    options.profiles = shipped_profile_source();
    options.neutral = shipped_profile_source(Calibration());
    for (const auto& [source, calibration] : shipped_study().left_out)
        options.source_left_out[source] = shipped_profile_source(calibration);
    for (const Record& record : records)  // the shipped constants never saw the other sources
        if (const auto* training = std::get_if<TrainingRecord>(&record))
            options.source_left_out.try_emplace(training->source.title, options.profiles);
    return options;
}
int fit_shipped(const std::vector<std::string>& files, const std::string& to,
                const std::string& study_to, int threads) {
    CalibrationStudy study = shipped_study();
    std::vector<std::string> without;
    for (const auto& [source, why] : study.not_fitted) without.push_back(source);
    const std::vector<Record> records = read_record_files(files);
    const ProfileSource profiles = shipped_profile_source();
    const CalibrationCases cases(records, profiles, without, threads);
    if (cases.targets().empty())
        throw InputError("accuracy", "--fit", files.front(), "records with a step time");
    FitOptions options;
    options.progress = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); };
    const Calibration start = shipped_calibration();
    Fit fit = fit_with_sources_left_out(
        cases.targets(), [&](const Calibration& at) { return cases.predict(at); }, start, options);
    study.left_out = fit.left_out;
    fit.calibration.source = std::to_string(cases.targets().size()) + " step times of " +
                             std::to_string(fit.left_out.size()) +
                             " published sources (moeplan accuracy --fit)";
    for (auto& [source, calibration] : study.left_out)
        calibration.source = "the same without " + source;

    // errors with the source left out are what the shipped intervals rest on
    EvaluationOptions evaluated;
    evaluated.num_threads = threads;
    evaluated.profiles = shipped_profile_source(fit.calibration);
    for (const auto& [source, calibration] : study.left_out)
        evaluated.source_left_out[source] = shipped_profile_source(calibration);
    // sources that were kept out of the fit are judged by constants that never saw them
    for (const auto& [source, why] : study.not_fitted)
        evaluated.source_left_out[source] = evaluated.profiles;
    fit.calibration.errors = error_bands(evaluate_training(records, evaluated).rows);

    Json constants = json_header("calibration");
    constants.update(to_json(fit.calibration));
    write_whole(to, constants.dump(2) + "\n");
    const std::filesystem::path beside =
        study_to.empty() ? study_file() : std::filesystem::path(study_to);
    write_whole(beside, to_json(study).dump(2) + "\n");
    print_constants(start, fit.calibration);
    fmt::print("loss {:.5f} -> {:.5f} in {} rounds over {} records; {} and {}\n", fit.loss_before,
               fit.loss_after, fit.rounds, cases.targets().size(), to, beside.string());
    return kDone;
}

int calibrate_profile(const std::string& file, const std::string& to, int threads) {
    if (to.empty()) throw InputError("accuracy", "--out", "", "a file for the calibrated profile");
    const std::vector<Record> records = read_record_files({file});
    const ProfileSource profiles = shipped_profile_source();
    const CalibrationCases cases(records, profiles, {}, threads);
    if (cases.targets().empty()) {
        std::string reason;
        for (const Record& record : records)
            if (const auto* skipped = std::get_if<SkippedRecord>(&record);
                reason.empty() && skipped)
                reason = " (" + skipped->id + ": " + skipped->reason + ")";
        throw InputError(file, "", "no run that can be predicted" + reason,
                         "records with a step time, as validation/published/README.md says");
    }
    if (cases.gpus().size() != 1)
        throw InputError(file, "", "runs on " + join(cases.gpus(), ", "),
                         "runs on one kind of GPU, whose profile is written");
    FitOptions options;
    options.centre = shipped_calibration();
    options.pull = 0.02;  // a few runs move what they show, and leave the rest where it was
    Fit fit = fit_constants(
        cases.targets(), [&](const Calibration& at) { return cases.predict(at); }, options.centre,
        options);
    Profile profile = *profiles(cases.gpus().front());
    fit.calibration.source = std::to_string(cases.targets().size()) + " runs of " + file;
    fit.calibration.errors = options.centre.errors;
    profile.calibration = fit.calibration;
    Json out = json_header("profile");
    out.update(to_json(profile));
    write_whole(to, out.dump(1) + "\n");
    const auto mean_error = [&](const Calibration& at) {
        const std::vector<double> predicted = cases.predict(at);
        double sum = 0;
        for (std::size_t i = 0; i < predicted.size(); ++i)
            sum += std::abs(predicted[i] / cases.targets()[i].measured - 1);
        return sum / static_cast<double>(predicted.size());
    };
    print_constants(options.centre, fit.calibration);
    fmt::print("mean error of {} runs {} % -> {} %; {}\n", cases.targets().size(),
               percent(mean_error(options.centre)), percent(mean_error(fit.calibration)), to);
    return kDone;
}

void print_predictions(const Evaluation& evaluation) {
    Table table({"step times", "records", "median %", "mean %", "p90 %", "predicted/measured"});
    const auto rows = [&](const char* name, Judged judged) {
        for (const char* architecture : {"", "dense", "moe"}) {
            const std::string wanted = architecture;
            const ErrorSummary s = summarize(
                evaluation.rows,
                [&](const AccuracyRow& row) {
                    return row.metric == Metric::step_time &&
                           (wanted.empty() || row.architecture == wanted);
                },
                judged);
            table.row({std::string(name) + (wanted.empty() ? "" : ", " + wanted),
                       std::to_string(s.count), percent(s.median), percent(s.mean), percent(s.p90),
                       fmt::format("{:.2f}", s.bias)});
        }
    };
    rows("fitted", Judged::fitted);
    rows("own source left out", Judged::source_left_out);
    rows("neutral constants", Judged::neutral);
    fmt::print("{}\n", table.text());
    const ErrorSummary all = summarize(
        evaluation.rows, [](const AccuracyRow& row) { return row.metric == Metric::step_time; });
    if (all.coverage)
        fmt::print("80 % intervals, own source left out, cover {} % of the step times\n\n",
                   percent(*all.coverage));
    if (const MemoryVerdicts verdicts = memory_verdicts(evaluation.rows); verdicts.runs > 0)
        fmt::print("by the memory estimate {} of {} runs that took place do not fit\n\n",
                   verdicts.refused, verdicts.runs);
    const Ranking ranking = rank_layouts(evaluation.rows);
    if (ranking.groups.empty()) return;
    Table ranks({"order of runs that differ in layout alone", "sweeps", "runs",
                 "rank correlation: median", "worst", "first pick longer by %: mean", "worst",
                 "best of three: mean"});
    const auto add = [&](const std::string& name, const RankingSummary& s) {
        ranks.row({name, std::to_string(s.sweeps), std::to_string(s.runs),
                   fmt::format("{:.3f}", s.median_correlation),
                   fmt::format("{:.3f}", s.worst_correlation), percent(s.mean_regret_of_one),
                   percent(s.worst_regret_of_one), percent(s.mean_regret_of_three)});
    };
    for (const RankingSummary& family : ranking.families) add(family.family, family);
    add("all", ranking.all);
    fmt::print("{}\n", ranks.text());
}

}  // namespace moeplan::cli
