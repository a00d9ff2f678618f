/// `moeplan quickstart`: the whole line on this machine, from text to a checked plan, each part by
/// the command that a user would type.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>
#include <thread>

#include "cli/command.hpp"
#include "cli/inputs.hpp"
#include "cli/progress_bar.hpp"
#include "core/child_process.hpp"
#include "core/data_files.hpp"
#include "core/errors.hpp"
#include "core/output_file.hpp"
#include "core/quantity_text.hpp"
#include "core/stop_signal.hpp"
#include "core/text.hpp"
#include "model/text/prepare.hpp"
#include "traces/fit.hpp"
#include "traces/routing_trace.hpp"

namespace moeplan::cli {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

struct QuickstartOptions {
    std::string out = "build/quickstart", data = "debian";
    int steps = 130, ranks = 2;
    std::uint64_t seed = 0;
    bool seed_given = false;
};

/// Share of the whole run that each part takes on two cores: only the progress bar rests on it.
struct Part {
    std::string name;
    double seconds;
};

/// A part ended badly: the quickstart ends with its status, and what was made so far stays.
struct PartFailed {
    int status;
    std::string message;
};

/// One number of each line of a training log.
std::vector<double> losses(const fs::path& log) {
    std::vector<double> out;
    std::ifstream in(log);
    std::string line;
    while (std::getline(in, line)) {
        const Json step = Json::parse(line, nullptr, false);
        if (step.is_object() && step.contains("loss") && step["loss"].is_number())
            out.push_back(step["loss"].get<double>());
    }
    return out;
}

double mean_of_last(const std::vector<double>& values, std::size_t count) {
    count = std::min(count, values.size());
    return std::accumulate(values.end() - static_cast<std::ptrdiff_t>(count), values.end(), 0.0) /
           static_cast<double>(count);
}

std::string fixed(double value, int digits) { return fmt::format("{:.{}f}", value, digits); }

class Quickstart {
  public:
    explicit Quickstart(QuickstartOptions options)
        : options_(std::move(options)), out_(options_.out), bar_("quickstart") {}

    int run();

  private:
    struct System {
        std::string name, model, title;
    };
    static constexpr int kSystems = 3;
    const System systems_[kSystems] = {{"top_k", "tiny-top-k", "top-k"},
                                       {"mh_moe", "tiny-mh-moe", "MH-MoE"},
                                       {"emo", "tiny-emo", "EMO"}};
    const std::vector<Part> parts_ = {{"text", 12},    {"top_k", 30},    {"mh_moe", 45},
                                      {"emo", 40},     {"profile", 45},  {"plan", 70},
                                      {"simulate", 3}, {"validate", 20}, {"report", 3}};

    void prepare_text_files();
    void train(const System&);
    void describe_plan();
    void describe_validation();
    void simulate_winner();
    void moeplan(const std::string& part, std::vector<std::string> words,
                 const std::function<std::string()>& doing = {}, int ranks = 1);
    void show(const std::string& part, double done, std::string_view doing);
    void said(const std::string& line) { lines_.push_back(line); }
    Json answer(const std::string& name) const {
        return JsonReader::from_file(out_ / name).value();
    }

    QuickstartOptions options_;
    fs::path out_;
    ProgressBar bar_;
    std::vector<std::string> lines_, typed_;
    std::string tokens_file_;
    std::map<std::string, double> e_rho_;
};

void Quickstart::show(const std::string& part, double done, std::string_view doing) {
    double before = 0, all = 0, own = 0;
    bool reached = false;
    for (const auto& [name, seconds] : parts_) {
        if (name == part) {
            own = seconds;
            reached = true;
        }
        if (!reached) before += seconds;
        all += seconds;
    }
    bar_.show((before + own * std::clamp(done, 0.0, 1.0)) / all, doing);
}

/// Runs a subcommand of this binary; its words and its output are kept in DIR/log.
void Quickstart::moeplan(const std::string& part, std::vector<std::string> words,
                         const std::function<std::string()>& doing, int ranks) {
    if (options_.seed_given) words.insert(words.end(), {"--seed", std::to_string(options_.seed)});
    typed_.push_back((ranks > 1 ? "mpirun -n " + std::to_string(ranks) + " " : "") + "moeplan " +
                     join(words, " "));
    words.insert(words.begin(), own_binary().string());
    if (ranks > 1) words = mpirun_words(ranks, words);
    const fs::path log = out_ / "log" / (part + ".txt");
    const double expected = std::find_if(parts_.begin(), parts_.end(), [&](const Part& p) {
                                return p.name == part;
                            })->seconds;
    const auto begin = Clock::now();
    ChildOptions options;
    options.log = log;
    if (ranks > 1) {
        options.environment = mpirun_environment();
        options.told_by = SIGUSR1;
    }
    options.poll = [&] {
        const double spent = std::chrono::duration<double>(Clock::now() - begin).count();
        show(part, 1 - std::exp(-1.5 * spent / expected), doing ? doing() : typed_.back());
        return true;
    };
    const ChildResult result = run_child(words, options);
    if (result.status == kDone || (part == "validate" && result.status == kNo)) return;
    std::ifstream in(log);
    std::stringstream text;
    text << in.rdbuf();
    std::string tail = text.str();
    if (tail.size() > 2000) tail = "…" + tail.substr(tail.size() - 2000);
    const std::string message = "quickstart: `" + typed_.back() + "` ended with status " +
                                std::to_string(result.status) + " (" + log.string() + "):\n" + tail;
    throw PartFailed{result.status, message};
}

void Quickstart::prepare_text_files() {
    TextOptions text;
    text.data = options_.data;
    const PreparedText prepared =
        prepare_text(text, [&](double done, std::string_view doing) { show("text", done, doing); });
    write_whole(out_ / "corpus.json", prepared.manifest);
    // Kept with the rest: training on another machine, with a GPU and no tokeniser, reads it too.
    tokens_file_ = (out_ / "tokens.bin").string();
    write_tokens(tokens_file_, prepared.tokens);
    const Json manifest = Json::parse(prepared.manifest);
    said("Text: " + std::to_string(prepared.tokens.document_ends.size()) + " documents, " +
         std::to_string(prepared.tokens.tokens.size()) + " tokens, " +
         std::to_string(prepared.tokens.domains.size()) + " domains (" +
         join(prepared.tokens.domains, ", ") + ").");
}

/// The best candidate, its runners-up by heads and experts, and what was refused.
void Quickstart::describe_plan() {
    const Json plan = answer("plan.json");
    const Json& candidates = plan.at("candidates");
    said("Plan of mixtral-8x7b for 16 DGX H100 nodes (128 GPUs): " +
         std::to_string(plan.value("evaluated", 0)) + " layouts weighed, " +
         std::to_string(candidates.size()) + " kept.");
    std::vector<std::string> seen;
    for (const Json& candidate : candidates) {
        const Json& moe = candidate.at("model");
        const std::string name =
            moe.is_string() ? moe.get<std::string>() : moe.value("name", std::string("?"));
        if (std::find(seen.begin(), seen.end(), name) != seen.end())
            continue;  // the best layout of each model
        seen.push_back(name);
        if (seen.size() > 4) break;
        const Json& predicted = candidate.at("predicted");
        std::string layout;
        for (const char* key : {"tp", "cp", "pp", "dp", "ep", "etp", "micro_batch"})
            if (candidate.at("layout").contains(key))
                layout += std::string(layout.empty() ? "" : " ") + key + " " +
                          candidate["layout"][key].dump();
        double fullest = 0;
        for (const Json& bytes : predicted.value("peak_memory_bytes", Json::array()))
            fullest = std::max(fullest, bytes.get<double>());
        std::string quality;
        if (candidate.contains("quality") && candidate["quality"].is_object())
            quality = ", loss " + fixed(candidate["quality"].at("low").get<double>(), 3) + "…" +
                      fixed(candidate["quality"].at("high").get<double>(), 3);
        said((seen.size() == 1 ? "  recommended: " : "  then: ") + name + ", " + layout + ": " +
             to_text(Seconds{predicted.at("step_time_s").get<double>()}) + " a step, " +
             fmt::format("{:.0f}", predicted.at("tokens_per_second").get<double>()) +
             " tokens/s, MFU " + fixed(predicted.at("mfu").get<double>(), 2) + ", " +
             to_text(Bytes{fullest}) + quality + ".");
    }
    if (!candidates.empty()) {
        const Json basis = candidates[0].at("predicted").value("basis", Json::object());
        std::string words;
        for (const auto& [name, share] : basis.items())
            if (share.get<double>() > 0.005)
                words += (words.empty() ? "" : ", ") +
                         fmt::format("{:.0f} % ", share.get<double>() * 100) + name;
        said("  Kernel times rest on: " + (words.empty() ? "nothing stated" : words) +
             "; no GPU has measured them here.");
    }
}

/// The plan's winner once more, with every bar of its timeline.
void Quickstart::simulate_winner() {
    const Json plan = answer("plan.json");
    if (plan.at("candidates").empty()) return;
    const Json& winner = plan["candidates"][0];
    Json model = json_header("model");
    model.update(winner.at("model"));
    write_whole(out_ / "winner-model.json", to_file_text(model));
    write_whole(out_ / "winner-layout.json", to_file_text(winner.at("layout")));
    moeplan("simulate",
            {"simulate", "--model", (out_ / "winner-model.json").string(), "--layout",
             (out_ / "winner-layout.json").string(), "--cluster", "dgx-h100:16", "--routing",
             "document-pools:" + fixed(e_rho_["top_k"], 3), "--timeline",
             (out_ / "step.timeline.json").string(), "--json", (out_ / "step.json").string()});
}

/// Prediction beside measurement, the step time first.
void Quickstart::describe_validation() {
    const Json validation = answer("validation.json");
    said(std::string("Checked here by a real run on ") + std::to_string(options_.ranks) +
         " ranks of the plan's winner, shrunk to this machine: " +
         (validation.value("passed", false) ? "within tolerance." : "NOT within tolerance."));
    static const std::vector<std::string> shown = {"step_time_s",        "exposed.compute_s",
                                                   "exposed.dispatch_s", "exposed.data_comm_s",
                                                   "tokens_per_second",  "peak_memory_bytes.max"};
    for (const Json& field : validation.at("fields")) {
        const std::string name = field.at("field").get<std::string>();
        if (std::find(shown.begin(), shown.end(), name) == shown.end()) continue;
        if (field.at("predicted").get<double>() == 0 && field.at("measured").get<double>() == 0)
            continue;
        const bool time = name.ends_with("_s");
        const auto text = [&](const char* key) {
            return time ? to_text(Seconds{field.at(key).get<double>()})
                        : fmt::format("{:.4g}", field.at(key).get<double>());
        };
        said("  " + name + ": predicted " + text("predicted") + ", measured " + text("measured") +
             " (" + fmt::format("{:+.1f} %", field.at("relative_error").get<double>() * 100) +
             ").");
    }
    if (const auto pace = validation.find("machine_pace"); pace != validation.end())
        said(fmt::format("  at the machine's pace of the run ({:+.0f} % of the profile's): predicted "
                         "{} ({:+.1f} %).",
                         100 * (pace->at("slower").get<double>() - 1),
                         to_text(Seconds{pace->at("predicted_step_time_s").get<double>()}),
                         100 * pace->at("relative_error").get<double>()));
}

/// Trains one of the three small models on all ranks and records the routing of the last quarter of
/// its steps.
void Quickstart::train(const System& system) {
    const fs::path log = out_ / (system.name + ".jsonl"),
                   trace = out_ / (system.name + ".trace.h5");
    std::vector<std::string> words = {"train",
                                      "--model",
                                      system.model,
                                      "--data",
                                      tokens_file_,
                                      "--steps",
                                      std::to_string(options_.steps),
                                      "--seq",
                                      "256",
                                      "--micro-batch",
                                      "4",
                                      "--global-batch",
                                      "8",
                                      "--ep",
                                      std::to_string(options_.ranks),
                                      "--trace",
                                      trace.string(),
                                      "--trace-from",
                                      std::to_string(options_.steps * 3 / 4),
                                      "--log",
                                      log.string()};
    moeplan(
        system.name, words,
        [&] {
            const auto seen = losses(log);
            return system.title + (seen.empty() ? ": training begins"
                                                : ": step " + std::to_string(seen.size()) + " of " +
                                                      std::to_string(options_.steps) + ", loss " +
                                                      fixed(seen.back(), 2));
        },
        options_.ranks);
    const auto seen = losses(log);
    if (seen.size() < 2) throw PartFailed{kNo, "quickstart: " + log.string() + " holds no losses"};
    const auto late = mean_of_last(seen, 5);
    const TraceReader reader(trace);
    const TraceFit fit = fit_trace(reader);
    double e_rho = 0, imbalance = 0;
    for (int layer = 0; layer < static_cast<int>(fit.layers.size()); ++layer) {
        e_rho += fit.layers[static_cast<std::size_t>(layer)].over_dispersion * fit.num_experts /
                 static_cast<double>(fit.layers.size());
        imbalance += expected_imbalance(fit, layer, 8, 8) / static_cast<double>(fit.layers.size());
    }
    e_rho_[system.name] = e_rho;
    said(system.title + ": loss " + fixed(seen.front(), 2) + " → " + fixed(late, 2) + " in " +
         std::to_string(seen.size()) + " steps; busiest of 8 ranks " + fixed(imbalance, 2) +
         " times the mean, E·ρ " + fixed(e_rho, 2) + " (" + trace.filename().string() + ").");
}

int Quickstart::run() {
    std::error_code error;
    fs::create_directories(out_ / "log", error);
    if (error)
        throw InputError(out_.string(), "", "",
                         "a folder that can be made (" + error.message() + ")");
    const auto begin = Clock::now();

    prepare_text_files();
    for (const System& system : systems_) train(system);

    moeplan("profile", {"profile", "--model", "tiny-top-k", "--model", "tiny-mh-moe", "--model",
                        "tiny-emo", "--grid", "--links", "--ranks", std::to_string(options_.ranks),
                        "--seconds", "45", "--out", (out_ / "profile.json").string()});
    {
        const Json profile = answer("profile.json");
        said("Profile of this machine: " +
             std::to_string(profile.value("kernels", Json::array()).size()) + " kernel curves, " +
             std::to_string(profile.value("links", Json::array()).size()) + " link curves.");
    }

    // The recorded models have other expert counts than Mixtral: what carries over is E·ρ, the
    // over-dispersion of documents.
    moeplan("plan", {"plan",
                     "--model",
                     "mixtral-8x7b",
                     "--cluster",
                     "dgx-h100:16",
                     "--heads",
                     "1,2,4",
                     "--experts",
                     "8,16",
                     "--global-batch",
                     "512",
                     "--max-coarse",
                     "12",
                     "--best",
                     "6",
                     "--parity",
                     "flops",
                     "--routing",
                     "document-pools:" + fixed(e_rho_["top_k"], 3),
                     "--json",
                     (out_ / "plan.json").string()});
    describe_plan();

    simulate_winner();

    moeplan("validate",
            {"validate", "--plan", (out_ / "plan.json").string(), "--profile",
             (out_ / "profile.json").string(), "--ranks", std::to_string(options_.ranks), "--json",
             (out_ / "validation.json").string()});
    describe_validation();

    std::vector<std::string> report = {"report"};
    for (const char* file :
         {"plan.json", "step.timeline.json", "validation.json", "profile.json", "corpus.json"})
        report.push_back((out_ / file).string());
    for (const System& system : systems_)
        for (const char* ending : {".jsonl", ".trace.h5"})
            report.push_back((out_ / (system.name + ending)).string());
    report.insert(report.end(), {"--html", (out_ / "report.html").string()});
    moeplan("report", report);

    for (const auto& line : lines_) std::printf("%s\n", line.c_str());
    std::printf(
        "Took %s. Open %s; the commands behind it are in %s.\n",
        to_text(Seconds{std::chrono::duration<double>(Clock::now() - begin).count()}).c_str(),
        (out_ / "report.html").c_str(), (out_ / "log" / "commands.txt").c_str());
    write_whole(out_ / "log" / "commands.txt", join(typed_, "\n") + "\n");
    return kDone;
}

}  // namespace

void add_quickstart(CLI::App& app, Run& run) {
    static QuickstartOptions options;
    CLI::App* sub = app.add_subcommand(
        "quickstart",
        "The whole line on this machine: text, training, profile, plan, validation, report");
    sub->add_option("--out", options.out, "Folder of what it makes")
        ->take_last()->type_name("DIR")
        ->capture_default_str();
    sub->add_option("--data", options.data,
                    "Text to train on: debian (fetched with apt), a folder or a JSONL file")
        ->capture_default_str();
    sub->add_option("--steps", options.steps, "Training steps of each small model")
        ->check(CLI::Range(8, 100000))
        ->capture_default_str();
    sub->add_option("--ranks", options.ranks, "Processes that train and validate")
        ->check(CLI::Range(1, 64))
        ->capture_default_str();
    add_seed_flag(*sub, options.seed);
    sub->footer("Example: moeplan quickstart --out build/quickstart");
    sub->callback([&run, sub] {
        options.seed_given = sub->count("--seed") > 0;
        run = [] {
            try {
                return Quickstart(options).run();
            } catch (const Stopped& stopped) {
                std::fprintf(stderr,
                             "moeplan: quickstart: %s; what is finished stays in %s, and the same "
                             "command begins anew there\n",
                             stopped.what(), options.out.c_str());
                return 128 + stopped.signal;
            } catch (const PartFailed& failed) {
                std::fprintf(stderr, "%s\n", failed.message.c_str());
                return failed.status;
            }
        };
    });
}

}  // namespace moeplan::cli
