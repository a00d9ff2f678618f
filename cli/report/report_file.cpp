#include "cli/report/report_file.hpp"

#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/errors.hpp"
#include "core/text.hpp"
#include "traces/fit.hpp"
#include "traces/statistics.hpp"

namespace moeplan::cli {
namespace {

ReportKind kind_of(const JsonReader& r) {
    if (r.is_array()) return ReportKind::training;
    static const std::map<std::string, ReportKind> by_schema = {
        {"report", ReportKind::step},           {"plan", ReportKind::plan},
        {"validation", ReportKind::validation}, {"accuracy", ReportKind::accuracy},
        {"profile", ReportKind::profile},       {"trace-stats", ReportKind::trace},
        {"corpus", ReportKind::corpus},         {"collective", ReportKind::collective},
        {"comparison", ReportKind::comparison}, {"cluster", ReportKind::cluster}};
    const std::string schema = r.text_or("$schema", "");
    const auto begin = schema.rfind('/') == std::string::npos ? 0 : schema.rfind('/') + 1;
    const auto at = by_schema.find(schema.substr(begin, schema.find('.', begin) - begin));
    if (at != by_schema.end())
        return at->second == ReportKind::step && !r.has("step_time_s") ? ReportKind::other
                                                                       : at->second;
    if (r.has("traceEvents")) return ReportKind::timeline;
    if (r.has("candidates")) return ReportKind::plan;
    if (r.has("fields") && r.has("passed")) return ReportKind::validation;
    if (r.has("step_time_s") && r.has("exposed")) return ReportKind::step;
    if (r.has("kernels")) return ReportKind::profile;
    if (r.has("verdict")) return ReportKind::check;
    if (r.has("parameters") && r.has("flops_per_token")) return ReportKind::model;
    return ReportKind::other;
}

}  // namespace

std::string kind_title(ReportKind kind) {
    switch (kind) {
        case ReportKind::step:
            return "One training step";
        case ReportKind::timeline:
            return "Timeline of a step";
        case ReportKind::plan:
            return "The plan";
        case ReportKind::validation:
            return "Predicted and measured";
        case ReportKind::accuracy:
            return "Accuracy on measured cases";
        case ReportKind::profile:
            return "What this hardware does";
        case ReportKind::trace:
            return "Where the tokens went";
        case ReportKind::training:
            return "Training";
        case ReportKind::corpus:
            return "The text";
        case ReportKind::collective:
            return "Collective communication";
        case ReportKind::comparison:
            return "Two reports side by side";
        case ReportKind::cluster:
            return "Cluster";
        case ReportKind::model:
            return "Model";
        case ReportKind::check:
            return "Layout";
        case ReportKind::other:
            return "Answer";
    }
    return "";
}

ReportFile report_of(const Json& answer, const std::string& name) {
    JsonReader reader = JsonReader::from_value(answer, name);
    const ReportKind kind = kind_of(reader);
    return {name, kind, std::move(reader)};
}

ReportFile read_report_file(const std::filesystem::path& path) {
    const std::string file = path.string(), name = path.filename().string();
    std::ifstream in(path, std::ios::binary);
    if (!in || std::filesystem::is_directory(path))
        throw InputError(file, "", "", "a readable file");
    std::string begin(16, '\0');
    in.read(begin.data(), 16);
    if (begin.starts_with("\x89HDF")) {
        const TraceReader trace(path);
        Json answer = to_json(trace_statistics(trace));
        const TraceFit fit = fit_trace(trace);
        for (std::size_t i = 0; i < fit.layers.size(); ++i)
            answer["layers"][i]["experts_times_over_dispersion"] =
                fit.layers[i].over_dispersion * fit.num_experts;
        return {name, ReportKind::trace, JsonReader::from_value(std::move(answer), file)};
    }
    in.clear();
    in.seekg(0);
    const std::string content((std::istreambuf_iterator<char>(in)), {});
    // JSON lines: the first line is a whole object, and more follow.
    const auto line_end = content.find('\n');
    if (line_end != std::string::npos &&
        content.find_first_not_of(" \r\n\t", line_end) != std::string::npos) {
        const Json first =
            Json::parse(content.begin(), content.begin() + static_cast<std::ptrdiff_t>(line_end),
                        nullptr, false);
        if (first.is_object()) {
            Json lines = Json::array();
            int number = 0;
            for (const auto& line : split(content, '\n')) {
                ++number;
                if (trim(line).empty()) continue;
                Json value = Json::parse(line, nullptr, false);
                if (!value.is_object())
                    throw InputError(file, "line " + std::to_string(number), "",
                                     "a JSON object (JSON lines)");
                lines.push_back(std::move(value));
            }
            if (!lines[0].contains("step") || !lines[0].contains("loss"))
                throw InputError(file, "line 1", "", "a training record: \"step\", \"loss\" …");
            return {name, ReportKind::training, JsonReader::from_value(std::move(lines), file)};
        }
    }
    JsonReader reader = JsonReader::from_text(content, file);
    if (!reader.is_object())
        throw InputError(file, "", "",
                         "an output of moeplan: a JSON object, training lines or a routing trace");
    ReportKind kind = kind_of(reader);
    if (kind == ReportKind::other && reader.has("step") && reader.has("loss")) {
        Json lines = Json::array();
        lines.push_back(reader.value());
        return {name, ReportKind::training, JsonReader::from_value(std::move(lines), file)};
    }
    if (kind == ReportKind::other && !reader.has("$schema"))
        throw InputError(file, "/$schema", "absent",
                         "an output of moeplan (its answers, profiles, plans and traces)");
    return {name, kind, std::move(reader)};
}

}  // namespace moeplan::cli
