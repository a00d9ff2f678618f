/// `moeplan simulate`: one step of one layout, at either fidelity; or two reports side by side.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.hpp"
#include "cli/inputs.hpp"
#include "cli/report/page.hpp"
#include "cli/report/pages.hpp"
#include "cli/table.hpp"
#include "core/errors.hpp"
#include "core/memory_steps.hpp"
#include "core/output_file.hpp"
#include "core/quantity_text.hpp"
#include "core/text.hpp"
#include "simulator/step.hpp"
#include "simulator/step_fields.hpp"

namespace moeplan::cli {
namespace {

struct SimulateWords {
    ModelWords model;
    ClusterWords cluster;
    LayoutInput layout;
    RoutingInput routing;
    OutputWords output;
    std::string profile, placement, timeline, fidelity = "closed-form";
    std::vector<std::string> stragglers, link_faults, compare;
    std::uint64_t seed = 0;
    int samples = 0, distinct_micro_batches = 0;
};

/// "12:1.5" → what stands before the last colon, and the factor behind it.
std::pair<std::string, double> with_factor(const std::string& flag, const std::string& words,
                                           double least) {
    const auto colon = words.rfind(':');
    double factor = 0;
    std::size_t used = 0;
    if (colon != std::string::npos && colon > 0) try {
            factor = std::stod(words.substr(colon + 1), &used);
        } catch (const std::exception&) {
            used = 0;
        }
    if (used == 0 || used != words.size() - colon - 1 || !(factor > least) || factor > 1e6)
        throw InputError(flag, "", words,
                         flag == "--straggler" ? "RANK:FACTOR, as 12:1.5"
                                               : "LINK:FACTOR, as node0/gpu0/nvlink-up:0.5");
    return {words.substr(0, colon), factor};
}

std::string percent(double share) { return fmt::format("{:.1f} %", share * 100); }

void print_findings(const std::vector<Finding>& findings) {
    for (const Finding& finding : findings) {
        if (finding.severity == Severity::assumption) continue;
        fmt::print("{}: {}: {}\n", finding.severity == Severity::broken ? "broken" : "warning",
                   finding.rule, finding.detail);
        if (!finding.nearest.empty()) fmt::print("  would do: {}\n", join(finding.nearest, ", "));
    }
}

void print_report(const StepCase& step, const StepReport& report) {
    fmt::print("{} on {} ({} GPUs), {}\n", step.model.name, step.cluster.name,
               num_gpus(step.cluster),
               report.fidelity == Fidelity::flow ? "flow level" : "closed form");
    Table head({"", ""});
    head.row({"step time", to_text(report.step_time)});
    if (report.interval)
        head.row({report.routing_interval ? "  80 % of runs like it and draws" : "  80 % of runs like it",
                  to_text((*report.interval)[0]) + " … " + to_text((*report.interval)[1])});
    head.row({"tokens/s", fmt::format("{:.0f}", report.tokens_per_second)});
    head.row({"MFU (causal attention halved)", percent(report.mfu)});
    Bytes most;
    for (const Bytes bytes : report.peak_memory) most = std::max(most, bytes);
    head.row(
        {"memory, fullest rank",
         to_text(most) +
             (step.cluster.gpu.memory.value > 0 ? " of " + to_text(step.cluster.gpu.memory) : "")});
    if (!report.load_imbalance.empty()) {
        double mean = 0;
        for (const double imbalance : report.load_imbalance)
            mean += imbalance / static_cast<double>(report.load_imbalance.size());
        head.row({"fullest expert rank over mean", fmt::format("{:.2f}", mean)});
    }
    fmt::print("{}\n", head.text());

    Table parts({"part", "exposed", "of step", "busy"});
    std::vector<Seconds> busy;
    for_each_part(report.busy, [&](const char*, Seconds time) { busy.push_back(time); });
    std::size_t i = 0;
    for_each_part(report.exposed, [&](std::string key, Seconds time) {
        key = key.substr(0, key.size() - 2);
        std::replace(key.begin(), key.end(), '_', ' ');
        const Seconds works = busy[i++];
        if (time.value == 0 && works.value == 0) return;
        parts.row({key, to_text(time),
                   percent(report.step_time.value > 0 ? time / report.step_time : 0),
                   to_text(works)});
    });
    fmt::print("{}\n", parts.text());

    if (!report.losses.empty()) fmt::print("largest losses\n");
    for (const Loss& loss : report.losses)
        fmt::print("  {:>9}  {}\n             → {}\n", to_text(loss.time), loss.what, loss.remedy);
    fmt::print("\nkernel times: {} measured, {} interpolated, {} published, {} roofline\n",
               percent(report.basis.measured), percent(report.basis.interpolated),
               percent(report.basis.published), percent(report.basis.roofline));
    for (const auto& line : report.assumptions) fmt::print("assumed: {}\n", line);
    for (const auto& line : report.folded) fmt::print("folded: {}\n", line);
}

int compare(const std::string& left, const std::string& right, const OutputWords& output) {
    const StepReport a = report_from_json(JsonReader::from_file(left)),
                     b = report_from_json(JsonReader::from_file(right));
    const auto pairs = compare_reports(a, b);
    if (!output.quiet()) {
        Table table({"field", "A", "B", "B / A"});
        const auto shorter = [](const std::string& text) {
            return text.size() > 40 ? text.substr(0, 37) + "..." : text;
        };
        for (const auto& pair : pairs)
            table.row({pair.field, shorter(pair.a), shorter(pair.b),
                       pair.ratio ? fmt::format("{:.4g}", *pair.ratio) : ""});
        fmt::print("{}", table.text());
    }
    Json answer = json_header("comparison");
    answer["a"] = left;
    answer["b"] = right;
    answer["fields"] = Json::array();
    for (const auto& pair : pairs) {
        Json field{{"field", pair.field}, {"a", pair.a}, {"b", pair.b}};
        if (pair.ratio) field["ratio"] = *pair.ratio;
        answer["fields"].push_back(std::move(field));
    }
    write_answer(output, answer);
    return kDone;
}

int simulate(const SimulateWords& words) {
    if (!words.compare.empty()) return compare(words.compare[0], words.compare[1], words.output);
    if (words.model.model.empty())
        throw InputError("--model", "", "", "a shipped name or a file (or --compare A B)");
    take_memory_in_large_steps();
    StepCase step;
    step.model = load_model(words.model.model);
    step.cluster = read_cluster(words.cluster);
    const ResolvedLayout resolved = read_layout(words.layout, step.model, num_gpus(step.cluster));
    step.layout = resolved.layout;
    step.schedule = resolved.schedule;
    step.routing = read_routing(words.routing);
    step.seed = words.seed;
    step.distinct_micro_batches = words.distinct_micro_batches;
    if (!words.placement.empty())
        step.placement = std::make_shared<const ExpertPlacement>(
            placement_from_json(JsonReader::from_file(words.placement)));
    for (const auto& text : words.stragglers) {
        const auto [rank, factor] = with_factor("--straggler", text, 0);
        if (rank.find_first_not_of("0123456789") != std::string::npos || rank.size() > 9)
            throw InputError("--straggler", "", text, "RANK:FACTOR, as 12:1.5");
        step.disturbances.stragglers.emplace_back(std::stoi(rank), factor);
    }
    for (const auto& text : words.link_faults)
        step.disturbances.link_faults.push_back(with_factor("--link-fault", text, 0));

    std::vector<Finding> findings = resolved.broken;
    const bool contradicts = std::any_of(findings.begin(), findings.end(), [](const Finding& f) {
        return f.severity == Severity::broken;
    });
    if (!contradicts) {
        const auto more = step_findings(step);
        findings.insert(findings.end(), more.begin(), more.end());
    }
    const bool broken = std::any_of(findings.begin(), findings.end(), [](const Finding& f) {
        return f.severity == Severity::broken;
    });
    if (broken) {
        if (!words.output.quiet()) print_findings(findings);
        Json answer = json_header("report");
        answer["broken"] = Json::array();
        for (const Finding& finding : findings)
            if (finding.severity == Severity::broken)
                answer["broken"].push_back(Json{{"rule", finding.rule},
                                                {"detail", finding.detail},
                                                {"nearest", finding.nearest}});
        write_answer(words.output, answer);
        return kNo;
    }
    step.profile = read_profile(words.profile, step.cluster);
    if (step.schedule.precision == Precision::fp32 &&
        !step.profile->roofline.peak.contains(Precision::fp32))
        throw InputError("--precision", "", "fp32",
                         "a precision whose rate the profile " + step.profile->name + " knows");
    step.keep_timeline = !words.timeline.empty() || !words.output.html.empty();
    const auto fidelity = from_name<Fidelity>(words.fidelity);
    const StepRunner runner = fidelity == Fidelity::flow ? simulate_step : estimate_step;
    StepReport report = with_samples(step, runner, words.samples);
    for (const Finding& finding : resolved.assumed)
        report.assumptions.push_back(
            finding.key.empty() ? finding.detail
                                : finding.key + " = " + finding.value +
                                      (finding.detail.empty() ? "" : ": " + finding.detail));
    for (const Finding& finding : findings)
        if (finding.severity == Severity::warning)
            report.assumptions.push_back("warning: " + finding.rule + ": " + finding.detail);
    const Bytes fullest = report.peak_memory.empty() ? Bytes{}
                                                     : *std::max_element(report.peak_memory.begin(),
                                                                         report.peak_memory.end());
    if (fullest > step.cluster.gpu.memory)
        report.assumptions.push_back("warning: memory: with this routing the fullest rank needs " +
                                     to_text(fullest) + " of " + to_text(step.cluster.gpu.memory) +
                                     ": it would run out of memory");
    if (!words.timeline.empty()) write_whole(words.timeline, chrome_trace(report));
    if (!words.output.quiet()) print_report(step, report);
    write_answer(words.output, to_json(report));
    write_page(words.output.html,
               {report_of(to_json(report), ""), report_of(Json::parse(chrome_trace(report)), "")},
               fmt::format("{} on {}, {} GPUs", step.model.name, step.cluster.name,
                           count_text(num_gpus(step.cluster))));
    return kDone;
}

}  // namespace

void add_simulate(CLI::App& app, Run& run) {
    auto words = std::make_shared<SimulateWords>();
    CLI::App* command = app.add_subcommand(
        "simulate", "One training step of a model on a cluster, laid out as said");
    add_model_flag(*command, words->model, false);
    add_cluster_flags(*command, words->cluster);
    add_layout_flags(*command, words->layout);
    add_profile_flag(*command, words->profile);
    add_routing_flags(*command, words->routing);
    add_output_flags(*command, words->output);
    add_seed_flag(*command, words->seed);
    command
        ->add_option("--placement", words->placement,
                     "Where experts and their copies lie: a placement, or a plan made from a trace")
        ->type_name("FILE");
    command
        ->add_option("--fidelity", words->fidelity,
                     "closed-form: milliseconds; flow: every flow shares links by itself")
        ->check(CLI::IsMember({"closed-form", "flow"}))
        ->capture_default_str();
    command
        ->add_option("--samples", words->samples,
                     "Draw the routing so many times and give an 80 % interval")
        ->check(CLI::Range(1, 100000))
        ->type_name("N");
    command
        ->add_option("--distinct-micro-batches", words->distinct_micro_batches,
                     "Draw the routing of so many micro-batches; the others take theirs in turn")
        ->check(CLI::Range(1, 65535))
        ->type_name("N");
    command
        ->add_option("--straggler", words->stragglers,
                     "A rank whose kernels take FACTOR times as long")
        ->type_name("RANK:FACTOR");
    command
        ->add_option("--link-fault", words->link_faults,
                     "A link with FACTOR of its bandwidth (names: `cluster show`)")
        ->type_name("LINK:FACTOR");
    command->add_option("--timeline", words->timeline, "Write a Chrome trace, for Perfetto")
        ->type_name("FILE")
        ->check(why_not_writable);
    command->add_option("--compare", words->compare, "Two reports, field by field")
        ->expected(2)
        ->type_name("A B");
    command->footer(
        "Example: moeplan simulate --model mixtral-8x7b --cluster dgx-h100:16 --tp 1 --ep 8 --pp 4 "
        "--micro-batch 1 --global-batch 512 --seq 4096");
    command->callback([words, &run] { run = [words] { return simulate(*words); }; });

    // One simulation a process: a case on standard input, its report on standard output. Hidden:
    // programs call it.
    auto fidelity = std::make_shared<std::string>("flow");
    CLI::App* child = app.add_subcommand("_simulate", "")->group("");
    child->add_option("--fidelity", *fidelity)->check(CLI::IsMember({"closed-form", "flow"}));
    child->callback([fidelity, &run] {
        run = [fidelity] {
            const std::string text{std::istreambuf_iterator<char>(std::cin),
                                   std::istreambuf_iterator<char>()};
            const StepCase step =
                step_case_from_json(JsonReader::from_text(text, "standard input"));
            take_memory_in_large_steps();
            const StepReport report =
                *fidelity == "flow" ? simulate_step(step) : estimate_step(step);
            fmt::print("{}", to_file_text(to_json(report)));
            return static_cast<int>(kDone);
        };
    });
}

}  // namespace moeplan::cli
