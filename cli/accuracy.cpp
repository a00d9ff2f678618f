/// `moeplan accuracy`: published measurements, predicted each from its own fields.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/accuracy_fit.hpp"
#include "cli/command.hpp"
#include "cli/inputs.hpp"
#include "cli/progress_bar.hpp"
#include "cli/table.hpp"
#include "core/errors.hpp"
#include "core/output_file.hpp"
#include "planner/accuracy/error_bands.hpp"
#include "planner/accuracy/evaluate.hpp"
#include "planner/accuracy/report.hpp"
#include "planner/accuracy/summary.hpp"

namespace moeplan::cli {
namespace {

struct Words {
    std::vector<std::string> files;
    std::string calibrate, fit, out;  ///< a file of own runs; where the shipped constants go
    OutputWords output;
    std::string rows;
    std::optional<double> max_error;
    int threads = 0;
};

std::string percent(double share) { return fmt::format("{:.1f}", 100 * share); }

std::vector<std::string> cells(const std::string& name, const ErrorSummary& summary) {
    return {name,
            std::to_string(summary.count),
            percent(summary.median),
            percent(summary.mean),
            percent(summary.p90),
            fmt::format("{:.2f}", summary.bias)};
}

void print_errors(const Evaluation& evaluation) {
    const auto head = [](const std::string& first) {
        return Table({first, "records", "median %", "mean %", "p90 %", "predicted/measured"});
    };
    Table metrics = head("metric");
    for (const auto& [name, summary] : summarize_by(evaluation.rows, "metric"))
        metrics.row(cells(name, summary));
    fmt::print("{}\n", metrics.text());
    for (const char* key : {"architecture", "precision", "gpu", "source"}) {
        Table table = head(std::string("step time by ") + key);
        for (const auto& [value, summary] : summarize_by(evaluation.rows, key))
            table.row(cells(value, summary));
        fmt::print("{}\n", table.text());
    }
}

void print_held_out(const Evaluation& evaluation) {
    if (evaluation.held_out.empty()) return;
    Table table({"kernels and collectives", "left out", "points", "median %", "mean %", "p90 %",
                 "predicted/measured"});
    for (const HeldOutSummary& part : summarize_held_out(evaluation.held_out)) {
        std::vector<std::string> row =
            cells(part.kind + (part.variant.empty() ? "" : ", " + part.variant), part.errors);
        row.insert(row.begin() + 1, part.held_out);
        table.row(std::move(row));
    }
    fmt::print("{}\n", table.text());
}

void print_worst(const Evaluation& evaluation) {
    fmt::print("furthest off\n");
    for (const WorstRow& worst : worst_rows(evaluation.rows, Metric::step_time, 10))
        fmt::print("  {:5.2f}  {}\n         {}\n", worst.row->predicted / worst.row->measured,
                   worst.row->id, worst.cause);
    fmt::print("\n");
}

void print_counts(const Evaluation& evaluation) {
    std::map<std::string, std::size_t> assumed, skipped;
    std::size_t whole = 0;
    for (const AccuracyRow& row : evaluation.rows) {
        whole += row.assumed.empty();
        std::set<std::string> keys;
        for (const Assumption& assumption : row.assumed) keys.insert(assumption.key);
        for (const std::string& key : keys) ++assumed[key];
    }
    fmt::print("{} figures predicted: {} from stated fields alone, {} with assumptions\n",
               evaluation.rows.size(), whole, evaluation.rows.size() - whole);
    for (const auto& [key, count] : assumed) fmt::print("  {:4}  {}\n", count, key);
    for (const SkippedRecord& record : evaluation.skipped) {
        const bool counted_by_rule = record.rule == "not_a_target";
        ++skipped[record.rule + (counted_by_rule ? ": " + record.group : ": " + record.reason)];
    }
    fmt::print("{} records skipped\n", evaluation.skipped.size());
    for (const auto& [reason, count] : skipped) fmt::print("  {:4}  {}\n", count, reason);
}

int run(const Words& words) {
    if (!words.calibrate.empty()) return calibrate_profile(words.calibrate, words.out, words.threads);
    if (words.files.empty())
        throw InputError("accuracy", "records", "none", "files of records, or --calibrate FILE");
    if (!words.fit.empty()) return fit_shipped(words.files, words.fit, words.out, words.threads);
    const auto start = std::chrono::steady_clock::now();
    const std::vector<Record> records = read_record_files(words.files);
    ProgressBar bar("accuracy");
    Evaluation evaluation = evaluate(records, three_predictions(records, words.threads));
    add_intervals(evaluation.rows);
    if (!words.rows.empty()) write_whole(words.rows, rows_as_csv(evaluation));
    if (!words.output.quiet() && words.rows != "-") {
        print_predictions(evaluation);
        print_errors(evaluation);
        print_held_out(evaluation);
        print_worst(evaluation);
        print_counts(evaluation);
    }
    write_answer(words.output, to_json(evaluation));
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    std::fprintf(stderr, "%zu records in %.1f s\n", records.size(), seconds);
    if (!words.max_error) return kDone;
    const ErrorSummary all = summarize(
        evaluation.rows, [](const AccuracyRow& row) { return row.metric == Metric::step_time; });
    return all.count > 0 && all.mean <= *words.max_error ? kDone : kNo;
}

}  // namespace

void add_accuracy(CLI::App& app, Run& run_later) {
    auto words = std::make_shared<Words>();
    CLI::App* sub = app.add_subcommand(
        "accuracy", "Published measurements, predicted each from its own fields");
    sub->add_option("records", words->files,
                    "Files of records (validation/published/README.md says in which forms)")
        ->type_name("FILE");
    sub->add_option("--calibrate", words->calibrate,
                    "Runs of your own in the same form: fit the constants to them, from the shipped "
                    "ones on, and write the GPU's profile with them to --out")
        ->type_name("FILE");
    sub->add_option("--fit", words->fit,
                    "Fit the shipped constants to these records (minutes) and write them here; those "
                    "with each source left out go to --out")
        ->type_name("FILE");
    sub->add_option("--out", words->out, "The profile of --calibrate; the study of --fit")
        ->type_name("FILE");
    sub->add_option("--rows", words->rows,
                    "Write one line of CSV a figure, with the parts of the "
                    "step (- = standard output)")
        ->check(why_not_writable)
        ->type_name("FILE");
    sub->add_option("--max-error", words->max_error,
                    "Exit status 1 if the mean error of step times exceeds this share")
        ->check(CLI::NonNegativeNumber)
        ->type_name("SHARE");
    sub->add_option("--threads", words->threads, "Default: all cores; the answer is the same")
        ->check(CLI::Range(1, 1024))
        ->type_name("N");
    add_output_flags(*sub, words->output);
    sub->footer("Example: moeplan accuracy validation/published/training.json --rows rows.csv");
    sub->callback([words, &run_later] { run_later = [words] { return run(*words); }; });
}

}  // namespace moeplan::cli
