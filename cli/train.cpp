/// moeplan train: a real run, alone or as one rank of a job.

#include "kernels/machine_pace.hpp"
#include "model/train.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.hpp"
#include "cli/inputs.hpp"
#include "cli/ranks.hpp"
#include "core/errors.hpp"
#include "core/output_file.hpp"
#include "core/quantity_text.hpp"
#include "core/stop_signal.hpp"
#include "core/text.hpp"
#include "model/expert_subsets.hpp"
#include "model/text/prepare.hpp"

namespace moeplan::cli {
namespace {

struct Words {
    ModelWords model;
    LayoutInput layout;
    TextOptions text;
    std::string device = "cpu", out, trace, checkpoint, gates, schedule = "cosine", evaluate,
                order = "shuffled";
    std::string json, select = "greedy", gate_scaling = "kept";
    SubsetOptions subset;
    TrainOptions train;
    double held_out = 0.05;
    bool machine_pace = false;
    std::uint64_t seed = 0;
};

/// Lines of JSON to a file while it grows (a run can be watched), or to standard output.
class Lines {
  public:
    /// @param first_step  lines of steps before it stay: those of the run that is gone on with
    Lines(const std::string& file, int first_step) : file_(file) {
        if (file.empty() || file == "-") return;
        const bool kept = first_step > 0 && keep_lines_before(file, first_step);
        stream_ = std::fopen(file.c_str(), kept ? "a" : "w");
        if (!stream_) throw InputError("--out", "", file, "a file that can be written");
    }
    ~Lines() {
        if (stream_) std::fclose(stream_);
    }
    void write(const Json& line) {
        std::FILE* to = stream_ ? stream_ : stdout;
        if (std::fputs((line.dump() + "\n").c_str(), to) < 0 || std::fflush(to) != 0)
            throw InputError(stream_ ? file_ : "standard output", "", "",
                             std::string("room to write (") + std::strerror(errno) + ")");
    }
    bool on_standard_output() const { return stream_ == nullptr; }

  private:
    /// Whether there were any.
    static bool keep_lines_before(const std::string& file, int first_step) {
        std::error_code error;
        if (!std::filesystem::is_regular_file(file, error)) return false;
        std::ifstream in(file);
        std::string kept, line;
        while (std::getline(in, line)) {
            const Json step = Json::parse(line, nullptr, false);
            if (step.is_object() && step.contains("step") && step["step"].is_number_integer() &&
                step["step"].get<long long>() < first_step)
                kept += line + "\n";
        }
        in.close();
        if (!kept.empty()) write_whole(file, kept);
        return !kept.empty();
    }

    std::string file_;
    std::FILE* stream_ = nullptr;
};

/// Synthetic text stands in for a corpus: `--data synthetic`.
TokenData read_text(const Words& words, int vocab_size) {
    if (words.text.data == "synthetic")
        return synthetic_tokens(vocab_size, 2'000'000, 6, Seed{words.seed});
    return prepare_text(words.text).tokens;
}

/// The layout's words where they were given; data parallelism is what the ranks are.
void read_layout_of_run(const Words& words, const ModelSpec& model, int ranks,
                        TrainOptions& options) {
    LayoutWords given = merged_words(words.layout);
    if (!given.contains("seq")) given["seq"] = "256";
    if (!given.contains("micro_batch")) given["micro_batch"] = "4";
    if (!given.contains("precision")) given["precision"] = "fp32";
    if (!given.contains("framework")) given["framework"] = "moeplan";  // our rules and defaults
    if (!given.contains("global_batch"))
        given["global_batch"] = std::to_string(std::max(8, 4 * ranks));
    const ResolvedLayout resolved = resolve_layout(given, model, ranks);
    if (!resolved.broken.empty()) throw refusal(resolved.broken.front(), given, "layout");
    if (resolved.schedule.precision != Precision::fp32 &&
        resolved.schedule.precision != Precision::bf16)
        throw InputError("--precision", "", std::string(name_of(resolved.schedule.precision)),
                         "fp32 or bf16: what training computes in");
    options.format =
        resolved.schedule.precision == Precision::bf16 ? NumberFormat::bf16 : NumberFormat::f32;
    options.layout = resolved.layout;
    options.schedule = resolved.schedule;
}

/// What a run does not show before it is too late.
void print_warnings(const TrainOptions& options, int ranks) {
    for (const Finding& finding :
         check_layout(options.model, options.layout, options.schedule, ranks))
        if (finding.severity == Severity::warning && finding.rule == "balance_coefficient")
            std::fprintf(stderr, "moeplan: warning: %s\n", finding.detail.c_str());
}

/// One rank, one GPU: a node's ranks take its GPUs in order from the one named, unless the launcher
/// shows each rank one GPU alone.
int gpu_of_rank(const DeviceName& device, int ranks) {
    if (device.device != Device::cuda || ranks == 1) return device.ordinal;
    const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
    const bool one = visible && *visible && std::string(visible).find(',') == std::string::npos;
    return one ? device.ordinal : device.ordinal + local_rank();
}

Bytes fullest(const std::vector<Bytes>& of_ranks) {
    return *std::max_element(of_ranks.begin(), of_ranks.end());
}

void print_summary(const Words& words, const TrainResult& result) {
    if (result.steps.empty()) {
        std::fprintf(stderr, "nothing left to do: the checkpoint is already at step %d\n",
                     result.first_step);
        return;
    }
    const StepRecord &first = result.steps.front(), &last = result.steps.back();
    std::fprintf(stderr,
                 "%s: step %d loss %.4f → step %d loss %.4f (%+.2f nats), %.0f tokens/s on %d "
                 "rank%s, peak %s of the fullest rank (memory model: %s)\n",
                 words.model.model.c_str(), first.step, first.loss, last.step, last.loss,
                 last.loss - first.loss, last.tokens_per_second, result.world_size,
                 result.world_size == 1 ? "" : "s", to_text(fullest(result.peak_memory)).c_str(),
                 to_text(fullest(result.modelled_memory)).c_str());
    if (!result.exchange.empty())
        std::fprintf(stderr, "between GPUs: %s\n", result.exchange.c_str());
    if (result.stretches.recorded > 0)
        std::fprintf(stderr,
                     "CUDA graphs: %llu recorded, launched %llu times more (MOEPLAN_CUDA_GRAPHS=0: "
                     "none)\n",
                     static_cast<unsigned long long>(result.stretches.recorded),
                     static_cast<unsigned long long>(result.stretches.replayed));
    for (const std::string& line : result.choices) std::fprintf(stderr, "%s\n", line.c_str());
    if (result.held_out_loss) std::fprintf(stderr, "held-out loss %.4f\n", *result.held_out_loss);
    if (!last.gate_sum.empty()) {
        std::fprintf(stderr, "sum of chosen gates by layer:");
        for (const double sum : last.gate_sum) std::fprintf(stderr, " %.3f", sum);
        std::fprintf(stderr, "; busiest expert over the mean:");
        for (const double imbalance : last.expert_imbalance)
            std::fprintf(stderr, " %.2f", imbalance);
        std::fprintf(stderr, "\n");
    }
}

/// One line for whoever ended the run: what there is, and how to go on.
std::string what_is_kept(const Words& words, int done, int signal) {
    std::vector<std::string> kept;
    if (!words.out.empty() && words.out != "-") kept.push_back("its lines in " + words.out);
    if (!words.trace.empty()) kept.push_back("routing in " + words.trace);
    if (!words.checkpoint.empty())
        kept.push_back("a checkpoint in " + words.checkpoint +
                       "; go on with the same command and --continue");
    std::string out = "stopped by " + signal_name(signal) + " after " + std::to_string(done) +
                      " of " + std::to_string(words.train.steps) + " steps";
    if (!kept.empty()) out += "; kept: " + join(kept, ", ");
    if (words.checkpoint.empty()) out += "; without --checkpoint DIR a run begins anew";
    return out;
}

Json answer_of(const TrainResult& result) {
    Json answer = json_header("training");
    answer["first_step"] = result.first_step;
    answer["ranks"] = result.world_size;
    if (!result.exchange.empty()) answer["exchange"] = result.exchange;
    if (!result.choices.empty()) answer["choices"] = result.choices;
    answer["parameters"] = result.parameters;
    answer["stopped"] = result.stopped;
    answer["steps"] = Json::array();
    for (const StepRecord& step : result.steps) answer["steps"].push_back(to_json(step));
    for (const Bytes bytes : result.peak_memory) answer["peak_memory_bytes"].push_back(bytes.value);
    for (const Bytes bytes : result.modelled_memory)
        answer["modelled_memory_bytes"].push_back(bytes.value);
    for (const Seconds busy : result.busy_by_rank) answer["busy_by_rank_s"].push_back(busy.value);
    if (result.held_out_loss) answer["held_out_loss"] = *result.held_out_loss;
    return answer;
}

Json by_domain(const SubsetLosses& losses, const std::vector<double>& values) {
    Json out = Json::object();
    for (std::size_t d = 0; d < values.size(); ++d)
        if (losses.test_tokens[d] > 0) out[losses.domains[d]] = values[d];
    return out;
}

/// `--evaluate CHECKPOINT --keep-experts K …`
int run_subsets(Words& words, const TokenData& text) {
    SubsetOptions& subset = words.subset;
    subset.select = *from_name<SubsetSelection>(words.select);
    subset.scaling = *from_name<GateScaling>(words.gate_scaling);
    subset.test_sequences = subset.selection_sequences;
    const SubsetLosses losses =
        evaluate_subsets(words.train, words.evaluate, text, words.held_out, subset);
    Json answer = json_header("expert_subsets");
    answer["select"] = words.select;
    answer["gate_scaling"] = words.gate_scaling;
    for (std::size_t d = 0; d < losses.domains.size(); ++d)
        if (losses.test_tokens[d] > 0)
            answer["test_tokens"][losses.domains[d]] = losses.test_tokens[d];
    const auto put = [&](Json& to, const SubsetLoss& loss) {
        to["experts"] = loss.kept;
        to["loss"] = loss.mean;
        to["increase"] = loss.mean - losses.whole.mean;
        to["by_domain"] = by_domain(losses, loss.by_domain);
    };
    put(answer["whole"], losses.whole);
    put(answer["no_routed_expert"], losses.none);
    for (const SubsetLoss& loss : losses.subsets) {
        Json& to = answer["subsets"].emplace_back();
        put(to, loss);
        to["retained"] = loss.retained;
        to["loss_with_experts_of_another_domain"] = loss.mean_of_another;
    }
    if (words.json != "-") {
        std::printf("%-24s %10s %10s %10s %18s\n", "routed experts kept", "loss", "increase",
                    "retained", "of another domain");
        const auto line = [&](const char* what, const SubsetLoss& loss) {
            std::printf("%-24s %10.4f %+10.4f", what, loss.mean, loss.mean - losses.whole.mean);
        };
        line("all", losses.whole);
        std::printf("\n");
        for (const SubsetLoss& loss : losses.subsets) {
            line(std::to_string(loss.kept).c_str(), loss);
            std::printf(" %10.3f %18.4f\n", loss.retained, loss.mean_of_another);
        }
        line("none", losses.none);
        std::printf("\nloss: nats a token, mean of the domains, on sequences that chose nothing\n");
    }
    if (!words.json.empty()) write_whole(words.json, to_file_text(answer));
    return kDone;
}

int run_training(Words& words, Communicator& world) {
    TrainOptions& options = words.train;
    const auto& optimizer = options.optimizer;
    if (!(optimizer.learning_rate > 0 && optimizer.learning_rate < 100))
        throw InputError("--lr", "", fmt::format("{}", optimizer.learning_rate),
                         "a number between 0 and 100");
    if (!(optimizer.clip >= 0))
        throw InputError("--clip", "", fmt::format("{}", optimizer.clip), "0 or more");
    if (!(optimizer.weight_decay >= 0))
        throw InputError("--weight-decay", "", fmt::format("{}", optimizer.weight_decay),
                         "0 or more");
    if (optimizer.warmup_steps < 0)
        throw InputError("--warmup", "", fmt::format("{}", optimizer.warmup_steps), "0 or more");
    options.model = load_model(words.model.model);
    read_layout_of_run(words, options.model, world.size(), options);
    const DeviceName device = device_from("--device", words.device);
    options.device = device.device;
    if (words.machine_pace && device.device != Device::cpu)
        throw InputError("--machine-pace", "", words.device, "a CPU: a GPU is nobody else's");
    options.device_ordinal = gpu_of_rank(device, world.size());
    if (!words.gates.empty()) options.renormalise_gates = words.gates == "renormalised";
    options.optimizer.schedule = *from_name<LearningRate>(words.schedule);
    options.seed = Seed{words.seed};
    options.trace = words.trace;
    options.checkpoint = words.checkpoint;
    if (options.resume && words.checkpoint.empty())
        throw InputError("--continue", "", "", "--checkpoint DIR, to go on from");
    words.text.vocabulary_size = options.model.vocab_size;
    const TokenData text = read_text(words, options.model.vocab_size);
    if (text.vocab_size > options.model.vocab_size)
        throw InputError(
            "--data", "", "a vocabulary of " + std::to_string(text.vocab_size),
            "at most the model's vocab_size (" + std::to_string(options.model.vocab_size) + ")");
    Packing packing;
    packing.sequence_length = options.schedule.sequence_length;
    packing.order = *from_name<DocumentOrder>(words.order);
    packing.held_out = words.held_out;
    packing.seed = options.seed;
    options.data = std::make_shared<PackedTokens>(pack(text, Part::train, packing));
    if (words.held_out > 0)
        options.held_out = std::make_shared<PackedTokens>(pack(text, Part::held_out, packing));
    options.data_digest = text.digest;

    if (!words.subset.kept.empty()) {
        if (words.evaluate.empty())
            throw InputError("--keep-experts", "", std::to_string(words.subset.kept.front()),
                             "--evaluate CHECKPOINT, of which experts are kept");
        if (world.size() != 1)
            throw InputError("--keep-experts", "", std::to_string(world.size()) + " ranks",
                             "one process: experts are chosen where all of them are");
        return run_subsets(words, text);
    }
    if (!words.evaluate.empty()) {
        const Evaluation evaluation = evaluate(options, words.evaluate, world);
        if (world.rank() != 0) return kDone;
        Json answer = json_header("evaluation");
        answer["loss"] = evaluation.loss;
        answer["tokens"] = evaluation.tokens;
        for (std::size_t d = 0; d < evaluation.by_domain.size(); ++d)
            answer["by_domain"][text.domains.at(d)] = evaluation.by_domain[d];
        if (words.json != "-") {
            std::printf("held-out loss %.4f nats a token over %lld tokens\n", evaluation.loss,
                        static_cast<long long>(evaluation.tokens));
            for (std::size_t d = 0; d < evaluation.by_domain.size(); ++d)
                std::printf("  %-24s %.4f\n", text.domains.at(d).c_str(), evaluation.by_domain[d]);
        }
        if (!words.json.empty()) write_whole(words.json, to_file_text(answer));
        return kDone;
    }

    if (world.rank() == 0) print_warnings(options, world.size());
    // Only once nothing is wrong with the words does a file appear.
    std::unique_ptr<Lines> lines;
    TrainCallbacks callbacks;
    // Ends with the step that runs, and writes the checkpoint. Launchers hand SIGUSR1 on to ranks.
    const StopAwaited awaited(SIGUSR1);
    std::optional<UninterruptedThread> uninterrupted;
    if (world.size() > 1) uninterrupted.emplace(SIGUSR1);
    callbacks.stop = [] { return stop_signal() != 0; };
    std::optional<MachinePace> pace;
    if (words.machine_pace) {
        pace.emplace(backend_for(Device::cpu), world);
        callbacks.machine_pace = [&] { return pace->now(); };
    }
    callbacks.on_step = [&](const StepRecord& step) {
        if (!lines) lines = std::make_unique<Lines>(words.out, options.resume ? step.step : 0);
        if (words.json != "-" || !lines->on_standard_output()) lines->write(to_json(step));
    };
    const TrainResult result = train(options, world, callbacks);
    if (world.rank() != 0) return kDone;
    if (!words.json.empty()) write_whole(words.json, to_file_text(answer_of(result)));
    print_summary(words, result);
    const int done = result.first_step + static_cast<int>(result.steps.size());
    if (!result.stopped || done >= options.steps) return kDone;
    // Another rank may have been told, and this one not.
    const int signal = stop_signal() != 0 ? stop_signal() : SIGTERM;
    std::fprintf(stderr, "moeplan: train: %s\n", what_is_kept(words, done, signal).c_str());
    return 128 + signal;
}

/// What a layout file says wrong is told at its place there.
int run_with_places(Words& words, Communicator& world) {
    try {
        return run_training(words, world);
    } catch (const InputError& error) {
        if (words.layout.layout.empty()) throw;
        throw at_its_place(error, merged_words(words.layout));
    }
}

}  // namespace

void add_train(CLI::App& app, Run& run) {
    static Words words;
    CLI::App* sub = app.add_subcommand(
        "train", "Train a model for real: alone, or as one rank under mpirun or srun");
    add_model_flag(*sub, words.model);
    add_layout_flags(*sub, words.layout);
    sub->add_option(
           "--data", words.text.data,
           "debian (the default corpus), a folder, a JSONL file, a tokens file, or synthetic")
        ->capture_default_str();
    sub->add_option("--cache", words.text.cache, "folder of fetched text and encoded tokens");
    sub->add_option("--vocabulary", words.text.vocabulary,
                    "a SentencePiece model; without it one is trained on the text");
    sub->add_option("--steps", words.train.steps, "optimizer steps in all")->capture_default_str();
    sub->add_option("--lr", words.train.optimizer.learning_rate, "learning rate at its height")
        ->capture_default_str();
    sub->add_option("--lr-schedule", words.schedule, "constant, cosine or wsd")
        ->check(CLI::IsMember({"constant", "cosine", "wsd"}))
        ->capture_default_str();
    sub->add_option("--warmup", words.train.optimizer.warmup_steps, "steps of linear rise")
        ->capture_default_str();
    sub->add_option("--clip", words.train.optimizer.clip, "largest norm of the gradient; 0: none")
        ->capture_default_str();
    sub->add_option("--weight-decay", words.train.optimizer.weight_decay, "of matrices")
        ->capture_default_str();
    sub->add_option("--gates", words.gates,
                    "chosen gates raw, or renormalised to sum 1 (default: as the model says)")
        ->check(CLI::IsMember({"raw", "renormalised"}));
    sub->add_option("--held-out", words.held_out, "share of documents that are never trained on")
        ->check(CLI::Range(0.0, 0.9))
        ->capture_default_str();
    sub->add_option("--evaluate-every", words.train.evaluate_every,
                    "steps between held-out losses; 0: at the end alone")
        ->capture_default_str();
    sub->add_option("--evaluate-sequences", words.train.evaluate_sequences,
                    "held-out sequences a loss is taken over")
        ->capture_default_str();
    sub->add_option("--document-order", words.order, "shuffled or consecutive pieces of documents")
        ->check(CLI::IsMember({"shuffled", "consecutive"}))
        ->capture_default_str();
    sub->add_option("--device", words.device, "cpu, cuda or cuda:N")->capture_default_str();
    sub->add_option("--trace", words.trace, "record the routing of every MoE layer there (HDF5)");
    sub->add_option("--trace-from", words.train.trace_first, "first step that is recorded")
        ->capture_default_str();
    sub->add_option("--trace-every", words.train.trace_every,
                    "steps from one recorded step to the next")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    sub->add_option("--out,--log", words.out,
                    "one JSON line a step there instead of on standard output");
    sub->add_option("--checkpoint", words.checkpoint, "folder of checkpoints");
    sub->add_option("--checkpoint-every", words.train.checkpoint_every,
                    "steps between checkpoints; 0: at the end alone")
        ->capture_default_str();
    sub->add_flag("--machine-pace", words.machine_pace,
                  "also time a reference piece around each step (machine_pace_s of --out): how fast "
                  "the machine is meanwhile; on a CPU");
    sub->add_flag("--continue", words.train.resume, "go on from the newest checkpoint");
    sub->add_option("--evaluate", words.evaluate,
                    "held-out loss of this checkpoint instead of training");
    sub->add_option("--keep-experts", words.subset.kept,
                    "with --evaluate: loss of each domain when so many routed experts of every "
                    "layer stay; several: 16,8,4")
        ->delimiter(',');
    sub->add_option("--select", words.select,
                    "how they are chosen on other sequences of the domain: routing (mean "
                    "probability), greedy (likewise, layer by layer), easy-ep")
        ->check(CLI::IsMember({"routing", "greedy", "easy-ep"}))
        ->capture_default_str();
    sub->add_option(
           "--gate-scaling", words.gate_scaling,
           "gates from a softmax over the experts kept, or over all (unpruned), as trained")
        ->check(CLI::IsMember({"kept", "unpruned"}))
        ->capture_default_str();
    sub->add_option("--select-sequences", words.subset.selection_sequences,
                    "held-out sequences of a domain that choose; as many others test")
        ->check(CLI::Range(1, 4096))
        ->capture_default_str();
    sub->add_option("--json", words.json, "the whole answer as JSON there; -: standard output")
        ->check(why_not_writable);
    add_seed_flag(*sub, words.seed);
    sub->footer("Example: moeplan train --model tiny-top-k --data synthetic --steps 5");
    sub->callback([&run] {
        run = [] {
            Communicator world = world_communicator();
            try {
                return on_every_rank(world, [&] { return run_with_places(words, world); });
            } catch (const Diverged& error) {
                std::fprintf(stderr, "moeplan: %s\n", error.what());
                return static_cast<int>(kMachineLacks);
            }
        };
    });
}

}  // namespace moeplan::cli
