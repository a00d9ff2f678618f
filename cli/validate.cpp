/// moeplan validate: the plan's winner, made small enough for this machine, predicted and measured.

#include "planner/validate.hpp"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.hpp"
#include "cli/inputs.hpp"
#include "cli/plan_text.hpp"
#include "cli/progress_bar.hpp"
#include "cli/report/plan_page.hpp"
#include "core/digest.hpp"
#include "core/errors.hpp"
#include "core/output_file.hpp"
#include "core/version.hpp"
#include "model/layout_words.hpp"
#include "planner/plan.hpp"
#include "planner/real_run.hpp"
#include "planner/shrink.hpp"
#include "simulator/step.hpp"

namespace moeplan::cli {
namespace {

struct Words {
    std::string plan, profile, tokens, fidelity = "flow";
    OutputWords output;
    std::vector<std::string> tolerances;
    int candidate = 0, ranks = 2, steps = 0, hidden = 128, layers = 4, sequence = 256;
};

/// "step_time_s=0.2"
Tolerances read_tolerances(const std::vector<std::string>& words) {
    Tolerances out = default_tolerances();
    for (const std::string& word : words) {
        const auto equals = word.find('=');
        std::size_t used = 0;
        double value = -1;
        if (equals != std::string::npos && equals > 0) try {
                value = std::stod(word.substr(equals + 1), &used);
            } catch (const std::exception&) {
                used = 0;
            }
        if (used == 0 || used != word.size() - equals - 1 || !(value >= 0))
            throw InputError("--tolerance", "", word, "FIELD=SHARE, as step_time_s=0.2");
        out[word.substr(0, equals)] = value;
    }
    return out;
}

int run(const Words& words) {
    const StoredPlan plan = plan_from_json(JsonReader::from_file(words.plan));
    if (plan.candidates.empty()) {
        std::fprintf(stderr, "moeplan: %s has no candidate: nothing fitted\n", words.plan.c_str());
        return kNo;
    }
    if (static_cast<std::size_t>(words.candidate) >= plan.candidates.size())
        throw InputError("--candidate", "", std::to_string(words.candidate),
                         "0 … " + std::to_string(plan.candidates.size() - 1));
    const Tolerances tolerances = read_tolerances(words.tolerances);
    const auto fidelity = from_name<Fidelity>(words.fidelity);
    if (!fidelity || *fidelity == Fidelity::real_run)
        throw InputError("--fidelity", "", words.fidelity, "closed-form or flow");

    Here here;
    here.cluster = load_cluster("localhost");
    here.profile = std::make_shared<const Profile>(load_profile(words.profile));
    here.num_ranks = words.ranks;
    here.largest_hidden_size = words.hidden;
    here.most_layers = words.layers;
    here.longest_sequence = words.sequence;
    const StepCase& planned = plan.candidates[static_cast<std::size_t>(words.candidate)];
    const Shrunk shrunk = shrink(planned, here);

    const StepReport predicted =
        *fidelity == Fidelity::flow ? simulate_step(shrunk.step) : estimate_step(shrunk.step);

    ProgressBar bar("real run");
    RealRunOptions options;
    options.tokens = words.tokens;
    options.progress = bar.callback();
    if (words.steps > 0) options.least_steps = options.most_steps = words.steps;
    const StepReport measured = measure_step(shrunk.step, options);
    const Validation validation = validate(predicted, measured, tolerances);

    Json answer = json_header("validation");
    answer["plan"] = words.plan;
    answer["candidate"] = words.candidate;
    answer["shrunk"] = {{"model", to_json(shrunk.step.model)},
                        {"layout", layout_to_json(shrunk.step.layout, shrunk.step.schedule)},
                        {"changes", shrunk.changes},
                        {"checked", shrunk.checked},
                        {"unchecked", shrunk.unchecked}};
    answer["profile"] = {{"name", here.profile->name}, {"digest", here.profile->digest}};
    answer["fields"] = to_json(validation);
    answer["passed"] = validation.passed;
    const std::optional<PaceShift> pace = pace_shift(*here.profile, predicted, measured);
    if (pace) answer["machine_pace"] = to_json(*pace);
    answer["predicted"] = to_json(predicted);
    answer["measured"] = to_json(measured);
    answer["made"] = {
        {"version", kVersion},
        {"seed", shrunk.step.seed},
        {"digests", {{"plan", digest_of_file(words.plan)}, {"profile", here.profile->digest}}}};
    write_answer(words.output, answer);
    if (!words.output.html.empty()) {
        Page page("Validation", shrunk.step.model.name);
        add_validation_sections(page, JsonReader::from_value(answer, "validation"));
        write_whole(words.output.html, page.html());
    }
    if (!words.output.quiet())
        std::fputs(validation_text(validation, shrunk, measured, pace).c_str(), stdout);
    return validation.passed ? kDone : kNo;
}

}  // namespace

void add_validate(CLI::App& app, Run& run_later) {
    auto words = std::make_shared<Words>();
    CLI::App* sub = app.add_subcommand(
        "validate", "A plan's winner, made small enough for this machine, predicted and measured");
    sub->add_option("--plan", words->plan, "A file of moeplan plan --json")
        ->required()
        ->type_name("FILE");
    sub->add_option("--profile", words->profile, "This machine's, a file of moeplan profile")
        ->required()
        ->type_name("FILE");
    sub->add_option("--candidate", words->candidate, "Index in the plan (default 0, the best)")
        ->check(CLI::NonNegativeNumber);
    sub->add_option("--ranks", words->ranks, "Processes of the real run (default 2)")
        ->check(CLI::Range(1, 4096));
    sub->add_option("--steps", words->steps,
                    "Measured steps (default: until the median is known well)")
        ->check(CLI::Range(1, 1000000));
    sub->add_option("--tokens", words->tokens, "A tokens file to train on (default: invented text)")
        ->type_name("FILE");
    sub->add_option("--hidden-size", words->hidden,
                    "Width that the model is shrunk to (default 128)")
        ->check(CLI::Range(8, 65536));
    sub->add_option("--layers", words->layers, "Layers that are kept (default 4)")
        ->check(CLI::Range(1, 1000));
    sub->add_option("--seq", words->sequence, "Longest sequence (default 256)")
        ->check(CLI::Range(8, 1 << 20));
    sub->add_option("--tolerance", words->tolerances,
                    "FIELD=SHARE, several times (default step_time_s=0.2 tokens_per_second=0.25)");
    sub->add_option("--fidelity", words->fidelity,
                    "Of the prediction: flow (default) or closed-form");
    add_output_flags(*sub, words->output);
    sub->footer(
        "Exit status 1 if a tolerance is missed; the figures are printed whatever they are.\n"
        "Example: moeplan validate --plan build/quickstart/plan.json --profile "
        "build/quickstart/profile.json --ranks 2 --steps 10 --tolerance step_time_s=1 --tolerance "
        "tokens_per_second=10");
    sub->callback([words, &run_later] { run_later = [words] { return run(*words); }; });
}

}  // namespace moeplan::cli
