/// `moeplan profile`: what this machine can do, measured.

#include <CLI/CLI.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/command.hpp"
#include "cli/inputs.hpp"
#include "cli/progress_bar.hpp"
#include "cli/ranks.hpp"
#include "cli/table.hpp"
#include "core/child_process.hpp"
#include "core/data_files.hpp"
#include "core/errors.hpp"
#include "core/output_file.hpp"
#include "core/quantity_text.hpp"
#include "core/stop_signal.hpp"
#include "kernels/backend.hpp"
#include "kernels/communicator.hpp"
#include "profiler/measure_kernels.hpp"
#include "profiler/measure_links.hpp"
#include "profiler/measure_stretches.hpp"

namespace moeplan::cli {
namespace {

struct Words {
    std::string device = "cpu", out = "profile.json", known;
    std::vector<std::string> models;
    LayoutInput layout;
    OutputWords output;
    std::uint64_t seed = 1;
    double seconds = 40;
    int ranks = 0;
    bool links = false, grid = false, again = false;
    std::string part;  ///< of the hidden worker: where it writes
};

std::string percent(double share) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f %%", 100 * share);
    return text;
}

std::vector<KernelPoint> points_of(const Words& words) {
    std::vector<KernelPoint> points;
    for (const std::string& name : words.models) {
        const ModelSpec model = load_model(name);
        const ResolvedLayout resolved = read_sound_layout(words.layout, model, std::nullopt);
        for (const KernelPoint& point : points_of_model(model, resolved.layout, resolved.schedule))
            points.push_back(point);
    }
    if (words.models.empty() || words.grid)
        for (KernelPoint& point : points_of_grid()) points.push_back(std::move(point));
    return points;
}

/// Of the largest model asked for; 0 (nothing stays in a cache) for a grid.
Bytes working_set_of(const Words& words) {
    Bytes out;
    if (words.grid) return out;
    for (const std::string& name : words.models) {
        const ModelSpec model = load_model(name);
        const ResolvedLayout resolved = read_sound_layout(words.layout, model, std::nullopt);
        out = std::max(out, working_set_of(model, resolved.layout, resolved.schedule));
    }
    return out;
}

/// Measures in this process and, under mpirun, in all ranks at once. Rank 0 writes, now and then
/// while it measures: whoever ends the run keeps what there is.
void measure(const Words& words, const std::string& file) {
    const StopAwaited awaited(SIGUSR1);
    const DeviceName device = device_from("--device", words.device);
    const Backend& backend = backend_for(device.device, device.ordinal);
    const Communicator ranks = world_communicator();
    std::optional<UninterruptedThread> uninterrupted;
    if (ranks.size() > 1) uninterrupted.emplace(SIGUSR1);
    ProgressBar bar("profile");
    MeasureOptions options;
    options.seed = {words.seed};
    // Links take a sixth of the time where they are measured.
    const bool links = words.links && ranks.size() > 1;
    options.budget = {words.seconds * (links ? 5.0 / 6 : 1)};
    options.working_set = working_set_of(words);
    options.stop = &told_to_stop();
    options.progress = [&](double done, std::string_view doing) {
        stop_signal();  // sets what `stop` reads, also where signals wait
        bar.show(links ? done * 5 / 6 : done, doing);
    };
    options.keep = [&](const Profile& so_far) { write_whole(file, to_file_text(to_json(so_far))); };
    const Profile known =
        words.again && std::filesystem::exists(words.known) ? load_profile(words.known) : Profile{};
    // in three parts: before, between and after what else is measured
    std::optional<StretchTimer> stretches;
    const Seconds part{std::clamp(words.seconds / 20, 0.2, 3.0) / 3};
    if (ranks.size() > 1 && backend.device == Device::cpu) {
        stretches.emplace(backend, ranks, Seed{words.seed});
        stretches->go_on(part);
    }
    Profile profile = measure_kernels(backend, ranks, points_of(words), options, known);
    if (stretches) stretches->go_on(part);
    if (links) {
        LinkOptions link_options;
        link_options.budget = {words.seconds / 6};
        link_options.stop = &told_to_stop();
        link_options.progress = [&](double done, std::string_view doing) {
            stop_signal();
            bar.show(5.0 / 6 + done / 6, doing);
        };
        const std::vector<LinkCurve> curves = measure_links(backend, ranks, link_options);
        for (const LinkCurve& curve : curves) {
            std::erase_if(profile.links, [&](const LinkCurve& old) {
                return old.collective == curve.collective && old.num_ranks == curve.num_ranks;
            });
            profile.links.push_back(curve);
        }
    }
    if (stretches && !(ranks.all_reduce_max(told_to_stop() ? 1 : 0) > 0)) {
        stretches->go_on(part);
        StretchCurve curve = stretches->curve();
        if (!curve.rows.empty()) profile.stretches = std::move(curve);
    }
    if (ranks.rank() == 0) {
        profile.conditions["cut_short"] = told_to_stop() ? "yes" : "no";
        write_whole(file, to_file_text(to_json(profile)));
    }
}

/// When the file was last written; empty: there is none.
std::optional<std::filesystem::file_time_type> written(const std::string& file) {
    std::error_code error;
    const auto time = std::filesystem::last_write_time(file, error);
    return error ? std::nullopt : std::optional(time);
}

/// The same command under mpirun, as the hidden worker.
void measure_in_ranks(const Words& words, const std::string& file) {
    std::vector<std::string> command = {own_binary().string(),
                                        "_profile",
                                        "--device",
                                        words.device,
                                        "--part",
                                        file,
                                        "--seconds",
                                        std::to_string(words.seconds),
                                        "--seed",
                                        std::to_string(words.seed)};
    if (words.links) command.push_back("--links");
    if (words.grid) command.push_back("--grid");
    if (words.again) command.insert(command.end(), {"--continue", "--out", words.known});
    for (const std::string& model : words.models) command.insert(command.end(), {"--model", model});
    if (!words.layout.layout.empty())
        command.insert(command.end(), {"--layout", words.layout.layout});
    for (const auto& [key, value] : words.layout.words) {
        std::string flag = key;
        std::replace(flag.begin(), flag.end(), '_', '-');
        if (value == "true" || value == "false")
            command.push_back((value == "true" ? "--" : "--no-") + flag);
        else
            command.insert(command.end(), {"--" + flag, value});
    }
    // The ranks cannot draw on our terminal: the bar here follows the clock, which is what bounds
    // them.
    ProgressBar bar("profile");
    const auto begin = std::chrono::steady_clock::now();
    const auto before = written(file);
    ChildOptions options;
    options.environment = mpirun_environment();
    options.told_by = SIGUSR1;
    options.poll = [&] {
        const double spent =
            std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        bar.show(std::min(0.99, spent / (words.seconds + 2)),
                 std::to_string(words.ranks) + " ranks at once");
        return true;
    };
    ChildResult result;
    try {
        result = run_child(mpirun_words(words.ranks, command), options);
    } catch (const Stopped&) {
        if (written(file) == before) throw;  // there is nothing to show
        return;
    }
    if (result.status == 0) return;
    if (written(file) != before) {
        std::fprintf(stderr, "moeplan: profile: cut short (status %d), kept what was measured\n",
                     result.status);
        return;
    }
    throw EnvironmentError("the ranks of the profile ended with status " +
                           std::to_string(result.status) + ": " + result.error);
}

void print_answer(const Profile& profile, const std::vector<HeldOutError>& errors,
                  const std::string& file) {
    std::printf("%s, %s ranks at once\n", profile.device.c_str(),
                profile.conditions.count("ranks_at_once")
                    ? profile.conditions.at("ranks_at_once").c_str()
                    : "?");
    std::printf("best product %s, best stream %s\n\n",
                to_text(profile.roofline.peak.at(Precision::fp32)).c_str(),
                to_text(profile.roofline.memory_bandwidth).c_str());
    Table kernels({"kernel", "points", "spread", "held out", "median error", "90 %"});
    for (const KernelCurve& curve : profile.kernels) {
        std::vector<double> spreads;
        const auto column =
            std::find(curve.columns.begin(), curve.columns.end(), "relative_spread") -
            curve.columns.begin();
        for (const auto& row : curve.rows)
            if (static_cast<std::size_t>(column) < row.size())
                spreads.push_back(row[static_cast<std::size_t>(column)]);
        const double spread = spreads.empty() ? 0 : summarise(spreads).median.value;
        const auto error = std::find_if(errors.begin(), errors.end(), [&](const HeldOutError& e) {
            return e.kernel == curve.kernel;
        });
        if (error == errors.end())
            kernels.row({curve.kernel, std::to_string(curve.rows.size()), percent(spread)});
        else
            kernels.row({curve.kernel, std::to_string(curve.rows.size()), percent(spread),
                         std::to_string(error->num_points), percent(error->median),
                         percent(error->p90)});
    }
    const HeldOutError& all = errors.back();
    kernels.row(
        {"all", "", "", std::to_string(all.num_points), percent(all.median), percent(all.p90)});
    std::fputs(kernels.text().c_str(), stdout);
    std::printf("\nheld out: every fifth inner point, predicted from the others.\n");
    if (!profile.links.empty()) {
        Table links({"link", "ranks", "latency", "rate at the largest"});
        for (const LinkCurve& curve : profile.links)
            if (!curve.rows.empty())
                links.row({curve.collective, std::to_string(curve.num_ranks),
                           to_text(Seconds{curve.rows.front()[1]}),
                           to_text(Bytes{curve.rows.back()[0]} / Seconds{curve.rows.back()[1]})});
        std::printf("\n%s", links.text().c_str());
    }
    if (profile.stretches)
        std::printf("\n1 ms of equal work: %s more on one rank, %s on the slower of 2, %s of 8\n",
                    percent(slowest_of(profile, {1e-3}, 1) - 1).c_str(),
                    percent(slowest_of(profile, {1e-3}, 2) - 1).c_str(),
                    percent(slowest_of(profile, {1e-3}, 8) - 1).c_str());
    std::printf("\nwritten: %s\n", file.c_str());
}

int run_profile(Words& words) {
    device_from("--device", words.device);
    points_of(words);  // a wrong model or layout is said before anything is timed
    words.known = words.out;
    if (words.ranks == 0) words.ranks = words.links ? 2 : 1;
    { PendingFile probe(words.out); }  // an unwritable folder, likewise
    if (words.ranks > 1) {
        try {
            measure_in_ranks(words, words.out);
        } catch (const EnvironmentError& error) {
            if (find_program("mpirun") && built_with_mpi()) throw;
            std::fprintf(stderr, "moeplan: %s\nmoeplan: going on with one rank and without links\n",
                         error.what());
            words.links = false, words.ranks = 1;
        }
    }
    if (words.ranks == 1) measure(words, words.out);
    const Profile profile = load_profile(words.out);
    const std::vector<HeldOutError> errors = held_out_errors(profile, {words.seed});
    Json answer = to_json(profile);
    answer["held_out"] = Json::array();
    for (const HeldOutError& error : errors)
        answer["held_out"].push_back({{"kernel", error.kernel},
                                      {"num_points", error.num_points},
                                      {"median_error", error.median},
                                      {"p90_error", error.p90}});
    write_answer(words.output, answer);
    if (!words.output.quiet()) print_answer(profile, errors, words.out);
    if (stop_signal() != 0) {
        std::size_t points = 0;
        for (const KernelCurve& curve : profile.kernels) points += curve.rows.size();
        std::fprintf(stderr,
                     "moeplan: profile: stopped by %s; kept: %zu points in %s; go on with the same "
                     "command and --continue\n",
                     signal_name(stop_signal()).c_str(), points, words.out.c_str());
        return 128 + stop_signal();
    }
    return kDone;
}

void add_words(CLI::App& app, Words& words) {
    app.add_option("--device", words.device, "What to measure: cpu or cuda:N")
        ->capture_default_str();
    app.add_flag("--links", words.links,
                 "Also time exchanges between ranks (MPI); implies 2 ranks");
    app.add_option("--model", words.models,
                   "Time the kernels of this model; may be given several times. Without it, a grid "
                   "of shapes")
        ->type_name("NAME|FILE");
    app.add_flag("--grid", words.grid, "The grid of shapes beside the models");
    app.add_option("--ranks", words.ranks,
                   "Ranks that measure at the same time, as they will run in a step (default: 1, "
                   "with --links 2)")
        ->check(CLI::Range(1, 1024));
    app.add_option(
           "--seconds", words.seconds,
           "Wall time to spend; the shapes of the model come first, refinements while it lasts")
        ->check(CLI::Range(0.5, 86400.0))
        ->capture_default_str();
    app.add_option("--out", words.out, "Where the profile goes")
        ->type_name("FILE")
        ->capture_default_str();
    app.add_flag(
        "--continue", words.again,
        "Add to the profile that is there already: points that it has are not measured again");
    add_layout_flags(app, words.layout);
    add_seed_flag(app, words.seed);
}

}  // namespace

void add_profile(CLI::App& app, Run& run) {
    auto words = std::make_shared<Words>();
    CLI::App* command = app.add_subcommand(
        "profile",
        "Measure what this machine can do: kernels and links, with spread and conditions");
    add_words(*command, *words);
    add_output_flags(*command, words->output);
    command->footer("Example: moeplan profile --links --seconds 20 --out profile.json");
    command->callback([words, &run] { run = [words] { return run_profile(*words); }; });

    auto worker_words = std::make_shared<Words>();
    CLI::App* worker = app.add_subcommand("_profile", "")->group("");  // a rank of the above
    add_words(*worker, *worker_words);
    worker->add_option("--part", worker_words->part)->required();
    worker->callback([worker_words, &run] {
        run = [worker_words] {
            worker_words->known = worker_words->out;
            return on_every_rank(world_communicator(), [&] {
                measure(*worker_words, worker_words->part);
                return static_cast<int>(kDone);
            });
        };
    });
}

}  // namespace moeplan::cli
