#include "cli/plan_text.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "cli/table.hpp"
#include "core/quantity_text.hpp"

namespace moeplan::cli {
namespace {

std::string layout_words(const ParallelLayout& l) {
    std::string out =
        fmt::format("tp{} pp{} dp{} ep{}", l.tensor_parallel_size, l.pipeline_parallel_size,
                    l.data_parallel_size, l.expert_parallel_size);
    if (l.context_parallel_size > 1) out += fmt::format(" cp{}", l.context_parallel_size);
    if (l.expert_tensor_parallel_size > 1)
        out += fmt::format(" etp{}", l.expert_tensor_parallel_size);
    return out;
}

std::string schedule_words(const StepSchedule& s) {
    std::string out = fmt::format("mbs{}", s.micro_batch_size);
    if (s.virtual_pipeline_size > 1) out += fmt::format(" vpp{}", s.virtual_pipeline_size);
    if (s.pipeline != Pipeline::one_f_one_b && s.pipeline != Pipeline::interleaved)
        out += " " + std::string(name_of(s.pipeline));
    out += s.recompute.full ? " full-rc" : s.recompute.modules.empty() ? "" : " sel-rc";
    if (s.sharding != Sharding::zero1) out += " " + std::string(name_of(s.sharding));
    return out;
}

std::string routing_words(const StepCase& step) {
    if (const auto* synthetic = std::get_if<SyntheticRouting>(&step.routing)) {
        std::string out = "synthetic, " + synthetic->kind;
        if (synthetic->exponent > 0) out += fmt::format(" {:g}", synthetic->exponent);
        if (synthetic->document_concentration > 0)
            out += fmt::format(" (E·ρ {:.3g})", synthetic->document_concentration);
        return out;
    }
    return "recorded trace (" +
           std::get<std::shared_ptr<const TraceReader>>(step.routing)->header().source + ")";
}

std::string thousands(double value) {
    if (value >= 1e6) return fmt::format("{:.2f} M", value / 1e6);
    if (value >= 1e3) return fmt::format("{:.1f} k", value / 1e3);
    return fmt::format("{:.0f}", value);
}

}  // namespace

std::string plan_text(const Plan& plan, const StepCase& base) {
    std::string out;
    const auto line = [&](const std::string& text) { out += text + "\n"; };
    line(fmt::format("{} on {} ({} GPUs), global batch {} × {} tokens, by {}", base.model.name,
                     base.cluster.name, num_gpus(base.cluster), plan.global_batch_size,
                     base.schedule.sequence_length, name_of(plan.objective)));
    const Funnel& funnel = plan.funnel;
    line(fmt::format(
        "{} combinations → {} legal → {} fit → {} looked at → {} priced in closed form → {} at flow level\n",
        funnel.combinations, funnel.legal, funnel.fit, funnel.scouted, funnel.coarse, funnel.fine));

    if (plan.best.empty()) {
        line("Nothing fits.");
    } else {
        Table table({"", "heads", "experts", "top-k", "width", "layout", "schedule", "step",
                     "tokens/s", "MFU", "memory", "loss (range)", "against asked"});
        for (std::size_t i = 0; i < plan.best.size(); ++i) {
            const Candidate& c = plan.best[i];
            const MoeFeedForward* moe = first_moe(c.step.model);
            const bool front =
                std::find(plan.front.begin(), plan.front.end(), i) != plan.front.end();
            table.row({fmt::format("{}{}", i, front ? " *" : ""),
                       moe ? std::to_string(moe->num_moe_heads) : "-",
                       moe ? std::to_string(moe->num_experts) : "-",
                       moe ? std::to_string(moe->top_k) : "-",
                       moe ? std::to_string(moe->expert_hidden_size) : "-",
                       layout_words(c.step.layout), schedule_words(c.step.schedule),
                       to_text(c.predicted.step_time), thousands(c.predicted.tokens_per_second),
                       fmt::format("{:.3f}", c.predicted.mfu), to_text(c.fullest_rank),
                       c.quality ? fmt::format("{:.2f} ({:.2f} … {:.2f})", c.quality->loss,
                                               c.quality->low, c.quality->high)
                                 : "-",
                       c.quality && c.quality->difference
                           ? fmt::format("{:+.3f} … {:+.3f}", (*c.quality->difference)[0],
                                         (*c.quality->difference)[1])
                           : "-"});
        }
        out += table.text();
        line("* not dominated in step time, loss range and memory among these");
        if (const auto& interval = plan.best.front().predicted.interval)
            line(fmt::format("80 % of published runs like the first would take {} … {} a step",
                             to_text((*interval)[0]), to_text((*interval)[1])));
        line("");
    }

    if (!plan.refused.empty()) {
        line("Refused (a combination may break several rules):");
        Table table({"rule", "count", "for example"});
        for (const Refused& refused : plan.refused)
            table.row({refused.rule, std::to_string(refused.count), refused.example});
        out += table.text() + "\n";
    }
    if (!plan.nearest.empty()) line("Nearest that would fit: " + plan.nearest + "\n");

    if (!plan.best.empty()) {
        const Candidate& best = plan.best.front();
        const BasisShare& basis = best.predicted.basis;
        line("Rests on");
        line(
            fmt::format("  kernel times of {}: {:.0f} % measured, {:.0f} % interpolated, {:.0f} % "
                        "published, {:.0f} % roofline (candidate 0)",
                        base.profile ? base.profile->name : "no profile", 100 * basis.measured,
                        100 * basis.interpolated, 100 * basis.published, 100 * basis.roofline));
        line("  routing: " + routing_words(best.step));
        for (const std::string& assumption : plan.assumptions) line("  " + assumption);
        std::set<std::string> notes;
        for (const Candidate& c : plan.best) {
            if (!c.quality) continue;
            for (const std::string& note : c.quality->notes)
                if (notes.insert(note).second) line("  loss: " + note);
            if (notes.size() > 6) break;
        }
        for (const ResizedModel& model : plan.models) {
            if (!model.refused.empty())
                line("  " + model.model.name + ": no such model: " + model.refused);
        }
        std::set<std::size_t> told;
        for (const Candidate& c : plan.best)
            if (told.insert(c.model).second && !plan.models[c.model].notes.empty())
                line("  " + c.step.model.name + ": " + plan.models[c.model].notes.back());
    }
    if (const auto& placement = plan.placement)
        line(fmt::format(
            "Experts placed by popularity over {} ranks: busiest over mean {:.3f} → {:.3f}, "
            "with {} spare slot(s) a rank {:.3f} (on later steps of the trace)",
            placement->num_ranks, placement->contiguous, placement->placed, placement->spare_slots,
            placement->replicated));
    return out;
}

std::string validation_text(const Validation& validation, const Shrunk& shrunk,
                            const StepReport& measured, const std::optional<PaceShift>& pace) {
    std::string out = "Made smaller for this machine:\n";
    for (const std::string& change : shrunk.changes) out += "  " + change + "\n";
    Table table({"field", "predicted", "measured", "error", "tolerance", ""});
    for (const FieldError& field : validation.fields)
        table.row({field.field, fmt::format("{:.4g}", field.predicted),
                   fmt::format("{:.4g}", field.measured),
                   std::isfinite(field.relative_error())
                       ? fmt::format("{:+.1f} %", 100 * field.relative_error())
                       : "-",
                   field.tolerance ? fmt::format("{:.0f} %", 100 * *field.tolerance) : "",
                   field.tolerance ? (field.passed() ? "ok" : "MISSED") : ""});
    out += "\n" + table.text();
    if (measured.relative_spread)
        out += fmt::format("Measured step time varied by {:.1f} %.\n",
                           100 * *measured.relative_spread);
    if (pace)
        out += fmt::format(
            "The machine's pace: a reference piece took {} in the profile and {} around the steps "
            "({:+.0f} %); at that pace {} are predicted ({:+.1f} %).\n",
            to_text(pace->profiled), to_text(pace->measured), 100 * (pace->slower() - 1),
            to_text(pace->predicted_step), 100 * pace->relative_error);
    out += "\nThis run checks:\n";
    for (const std::string& part : shrunk.checked) out += "  " + part + "\n";
    out += "It cannot check:\n";
    for (const std::string& part : shrunk.unchecked) out += "  " + part + "\n";
    out += validation.passed ? "\nPassed.\n" : "\nA tolerance was missed.\n";
    return out;
}

}  // namespace moeplan::cli
