/// moeplan export: a planned candidate in another system's own words.

#include "planner/export.hpp"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "cli/command.hpp"
#include "core/errors.hpp"
#include "core/output_file.hpp"
#include "planner/plan.hpp"

namespace moeplan::cli {
namespace {

struct Words {
    std::string plan, to, out = "-";
    int candidate = 0;
};

int run(const Words& words) {
    const auto target = from_name<ExportTarget>(words.to);
    if (!target) throw InputError("--to", "", words.to, choices<ExportTarget>());
    const StoredPlan plan = plan_from_json(JsonReader::from_file(words.plan));
    if (plan.candidates.empty()) {
        std::fprintf(stderr, "moeplan: %s has no candidate: nothing fitted\n", words.plan.c_str());
        return kNo;
    }
    if (static_cast<std::size_t>(words.candidate) >= plan.candidates.size())
        throw InputError("--candidate", "", std::to_string(words.candidate),
                         "0 … " + std::to_string(plan.candidates.size() - 1));
    const Exported exported = export_to(*target, plan.candidates[words.candidate]);
    if (!exported.refused.empty()) {
        std::string others;
        for (std::size_t i = 0; i < plan.candidates.size(); ++i)
            if (export_to(*target, plan.candidates[i]).refused.empty())
                others += " " + std::to_string(i);
        std::fprintf(stderr, "moeplan: candidate %d: %s%s%s\n", words.candidate,
                     exported.refused.c_str(),
                     others.empty() ? "" : "; --candidate that can be exported:", others.c_str());
        return kNo;
    }
    write_whole(words.out, exported.text);
    for (const std::string& note : exported.notes) std::fprintf(stderr, "note: %s\n", note.c_str());
    return kDone;
}

}  // namespace

void add_export(CLI::App& app, Run& run_later) {
    auto words = std::make_shared<Words>();
    CLI::App* sub =
        app.add_subcommand("export", "A planned candidate in another system's own words");
    sub->add_option("--plan", words->plan, "A file of moeplan plan --json")
        ->required()
        ->type_name("FILE");
    sub->add_option("--to", words->to,
                    "megatron (script), deepspeed (JSON), torchtitan (TOML) or slurm")
        ->required();
    sub->add_option("--candidate", words->candidate, "Index in the plan (default 0, the best)")
        ->check(CLI::NonNegativeNumber);
    sub->add_option("--out", words->out, "Where to (default: standard output)")->type_name("FILE");
    sub->footer(
        "Example: moeplan plan --model mixtral-8x7b --cluster dgx-h100:2 --fidelity closed-form "
        "--json "
        "plan.json && moeplan export --plan plan.json --to megatron");
    sub->callback([words, &run_later] { run_later = [words] { return run(*words); }; });
}

}  // namespace moeplan::cli
