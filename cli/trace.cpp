/// `moeplan trace import|stats|synthesize|export`.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.hpp"
#include "cli/inputs.hpp"
#include "cli/progress_bar.hpp"
#include "cli/table.hpp"
#include "core/errors.hpp"
#include "core/output_file.hpp"
#include "core/quantity_text.hpp"
#include "core/text.hpp"
#include "model/model_spec.hpp"
#include "traces/fit.hpp"
#include "traces/import.hpp"
#include "traces/routing_law.hpp"
#include "traces/statistics.hpp"

namespace moeplan::cli {
namespace {

void say(const OutputWords& output, const std::string& text) {
    if (!output.quiet()) std::fputs(text.c_str(), stdout);
}

void add_trace_import(CLI::App& app, Run& run) {
    static std::string file, out, model;
    static std::optional<int> experts, top_k;
    static int sequence_length = 0;
    static OutputWords output;
    CLI::App* sub = app.add_subcommand("import", "Another program's routing record as a trace");
    sub->add_option("file", file, "JSONL, .npz, or the JSON of SGLang, vLLM or EPLB")->required();
    sub->add_option("--out", out, "the trace to write (default: beside the file, .trace.h5)");
    sub->add_option("--experts", experts, "number of experts, where the record does not tell")
        ->check(CLI::Range(1, 65534));
    sub->add_option("--top-k", top_k, "experts a token visits, where the record holds counts only")
        ->check(CLI::Range(1, 1024));
    sub->add_option("--seq", sequence_length, "tokens of a sequence")
        ->check(CLI::NonNegativeNumber);
    sub->add_option("--model-name", model, "name written into the trace");
    add_output_flags(*sub, output, false);
    sub->footer(
        "Example: moeplan trace export build/quickstart/top_k.trace.h5 --steps 1 --out "
        "routing.jsonl && moeplan trace import routing.jsonl --experts 32 --out routing.h5");
    sub->callback([&run] {
        run = [] {
            std::filesystem::path target = out;
            if (out.empty())
                target = std::filesystem::path(file).filename().replace_extension(".trace.h5");
            const Imported imported =
                import_trace(file, target, {experts, top_k, sequence_length, model});
            Json answer = to_json(imported);
            answer["trace"] = target.string();
            const TraceHeader& h = imported.header;
            say(output,
                fmt::format("{} ({}): {} steps, {} MoE layers, {} experts, top {}{}\n",
                            target.string(), imported.format, h.num_steps, h.num_moe_layers,
                            h.num_experts, h.top_k,
                            h.counts_only ? ", counts only"
                                          : fmt::format(", {} tokens a step", h.tokens_per_step)));
            if (!imported.layers_with_zero_total.empty())
                say(output, fmt::format("left out, without a token: layers {}\n",
                                        fmt::join(imported.layers_with_zero_total, ", ")));
            for (const auto& assumption : imported.assumptions)
                say(output, "assumed: " + assumption + "\n");
            write_answer(output, answer);
            return kDone;
        };
    });
}

void add_trace_stats(CLI::App& app, Run& run) {
    static std::string file;
    static OutputWords output;
    CLI::App* sub =
        app.add_subcommand("stats", "Balance, drift, documents and co-activation of a trace");
    sub->add_option("trace", file, "a routing trace (HDF5)")->required();
    add_output_flags(*sub, output);
    sub->footer("Example: moeplan trace stats build/quickstart/top_k.trace.h5");
    sub->callback([&run] {
        run = [] {
            const TraceReader trace(file);
            const TraceStatistics statistics = trace_statistics(trace);
            const TraceFit fit = fit_trace(trace);
            Json answer = to_json(statistics);
            for (std::size_t i = 0; i < fit.layers.size(); ++i) {
                answer["layers"][i]["over_dispersion"] = fit.layers[i].over_dispersion;
                answer["layers"][i]["experts_times_over_dispersion"] =
                    fit.layers[i].over_dispersion * fit.num_experts;
            }
            answer["fit_basis"] = fit.basis;
            const TraceHeader& h = trace.header();
            say(output,
                fmt::format(
                    "{}: {} steps, {} tokens, {} MoE layers, {} experts, top {}{}, from {}\n",
                    h.model.empty() ? file : h.model, h.num_steps, statistics.tokens,
                    h.num_moe_layers, h.num_experts, h.top_k,
                    h.num_moe_heads > 1 ? fmt::format(", {} heads", h.num_moe_heads) : "",
                    h.source.empty() ? "an unknown source" : h.source));
            std::vector<std::string> head = {"layer",   "max/mean", "one micro-batch", "Gini",
                                             "entropy", "E*rho",    "active"};
            std::vector<int> ranks;
            if (!statistics.layers.empty())
                for (const auto& [n, spread] : statistics.layers[0].exchange_by_ranks)
                    if (n <= 16) ranks.push_back(n);
            for (const int n : ranks) head.push_back("EP " + std::to_string(n));
            Table table(head);
            for (std::size_t i = 0; i < statistics.layers.size(); ++i) {
                const LayerStatistics& l = statistics.layers[i];
                std::vector<std::string> cells = {
                    std::to_string(l.layer),
                    fmt::format("{:.2f}", l.max_over_mean),
                    fmt::format("{:.2f}", l.exchange.mean),
                    fmt::format("{:.3f}", l.gini),
                    fmt::format("{:.3f}", l.entropy),
                    fmt::format("{:.2f}", fit.layers[i].over_dispersion * fit.num_experts),
                    fmt::format("{:.2f}", l.activation_ratio[1].second)};
                for (const int n : ranks)
                    cells.push_back(fmt::format("{:.2f}", l.exchange_by_ranks.at(n).mean));
                table.row(cells);
            }
            say(output, table.text());
            say(output,
                "max/mean, Gini and entropy over all steps; EP n: busiest rank over the mean in a "
                "micro-batch; active: experts with a quarter of the mean or more\n");
            if (statistics.drift.size() > 1)
                say(output, fmt::format("drift: popularity of the last window correlates {:.2f} "
                                        "with the one before\n",
                                        statistics.drift.back().popularity_correlation));
            write_answer(output, answer);
            return kDone;
        };
    });
}

void add_trace_synthesize(CLI::App& app, Run& run) {
    static std::string out, routing = "document-dirichlet:1", model, like;
    static SynthesisShape shape;
    static std::uint64_t seed = 0;
    static std::optional<int> experts, top_k, heads, layers, document_length;
    static bool counts_only = false;
    static OutputWords output;
    CLI::App* sub = app.add_subcommand(
        "synthesize", "A trace from a law, or from what was measured in another trace");
    sub->add_option("--out", out, "the trace to write")->required();
    sub->add_option("--routing", routing,
                    "balanced, multinomial, zipf:S, hot:FACTOR, document-dirichlet:E_RHO, "
                    "document-pools[:E_RHO], token-drop[:CAPACITY]");
    sub->add_option(
        "--like", like,
        "a trace whose popularity, over-dispersion and documents are taken (instead of --routing)");
    sub->add_option("--model", model, "takes layers, experts, top-k and heads from a model");
    sub->add_option("--experts", experts)->check(CLI::Range(1, 65534));
    sub->add_option("--top-k", top_k)->check(CLI::Range(1, 1024));
    sub->add_option("--heads", heads, "MoE heads")->check(CLI::Range(1, 1024));
    sub->add_option("--layers", layers, "MoE layers")->check(CLI::Range(1, 65536));
    sub->add_option("--steps", shape.num_steps)->check(CLI::Range(1, 1 << 20));
    sub->add_option("--ranks", shape.num_ranks, "ranks that hold tokens")
        ->check(CLI::Range(1, 65534));
    sub->add_option("--micro-batches", shape.num_micro_batches)->check(CLI::Range(1, 65534));
    sub->add_option("--micro-batch", shape.sequences_per_micro_batch, "sequences of a rank")
        ->check(CLI::Range(1, 65536));
    sub->add_option("--seq", shape.sequence_length, "tokens of a sequence")
        ->check(CLI::Range(1, 1 << 24));
    sub->add_option("--document", document_length, "tokens of a document (default: a sequence)")
        ->check(CLI::Range(1, 1 << 24));
    sub->add_flag("--counts-only", counts_only, "loads instead of single choices");
    add_seed_flag(*sub, seed);
    add_output_flags(*sub, output, false);
    sub->footer(
        "Example: moeplan trace synthesize --routing document-dirichlet:0.8 --experts 32 --top-k 2 "
        "--layers 4 --out synthetic.h5");
    sub->callback([&run] {
        run = [] {
            RoutingLaw law;
            if (!like.empty()) {
                const TraceReader trace(like);
                law.kind = "fitted";
                law.fit = fit_trace(trace, trace.header().num_steps / 10);
                shape.num_experts = law.fit->num_experts;
                shape.top_k = law.fit->top_k;
                shape.num_moe_heads = law.fit->num_moe_heads;
                shape.num_moe_layers = static_cast<int>(law.fit->layers.size());
                shape.document_lengths = law.fit->document_lengths;
                shape.model = trace.header().model;
            } else {
                const auto colon = routing.find(':');
                law.kind = routing.substr(0, colon);
                for (char& c : law.kind)
                    if (c == '-') c = '_';
                double number = -1;
                if (colon != std::string::npos) {
                    try {
                        std::size_t used = 0;
                        number = std::stod(routing.substr(colon + 1), &used);
                        if (used != routing.size() - colon - 1 || !(number >= 0) || number > 1e6)
                            throw std::invalid_argument("");
                    } catch (const std::exception&) {
                        throw InputError("--routing", "", "\"" + routing + "\"",
                                         "a number of 0 or more after the colon, as zipf:1.2");
                    }
                }
                if (number >= 0 && (law.kind == "balanced" || law.kind == "multinomial"))
                    throw InputError("--routing", "", "\"" + routing + "\"",
                                     law.kind + " without a number");
                if (law.kind == "hot" && number >= 0 && number < 1)
                    throw InputError("--routing", "", "\"" + routing + "\"",
                                     "a factor of 1 or more over the mean, as hot:3");
                if (law.kind == "zipf") law.exponent = number < 0 ? 1 : number;
                if (law.kind == "hot") law.exponent = number < 0 ? 3 : number;
                if (law.kind == "document_dirichlet" || law.kind == "document_pools")
                    law.document_dispersion = number < 0 ? 1 : number;
                if (law.kind == "token_drop" && number >= 0) law.capacity_factor = number;
            }
            if (!model.empty()) {
                const ModelSpec spec = load_model(model);
                int moe_layers = 0;
                for (const LayerSpec& layer : spec.layers)
                    if (const auto* moe = std::get_if<MoeFeedForward>(&layer.feed_forward)) {
                        ++moe_layers;
                        shape.num_experts = moe->num_experts;
                        shape.top_k = moe->top_k;
                        shape.num_moe_heads = moe->num_moe_heads;
                    }
                if (moe_layers == 0)
                    throw InputError("--model", "", model, "a model with MoE layers");
                shape.num_moe_layers = moe_layers;
                shape.model = spec.name;
            }
            if (experts) shape.num_experts = *experts;
            if (top_k) shape.top_k = *top_k;
            if (heads) shape.num_moe_heads = *heads;
            if (layers) shape.num_moe_layers = *layers;
            if (document_length)
                shape.document_lengths = {static_cast<std::uint32_t>(*document_length)};
            if (law.fit && law.fit->num_experts != shape.num_experts)
                law.fit = with_experts(*law.fit, shape.num_experts);
            TraceHeader header = synthetic_header(law, shape, {seed});
            header.counts_only = counts_only;
            TraceWriter writer(out, header);
            ProgressBar bar("synthesising");
            for (int step = 0; step < shape.num_steps; ++step) {
                bar.show(static_cast<double>(step) / shape.num_steps, "");
                writer.add(counts_only ? synthetic_counts(law, shape, {seed}, step)
                                       : synthetic_step(law, shape, {seed}, step));
            }
            writer.finish();
            Json answer = json_header("trace-synthesize");
            answer["trace"] = out;
            answer["source"] = header.source;
            answer["steps"] = header.num_steps;
            answer["tokens"] = header.tokens_per_step * header.num_steps;
            answer["num_moe_layers"] = header.num_moe_layers;
            answer["num_experts"] = header.num_experts;
            answer["top_k"] = header.top_k;
            answer["num_moe_heads"] = header.num_moe_heads;
            answer["counts_only"] = header.counts_only;
            answer["seed"] = seed;
            say(output,
                fmt::format("{}: {}, {} steps of {} tokens, {} MoE layers, {} experts, top {}\n",
                            out, header.source, header.num_steps, header.tokens_per_step,
                            header.num_moe_layers, header.num_experts, header.top_k));
            write_answer(output, answer);
            return kDone;
        };
    });
}

void add_trace_export(CLI::App& app, Run& run) {
    static std::string file, out, format;
    static int steps = 0;
    CLI::App* sub =
        app.add_subcommand("export", "A trace as JSONL, a numpy archive or an EPLB load table");
    sub->add_option("trace", file, "a routing trace (HDF5)")->required();
    sub->add_option("--out", out, "the file to write; its ending tells the format")->required();
    sub->add_option("--format", format, "jsonl, npz or eplb");
    sub->add_option("--steps", steps, "the first of them only")->check(CLI::PositiveNumber);
    sub->footer(
        "Example: moeplan trace export build/quickstart/top_k.trace.h5 --steps 1 --out "
        "routing.npz");
    sub->callback([&run] {
        run = [] {
            std::string word = format;
            if (word.empty()) {
                const std::string ending = std::filesystem::path(out).extension().string();
                word = ending == ".json" ? "eplb" : ending.empty() ? "" : ending.substr(1);
            }
            const auto chosen = from_name<ExportFormat>(word);
            if (!chosen)
                throw InputError("--format", "", word.empty() ? out : word,
                                 choices<ExportFormat>());
            export_trace(TraceReader(file), out, *chosen, steps);
            std::fputs((out + "\n").c_str(), stdout);
            return kDone;
        };
    });
}

}  // namespace

void add_trace(CLI::App& app, Run& run) {
    CLI::App* sub =
        app.add_subcommand("trace", "Routing traces: import, statistics, synthesis, export");
    sub->require_subcommand(1);
    sub->footer(
        "Example: moeplan trace synthesize --routing zipf:1 --experts 32 --top-k 2 --layers 4 "
        "--out zipf.h5");
    add_trace_import(*sub, run);
    add_trace_stats(*sub, run);
    add_trace_synthesize(*sub, run);
    add_trace_export(*sub, run);
}

}  // namespace moeplan::cli
