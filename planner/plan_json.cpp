/// Plans as JSON (schemas/plan.schema.json), and what later commands read of them.

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/errors.hpp"
#include "core/text.hpp"
#include "core/version.hpp"
#include "model/layout_words.hpp"
#include "planner/plan.hpp"

namespace moeplan {
namespace {

Json to_json(const QualityEstimate& quality) {
    Json out = {
        {"loss", quality.loss}, {"low", quality.low}, {"high", quality.high}, {"law", quality.law}};
    if (quality.difference) out["difference"] = *quality.difference;
    out["notes"] = quality.notes;
    return out;
}

/// A document as a part of another: the header is the whole's.
Json part(Json whole) {
    for (const char* key : {"$schema", "version", "made"}) whole.erase(key);
    return whole;
}

Json routing_json(const StepCase& step) {
    if (const auto* synthetic = std::get_if<SyntheticRouting>(&step.routing))
        return {{"synthetic", synthetic->kind},
                {"exponent", synthetic->exponent},
                {"document_concentration", synthetic->document_concentration}};
    const auto& trace = std::get<std::shared_ptr<const TraceReader>>(step.routing);
    return {{"trace", trace->header().source}, {"digest", trace->digest()}};
}

Json candidate_json(const Candidate& candidate, const Plan& plan) {
    const ResizedModel& resized = plan.models[candidate.model];
    Json out;
    out["model"] = part(to_json(candidate.step.model));
    out["layout"] = part(layout_to_json(candidate.step.layout, candidate.step.schedule));
    out["schedule"] = part(to_json(candidate.step.schedule));
    out["predicted"] = to_json(candidate.predicted);
    if (candidate.quality) out["quality"] = to_json(*candidate.quality);
    out["routing"] = routing_json(candidate.step);
    out["heads"] = resized.shape.num_moe_heads;
    out["experts"] = resized.shape.num_experts;
    out["top_k"] = resized.shape.top_k;
    out["unequal"] = resized.notes;
    out["closed_form_step_time_s"] = candidate.coarse_time.value;
    out["fullest_rank_bytes"] = candidate.fullest_rank.value;
    out["score"] = candidate.score;
    return out;
}

/// What `--routing` takes, checked where it stands.
SyntheticRouting routing_from_json(const JsonReader& reader) {
    SyntheticRouting out;
    out.kind = reader.at("synthetic").text();
    const std::vector<std::string>& kinds = synthetic_routing_kinds();
    if (std::find(kinds.begin(), kinds.end(), out.kind) == kinds.end())
        reader.at("synthetic").fail("one of " + join(kinds, ", "));
    if (const auto exponent = reader.find("exponent")) out.exponent = exponent->number(0, 1e6);
    if (const auto found = reader.find("document_concentration"))
        out.document_concentration = found->number(0, 1e6);
    return out;
}

/// A candidate whose layout keeps every rule: what a person has edited is read like a layout of
/// their own.
StepCase candidate_from_json(const JsonReader& entry, const ClusterSpec& cluster) {
    StepCase step;
    step.cluster = cluster;
    step.model = model_from_json(entry.at("model"));
    LayoutWords words;
    const JsonReader layout = entry.at("layout");
    add_layout_words(layout, words);
    ResolvedLayout resolved = resolve_layout(words, step.model, num_gpus(cluster));
    if (const auto schedule = entry.find("schedule")) {
        add_layout_words(*schedule, words);
        resolved = resolve_layout(words, step.model, num_gpus(cluster));
    }
    step.layout = resolved.layout;
    step.schedule = resolved.schedule;
    std::vector<Finding> findings = resolved.broken;
    if (findings.empty()) findings = step_findings(step);
    for (const Finding& finding : findings)
        // Whether it fits is a model's word, which the plan had when it was made.
        if (finding.severity == Severity::broken && finding.rule != "memory")
            throw refusal(finding, words, entry.file() + ": " + layout.pointer());
    if (const auto routing = entry.find("routing")) {
        if (!routing->has("synthetic") && !routing->has("trace"))
            routing->fail("an object with \"synthetic\" or \"trace\"");
        if (routing->has("synthetic")) step.routing = routing_from_json(*routing);
    }
    return step;
}

}  // namespace

Json to_json(const Plan& plan, const StepCase& base) {
    Json out = json_header("plan");
    out["objective"] = name_of(plan.objective);
    out["model"] = base.model.name;
    out["cluster"] = part(to_json(base.cluster));
    out["profile"] = base.profile
                         ? Json{{"name", base.profile->name}, {"digest", base.profile->digest}}
                         : Json{};
    out["global_batch"] = plan.global_batch_size;
    out["training_tokens"] = plan.training_tokens;
    out["law"] = plan.quality_law;
    out["memory_limit_bytes"] = plan.memory_limit.value;
    out["candidates"] = Json::array();
    for (const Candidate& candidate : plan.best)
        out["candidates"].push_back(candidate_json(candidate, plan));
    out["front"] = plan.front;
    out["refused"] = Json::object();
    out["refused_examples"] = Json::object();
    for (const Refused& refused : plan.refused) {
        out["refused"][refused.rule] = refused.count;
        out["refused_examples"][refused.rule] = refused.example;
    }
    out["evaluated"] = plan.funnel.combinations;
    out["funnel"] = {{"combinations", plan.funnel.combinations},
                     {"legal", plan.funnel.legal},
                     {"fit", plan.funnel.fit},
                     {"looked_at", plan.funnel.scouted},
                     {"closed_form", plan.funnel.coarse},
                     {"flow", plan.funnel.fine},
                     {"not_excluded_not_run", plan.funnel.below_bound}};
    out["models"] = Json::array();
    for (const ResizedModel& model : plan.models) {
        Json entry = {{"name", model.model.name},
                      {"heads", model.shape.num_moe_heads},
                      {"experts", model.shape.num_experts},
                      {"top_k", model.shape.top_k}};
        if (!model.refused.empty()) {
            entry["refused"] = model.refused;
        } else {
            if (const MoeFeedForward* moe = first_moe(model.model))
                entry["expert_hidden_size"] = moe->expert_hidden_size;
            entry["exact_expert_hidden_size"] = model.exact.expert_hidden_size;
            entry["exact_experts"] = model.exact.num_experts;
            entry["flops_ratio"] = model.flops_ratio;
            entry["parameters_ratio"] = model.parameters_ratio;
            entry["active_parameters_ratio"] = model.active_parameters_ratio;
            entry["notes"] = model.notes;
        }
        out["models"].push_back(std::move(entry));
    }
    out["assumptions"] = plan.assumptions;
    if (plan.placement) out["placement"] = to_json(*plan.placement);
    if (!plan.nearest.empty()) out["nearest"] = plan.nearest;
    out["made"] = {{"version", kVersion},
                   {"seed", base.seed},
                   {"digests", {{"profile", base.profile ? base.profile->digest : ""}}}};
    if (const auto* trace = std::get_if<std::shared_ptr<const TraceReader>>(&base.routing))
        if (*trace) out["made"]["digests"]["trace"] = (*trace)->digest();
    return out;
}

StoredPlan plan_from_json(const JsonReader& reader) {
    if (!reader.is_object() ||
        reader.text_or("$schema", "").find("plan.schema") == std::string::npos)
        throw InputError(reader.file(), "/$schema", reader.text_or("$schema", "absent"),
                         "moeplan/plan.schema.json: a file written by moeplan plan --json");
    if (const auto version = reader.find("version"); version && version->value() != 1)
        version->fail("1, the only version of this format so far");
    StoredPlan out;
    out.file = reader.file();
    const ClusterSpec cluster = cluster_from_json(reader.at("cluster"));
    if (const auto profile = reader.find("profile")) {
        if (!profile->is_object()) profile->fail("an object with \"name\" and \"digest\"");
        out.profile = profile->text_or("name", "");
    }
    std::uint64_t seed = 0;
    if (const auto made = reader.find("made"))
        if (const auto found = made->find("seed"))
            seed = found->value().is_number_unsigned()
                       ? found->value().get<std::uint64_t>()
                       : static_cast<std::uint64_t>(found->integer(0));
    for (const JsonReader& entry : reader.at("candidates").items()) {
        StepCase step = candidate_from_json(entry, cluster);
        step.seed = seed;
        out.candidates.push_back(std::move(step));
        out.predicted.push_back(report_from_json(entry.at("predicted")));
        entry.at("predicted").at("step_time_s").number(0);
    }
    for (const JsonReader& index : reader.at("front").items()) {
        const int i = index.count(0);
        if (static_cast<std::size_t>(i) >= out.candidates.size())
            index.fail("an index below the number of candidates, " +
                       std::to_string(out.candidates.size()));
        out.front.push_back(static_cast<std::size_t>(i));
    }
    return out;
}

}  // namespace moeplan
