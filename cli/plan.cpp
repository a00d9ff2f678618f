/// moeplan plan: which layouts, heads and experts are worth running.

#include "planner/plan.hpp"

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/command.hpp"
#include "cli/inputs.hpp"
#include "cli/plan_text.hpp"
#include "cli/progress_bar.hpp"
#include "core/errors.hpp"
#include "core/memory_steps.hpp"
#include "core/output_file.hpp"
#include "core/text.hpp"
#include "simulator/step.hpp"

namespace moeplan::cli {
namespace {

struct Words {
    ModelWords model;
    ClusterWords cluster;
    LayoutInput layout;
    RoutingInput routing;
    OutputWords output;
    std::string profile, elsewhere;
    std::uint64_t seed = 0;
    std::vector<int> heads, experts, top_k;
    std::vector<std::string> pools;
    std::string parity = "flops", objective = "throughput", law = "mh_calibrated",
                fidelity = "flow";
    double tokens = 0, hot_rank_load = 0;
    int best = 12, max_coarse = 0, threads = 0, spare_experts = 1;
};

/// "1,2,4" of a flag.
std::vector<int> numbers(const std::string& flag, const std::string& text) {
    std::vector<int> out;
    for (const std::string& part : split(text, ',')) {
        int value = 0;
        const char* end = part.data() + part.size();
        const auto [at, error] = std::from_chars(part.data(), end, value);
        if (error != std::errc{} || at != end || value < 1)
            throw InputError(flag, "", "\"" + text + "\"",
                             "a count from 1, or several with commas");
        out.push_back(value);
    }
    return out;
}

/// Takes a word out of the layout's words; empty if it was not said.
std::string take(LayoutWords& words, const std::string& key) {
    const auto found = words.find(key);
    if (found == words.end()) return {};
    std::string value = found->second;
    words.erase(found);
    return value;
}

/// What the flags say of the search; the rest of the words stays for the base's schedule.
void narrow(SearchSpace& space, LayoutWords& words) {
    const auto sizes = [&](const char* key, std::vector<int>& into) {
        if (const std::string text = take(words, key); !text.empty())
            into = numbers(std::string("--") + key, text);
    };
    sizes("tp", space.fixed.tp);
    sizes("cp", space.fixed.cp);
    sizes("pp", space.fixed.pp);
    sizes("dp", space.fixed.dp);
    sizes("ep", space.fixed.ep);
    sizes("etp", space.fixed.etp);
    sizes("vpp", space.virtual_pipeline_sizes);
    if (const std::string text = take(words, "micro_batch"); !text.empty())
        space.micro_batch_sizes = numbers("--micro-batch", text);
    if (const std::string text = take(words, "global_batch"); !text.empty())
        space.global_batch_size = numbers("--global-batch", text).front();
    const std::string modules = take(words, "recompute_modules");
    const std::string recompute = take(words, "recompute");
    if (!recompute.empty() || !modules.empty()) {
        Recompute one;
        if (!modules.empty())
            for (const std::string& module : split(modules, ',')) one.modules.insert(module);
        if (recompute == "full")
            one.full = true;
        else if (recompute == "selective" && one.modules.empty())
            one.modules = {"core_attn"};
        else if (recompute != "none" && recompute != "selective" && !recompute.empty())
            throw InputError("--recompute", "", recompute, "none, selective or full");
        space.recomputes = {one};
    }
    if (const std::string text = take(words, "zero"); !text.empty()) {
        const auto sharding = from_name<Sharding>(text);
        if (!sharding) throw InputError("--zero", "", text, choices<Sharding>());
        space.shardings = {*sharding};
    }
}

template <class E>
E chosen(const std::string& flag, const std::string& text) {
    const auto value = from_name<E>(text);
    if (!value) throw InputError(flag, "", text, choices<E>());
    return *value;
}

/// "8-128", or "none" for the model without pools.
DocumentPool pool_of(const std::string& text) {
    if (text == "none") return {};
    const auto parts = split(text, '-');
    if (parts.size() != 2) throw InputError("--pools", "", text, "SMALLEST-LARGEST, or none");
    return {numbers("--pools", parts[0]).front(), numbers("--pools", parts[1]).front()};
}

int run(const Words& words) {
    take_memory_in_large_steps();
    const auto fidelity = from_name<Fidelity>(words.fidelity);
    if (!fidelity || *fidelity == Fidelity::real_run)
        throw InputError("--fidelity", "", words.fidelity, "closed-form or flow");
    StepCase base;
    base.model = load_model(words.model.model);
    base.cluster = read_cluster(words.cluster);
    base.profile = read_profile(words.profile, base.cluster);
    base.routing = read_routing(words.routing);
    base.seed = words.seed;

    SearchSpace space;
    space.num_moe_heads = words.heads;
    space.num_experts = words.experts;
    space.top_k = words.top_k;
    for (const std::string& pool : words.pools) space.pools.push_back(pool_of(pool));
    space.parity = chosen<Parity>("--parity", words.parity);
    space.objective = chosen<Objective>("--objective", words.objective);
    space.quality_law = words.law == "none" ? "" : words.law;
    space.training_tokens = words.tokens;
    space.num_best = words.best;
    space.max_coarse = words.max_coarse;
    if (!words.elsewhere.empty()) space.routing_elsewhere = synthetic_routing(words.elsewhere);

    const LayoutWords given = merged_words(words.layout);
    LayoutWords layout = given;
    try {
        narrow(space, layout);
    } catch (const InputError& error) {
        throw at_its_place(error, given);
    }
    const ResolvedLayout resolved = resolve_layout(layout, base.model, std::nullopt);
    if (!resolved.broken.empty()) throw refusal(resolved.broken.front(), layout, "layout");
    base.schedule = resolved.schedule;
    std::vector<std::string> assumed = apply_defaults(space, base);
    if (words.hot_rank_load > 0) space.hot_rank_load = words.hot_rank_load;

    Runners runners{.bound = lower_bound, .coarse = estimate_step, .fine = {}};
    if (*fidelity == Fidelity::flow) runners.fine = simulate_step;

    ProgressBar bar("plan");
    SearchOptions options{.num_threads = words.threads, .progress = bar.callback()};
    Plan found = plan(space, base, runners, options);
    found.assumptions.insert(found.assumptions.begin(), assumed.begin(), assumed.end());

    if (const auto* trace = std::get_if<std::shared_ptr<const TraceReader>>(&base.routing))
        found.placement = placement_for(found, **trace, words.spare_experts);

    const Json answer = to_json(found, base);
    write_answer(words.output, answer);
    if (!words.output.quiet()) std::fputs(plan_text(found, base).c_str(), stdout);
    return found.best.empty() ? kNo : kDone;
}

}  // namespace

void add_plan(CLI::App& app, Run& run_later) {
    auto words = std::make_shared<Words>();
    CLI::App* plan = app.add_subcommand(
        "plan", "Which layouts, MoE heads and experts are worth running on this cluster");
    add_model_flag(*plan, words->model);
    add_cluster_flags(*plan, words->cluster);
    add_profile_flag(*plan, words->profile);
    const std::string search = "Search";
    plan->add_option("--heads", words->heads, "Numbers of MoE heads to try (default: the model's)")
        ->delimiter(',')
        ->check(CLI::Range(1, 65535))
        ->group(search);
    plan->add_option("--experts", words->experts,
                     "Numbers of experts to try (default: the model's)")
        ->delimiter(',')
        ->check(CLI::Range(1, 65535))
        ->group(search);
    plan->add_option("--top-k", words->top_k, "Choices a (sub-)token to try (default: the model's)")
        ->delimiter(',')
        ->check(CLI::Range(1, 65535))
        ->group(search);
    plan->add_option("--pools", words->pools,
                     "EMO's document pools to try: SMALLEST-LARGEST, or none; several with commas")
        ->delimiter(',')
        ->group(search);
    plan->add_option(
            "--parity", words->parity,
            "What stays equal while those vary: flops (default), parameters, none, rule-a, "
            "rule-b (what MH-MoE's first paper says and ran), rule-c (its second: flops and "
            "parameters)")
        ->group(search);
    plan->add_option("--objective", words->objective,
                     "What orders the candidates: throughput (default), time-to-loss or cost")
        ->group(search);
    plan->add_option("--law", words->law,
                     "Quality law: mh_calibrated (default), krajewski_2024, ludziejewski_2025, "
                     "clark_2022, tian_2025, abnar_2025 or none")
        ->group(search);
    plan->add_option("--tokens", words->tokens,
                     "Training tokens for the laws (default: 20 for each active parameter)")
        ->check(CLI::PositiveNumber)
        ->group(search);
    plan->add_option("--fidelity", words->fidelity,
                     "Of the last stage: flow (default) or closed-form")
        ->group(search);
    plan->add_option("--best", words->best, "Candidates that reach the last stage (default 12)")
        ->check(CLI::Range(1, 1000))
        ->group(search);
    plan->add_option(
            "--max-coarse", words->max_coarse,
            "Closed-form runs for each model, at most (default: 64 among them, at least 8 each)")
        ->check(CLI::Range(1, 1000000))
        ->group(search);
    plan->add_option("--hot-rank-load", words->hot_rank_load,
                     "Load of the busiest expert rank over the mean, for memory (default: 1 if "
                     "routing is balanced, else 1.5)")
        ->check(CLI::Range(1.0, 1e6))
        ->group(search);
    plan->add_option("--spare-experts", words->spare_experts,
                     "With a trace: extra expert copies that a rank may hold (default 1)")
        ->check(CLI::Range(0, 1024))
        ->group(search);
    plan->add_option("--threads", words->threads,
                     "Of the search (default: all); same answer for any")
        ->check(CLI::Range(0, 4096))
        ->group(search);
    add_layout_flags(*plan, words->layout);
    add_routing_flags(*plan, words->routing);
    plan->add_option(
            "--routing-elsewhere", words->elsewhere,
            "Routing of models that the trace does not fit (default: document-pools with the "
            "trace's concentration)")
        ->group("Routing");
    add_output_flags(*plan, words->output);
    add_seed_flag(*plan, words->seed);
    plan->footer(
        "Flags of the layout fix that size (several with commas: --tp 1,2); the others are "
        "searched.\n"
        "Example: moeplan plan --model mixtral-8x7b --cluster dgx-h100:8 --heads 1,2 --experts "
        "8,16");
    plan->callback([words, &run_later] { run_later = [words] { return run(*words); }; });
}

}  // namespace moeplan::cli
