/// `moeplan check`: may this layout run at all, and does it fit?

#include "model/check.hpp"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.hpp"
#include "cli/inputs.hpp"
#include "cli/table.hpp"
#include "core/quantity_text.hpp"
#include "core/text.hpp"

namespace moeplan::cli {
namespace {

/// A number where the text is one.
Json value_json(const std::string& text) {
    if (!text.empty() && text.size() < 10 &&
        text.find_first_not_of("0123456789") == std::string::npos)
        return Json(std::stoll(text));
    if (text == "true" || text == "false") return Json(text == "true");
    return Json(text);
}

Json finding_json(const Finding& finding) {
    Json out = Json::object();
    out["rule"] = finding.rule;
    out["detail"] = finding.detail;
    if (!finding.key.empty()) out["key"] = finding.key, out["value"] = value_json(finding.value);
    if (finding.severity == Severity::broken) out["nearest"] = finding.nearest;
    for (const auto& [name, figure] : finding.figures) out[name] = figure;
    return out;
}

Json facts_json(const LayoutFacts& facts) {
    Json out = Json::object();
    out["world_size"] = facts.world_size;
    out["expert_model_size"] = facts.expert_model_size;
    out["min_gpus"] = facts.min_gpus;
    if (facts.expert_data_parallel_size) out["edp"] = *facts.expert_data_parallel_size;
    if (facts.experts_per_rank) out["experts_per_rank"] = *facts.experts_per_rank;
    if (facts.max_valid_ep) out["max_valid_ep"] = *facts.max_valid_ep;
    out["valid_tp"] = facts.valid_tp;
    out["valid_ep"] = facts.valid_ep;
    out["virtual_stages"] = facts.virtual_stages;
    out["decoder_layers"] = facts.decoder_layers;
    out["mtp_layers"] = facts.mtp_layers;
    out["layers_per_stage"] = facts.layers_per_stage;
    out["moe_layers_per_stage"] = facts.moe_layers_per_stage;
    out["expert_params_per_gpu"] = facts.expert_params_per_gpu;
    if (facts.gathered_layer.value > 0) {
        out["gathered_layer_bytes"] = facts.gathered_layer.value;
        out["gathered_layer_gib"] = facts.gathered_layer / Bytes{1024.0 * 1024 * 1024};
    }
    return out;
}

Json memory_json(const StageMemory& stage, std::optional<Bytes> limit) {
    Json out = Json::object();
    out["stage"] = stage.stage;
    out["rank"] = stage.rank;
    out["weights_bytes"] = stage.weights.value;
    out["gradients_bytes"] = stage.gradients.value;
    out["optimizer_bytes"] = stage.optimizer.value;
    out["activations_bytes"] = stage.activations.value;
    out["dispatch_bytes"] = stage.dispatch.value;
    out["other_bytes"] = stage.other.value;
    out["total_bytes"] = stage.total().value;
    out["limit_bytes"] = limit ? Json(limit->value) : Json(nullptr);
    return out;
}

std::string page(Verdict verdict, const std::vector<Finding>& findings,
                 const std::vector<StageMemory>& memory, std::optional<Bytes> limit) {
    std::string out = std::string(name_of(verdict)) + "\n";
    const auto list = [&](Severity severity, const char* head) {
        bool first = true;
        for (const Finding& finding : findings) {
            if (finding.severity != severity) continue;
            if (first) out += std::string("\n") + head + "\n";
            first = false;
            out += "  ";
            if (severity == Severity::assumption) out += finding.key + " = " + finding.value + ": ";
            out += finding.detail;
            if (!finding.nearest.empty()) out += " (would do: " + join(finding.nearest, ", ") + ")";
            out += "\n";
        }
    };
    list(Severity::broken, "Broken rules");
    list(Severity::warning, "Warnings");
    list(Severity::assumption, "Assumed");
    Table table({"stage", "weights", "gradients", "optimizer", "activations", "dispatch", "other",
                 "total", limit ? "of " + to_text(*limit) : ""});
    constexpr std::size_t kMostRows = 64;  // the whole of a longer pipeline is in --json
    for (const StageMemory& stage : memory) {
        if (static_cast<std::size_t>(stage.stage) >= kMostRows) break;
        table.row({std::to_string(stage.stage), to_text(stage.weights), to_text(stage.gradients),
                   to_text(stage.optimizer), to_text(stage.activations), to_text(stage.dispatch),
                   to_text(stage.other), to_text(stage.total()),
                   limit ? (stage.total() > *limit ? "does not fit" : "fits") : ""});
    }
    out += "\nMemory of the fullest rank of each stage\n" + table.text();
    if (memory.size() > kMostRows)
        out += "… and " + std::to_string(memory.size() - kMostRows) + " more stages (--json)\n";
    return out;
}

}  // namespace

void add_check(CLI::App& app, Run& run) {
    CLI::App* check = app.add_subcommand(
        "check", "Every rule a layout breaks, what was assumed, memory of each pipeline stage");
    check->footer(
        "Example: moeplan check --model qwen3-30b-a3b --cluster dgx-h100:4 --ep 8 --micro-batch 1");
    struct Words {
        ModelWords model;
        ClusterWords cluster;
        LayoutInput layout;
        double hot_rank_load = 1;
        OutputWords output;
    };
    const auto words = std::make_shared<Words>();
    add_model_flag(*check, words->model);
    add_cluster_flags(*check, words->cluster);
    add_layout_flags(*check, words->layout);
    check
        ->add_option("--hot-rank-load", words->hot_rank_load,
                     "Load of the busiest expert rank over the mean, for its buffers")
        ->check(CLI::Range(1.0, 1e6))
        ->capture_default_str();
    add_output_flags(*check, words->output);
    check->callback([words, &run] {
        run = [words]() -> int {
            const ModelSpec model = load_model(words->model.model);
            std::optional<ClusterSpec> cluster;
            if (words->cluster.given()) cluster = read_cluster(words->cluster);
            std::optional<int> gpus;
            std::optional<Bytes> limit;
            if (cluster) gpus = num_gpus(*cluster), limit = cluster->gpu.memory;

            const ResolvedLayout resolved = read_layout(words->layout, model, gpus);
            std::vector<Finding> findings = resolved.broken;
            for (const Finding& finding :
                 check_layout(model, resolved.layout, resolved.schedule, gpus.value_or(0)))
                findings.push_back(finding);
            if (cluster && !cluster->gpu.peak.empty() &&
                !cluster->gpu.peak.count(resolved.schedule.precision))
                findings.push_back({.severity = Severity::broken,
                                    .rule = "precision",
                                    .detail = cluster->gpu.name + " does not compute in " +
                                              std::string(name_of(resolved.schedule.precision)),
                                    .key = "precision",
                                    .value = std::string(name_of(resolved.schedule.precision))});
            findings.insert(findings.end(), resolved.assumed.begin(), resolved.assumed.end());
            const auto memory =
                memory_by_stage(model, resolved.layout, resolved.schedule, words->hot_rank_load);
            const Verdict verdict = verdict_of(findings, memory, limit);

            Json answer = Json::object();
            answer["verdict"] = std::string(name_of(verdict));
            answer["broken"] = Json::array();
            answer["warnings"] = Json::array();
            answer["assumed"] = Json::object();
            answer["assumptions"] = Json::array();
            for (const Finding& finding : findings) {
                if (finding.severity == Severity::assumption) {
                    answer["assumed"][finding.key] = value_json(finding.value);
                    answer["assumptions"].push_back(finding_json(finding));
                } else {
                    answer[finding.severity == Severity::broken ? "broken" : "warnings"].push_back(
                        finding_json(finding));
                }
            }
            answer["layout"] = layout_to_json(resolved.layout, resolved.schedule);
            answer["facts"] = facts_json(
                layout_facts(model, resolved.layout, resolved.schedule, gpus.value_or(0)));
            answer["memory"] = Json::array();
            for (const StageMemory& stage : memory)
                answer["memory"].push_back(memory_json(stage, limit));
            if (!words->output.quiet())
                std::fputs(page(verdict, findings, memory, limit).c_str(), stdout);
            write_answer(words->output, answer);
            return verdict == Verdict::valid ? kDone : kNo;
        };
    });
}

}  // namespace moeplan::cli
