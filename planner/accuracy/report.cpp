#include "planner/accuracy/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/text.hpp"
#include "planner/accuracy/ranking.hpp"
#include "planner/accuracy/summary.hpp"
#include "simulator/step_fields.hpp"

namespace moeplan {
namespace {

bool is_step_time(const AccuracyRow& row) { return row.metric == Metric::step_time; }

std::string quoted(const std::string& text) {
    if (text.find_first_of(",\"\n") == std::string::npos) return text;
    std::string out = "\"";
    for (const char c : text) out += c == '"' ? "\"\"" : std::string(1, c);
    return out + "\"";
}

std::string words(const Assumption& assumption) {
    std::string out = assumption.key;
    if (!assumption.value.empty()) out += " = " + assumption.value;
    return assumption.why.empty() ? out : out + ": " + assumption.why;
}

Json row_json(const AccuracyRow& row) {
    Json out = {{"id", row.id},
                {"metric", std::string(name_of(row.metric))},
                {"source", row.source},
                {"gpu", row.gpu},
                {"precision", row.precision},
                {"architecture", row.architecture},
                {"predicted", row.predicted}};
    if (row.predicted_neutral) out["predicted_neutral"] = *row.predicted_neutral;
    if (row.predicted_source_left_out)
        out["predicted_source_left_out"] = *row.predicted_source_left_out;
    out["measured"] = row.measured;
    out["relative_error"] = row.error();
    if (row.interval) out["interval"] = *row.interval;
    out["assumed"] = Json::array();
    for (const Assumption& assumption : row.assumed) out["assumed"].push_back(words(assumption));
    return out;
}

}  // namespace

Json to_json(const Evaluation& evaluation) {
    Json out = json_header("accuracy");
    const auto summary = [&](Judged judged) {
        Json all = to_json(summarize(evaluation.rows, is_step_time, judged));
        return all;
    };
    Json head = {{"records", evaluation.rows.size() + evaluation.skipped.size()}};
    std::size_t assumed = 0;
    for (const AccuracyRow& row : evaluation.rows) assumed += !row.assumed.empty();
    head["predicted"] = evaluation.rows.size();
    head["with_assumptions"] = assumed;
    head["skipped"] = evaluation.skipped.size();
    const MemoryVerdicts verdicts = memory_verdicts(evaluation.rows);
    head["memory_runs"] = verdicts.runs;
    head["memory_refuses"] = verdicts.refused;
    Json fitted = summary(Judged::fitted);
    fitted.erase("records");
    head["step_times"] = summarize(evaluation.rows, is_step_time).count;
    head.update(fitted);
    out["summary"] = std::move(head);
    out["summary_neutral"] = summary(Judged::neutral);
    out["summary_source_left_out"] = summary(Judged::source_left_out);
    out["by"] = Json::object();
    for (const char* key : {"gpu", "precision", "architecture", "source", "metric"}) {
        out["by"][key] = Json::object();
        for (const auto& [value, part] : summarize_by(evaluation.rows, key))
            out["by"][key][value] = to_json(part);
    }
    const Ranking ranking = rank_layouts(evaluation.rows);
    out["sweeps"] = to_json(ranking);
    out["sweep_families"] = families_json(ranking);
    out["held_out"] = Json::array();
    for (const HeldOutSummary& part : summarize_held_out(evaluation.held_out)) {
        Json entry = {{"kind", part.kind}, {"variant", part.variant}, {"held_out", part.held_out}};
        entry.update(to_json(part.errors));
        out["held_out"].push_back(std::move(entry));
    }
    out["worst"] = Json::array();
    for (const WorstRow& worst : worst_rows(evaluation.rows, Metric::step_time, 10))
        out["worst"].push_back(
            Json{{"id", worst.row->id},
                 {"predicted_over_measured", worst.row->predicted / worst.row->measured},
                 {"cause", worst.cause}});
    out["records"] = Json::array();
    for (const AccuracyRow& row : evaluation.rows) out["records"].push_back(row_json(row));
    for (const HeldOutRow& row : evaluation.held_out)
        out["records"].push_back(Json{{"id", row.id},
                                      {"metric", row.kind},
                                      {"what", row.what},
                                      {"held_out", row.held_out},
                                      {"gpu", row.gpu},
                                      {"precision", row.precision},
                                      {"predicted", row.predicted},
                                      {"measured", row.measured},
                                      {"relative_error", row.error()},
                                      {"assumed", Json::array()}});
    for (const SkippedRecord& skipped : evaluation.skipped)
        out["records"].push_back(
            Json{{"id", skipped.id}, {"rule", skipped.rule}, {"skipped", skipped.reason}});
    return out;
}

std::string rows_as_csv(const Evaluation& evaluation) {
    std::string out =
        "id,metric,source,gpu,precision,architecture,framework,release,model,gpus,seq,global_batch,"
        "layout,measured,predicted,ratio,predicted_neutral,predicted_source_left_out";
    const TimeBreakdown names;
    for (const char* kind : {"exposed", "busy"})
        for_each_part(
            names, [&](const char* key, Seconds) { out += std::string(",") + kind + "." + key; });
    out += ",assumed,warnings\n";
    for (const AccuracyRow& row : evaluation.rows) {
        out +=
            join({quoted(row.id), std::string(name_of(row.metric)), quoted(row.source), row.gpu,
                  row.precision, row.architecture, quoted(row.framework), quoted(row.release),
                  quoted(row.model), std::to_string(row.gpus), std::to_string(row.seq),
                  std::to_string(row.global_batch), quoted(row.layout), exact_text(row.measured),
                  exact_text(row.predicted), fmt::format("{:.4f}", row.predicted / row.measured)},
                 ",");
        for (const auto& other : {row.predicted_neutral, row.predicted_source_left_out})
            out += "," + (other ? exact_text(*other) : "");
        for (const TimeBreakdown* parts : {&row.exposed, &row.busy})
            for_each_part(*parts, [&](const char*, Seconds time) {
                out += fmt::format(",{:.6g}", time.value);
            });
        std::vector<std::string> assumed;
        for (const Assumption& assumption : row.assumed) assumed.push_back(words(assumption));
        out += "," + quoted(join(assumed, "; ")) + "," + quoted(join(row.warnings, "; ")) + "\n";
    }
    return out;
}

}  // namespace moeplan
