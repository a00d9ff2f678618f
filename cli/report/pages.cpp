#include "cli/report/pages.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/report/accuracy_page.hpp"
#include "cli/report/cluster_page.hpp"
#include "cli/report/model_page.hpp"
#include "cli/report/page.hpp"
#include "cli/report/plan_page.hpp"
#include "cli/report/step_page.hpp"
#include "cli/report/values.hpp"
#include "core/errors.hpp"
#include "core/output_file.hpp"
#include "core/quantity_text.hpp"
#include "core/text.hpp"
#include "traces/fit.hpp"
#include "traces/statistics.hpp"

namespace moeplan::cli {
namespace {

constexpr std::size_t kMostRows = 64;  ///< of a table or of bars; a page is to be looked at

/// A running mean over a fortieth of the curve: what a noisy loss is read by.
std::vector<std::array<double, 2>> smoothed(const std::vector<std::array<double, 2>>& points) {
    const auto half = static_cast<std::ptrdiff_t>(points.size() / 80);
    std::vector<std::array<double, 2>> out;
    for (const std::size_t i : evenly(points.size(), kMostPoints)) {
        const auto at = static_cast<std::ptrdiff_t>(i);
        const std::ptrdiff_t reach =
            std::min({half, at, static_cast<std::ptrdiff_t>(points.size()) - 1 - at});
        double sum = 0;
        for (std::ptrdiff_t j = at - reach; j <= at + reach; ++j)
            sum += points[static_cast<std::size_t>(j)][1];
        out.push_back({points[i][0], sum / static_cast<double>(2 * reach + 1)});
    }
    return out;
}

/// The plan's own sections, memory beside them, and the recommended step in full.
void add_plan(Page& page, const JsonReader& r) {
    add_plan_sections(page, r);
    const auto candidates = r.at("candidates");
    if (candidates.size() == 0) return;
    std::set<std::size_t> front;
    for (const double i : numbers(r.find("front")))
        front.insert(static_cast<std::size_t>(std::max(0.0, i)));
    Chart memory{.kind = ChartKind::scatter,
                 .title = "Step time against memory",
                 .x_axis = "step time (s)",
                 .y_axis = "fullest rank (GiB)",
                 .words = "Points further down leave more memory free."};
    memory.y_from_zero = false;
    Series on_front{.name = "front", .emphasised = true, .line = false},
        others{.name = "candidates", .line = false};
    for (std::size_t i = 0; i < candidates.size(); ++i) {
        const auto c = candidates.at(i);
        double bytes = c.number_or("fullest_rank_bytes", 0);
        for (const double b : numbers(c.at("predicted").find("peak_memory_bytes")))
            bytes = std::max(bytes, b);
        Series& series = front.contains(i) ? on_front : others;
        series.points.push_back(
            {c.at("predicted").at("step_time_s").number(), bytes / (1024.0 * 1024 * 1024)});
        series.labels.push_back("candidate " + std::to_string(i));
    }
    for (Series* series : {&on_front, &others})
        if (!series->points.empty()) memory.series.push_back(std::move(*series));
    page.chart(memory);
    page.section("The recommended step");
    add_step_sections(page, candidates.at(std::size_t{0}).at("predicted"));
}

std::string capital(std::string word) {
    if (!word.empty())
        word[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(word[0])));
    return word;
}

/// Whatever else: single values as a list, arrays of objects as tables.
void add_other(Page& page, const JsonReader& r) {
    std::vector<std::pair<std::string, std::string>> single;
    for (const auto& [key, value] : r.members()) {
        if (key == "$schema" || key == "version" || value.is_array()) continue;
        if (!value.is_object()) {
            single.push_back({spaced(key), value_text(key, value)});
            continue;
        }
        for (const auto& [inner, inner_value] : value.members())
            if (!inner_value.is_object() && !inner_value.is_array())
                single.push_back(
                    {spaced(key) + ", " + spaced(inner), value_text(inner, inner_value)});
    }
    if (!single.empty()) page.facts(single);
    for (const auto& [key, value] : r.members()) {
        if (!value.is_array() || value.size() == 0 || !value.at(std::size_t{0}).is_object())
            continue;
        std::vector<std::string> head, keys;
        for (const auto& [column, cell] : value.at(std::size_t{0}).members())
            if (!cell.is_object() && !cell.is_array()) {
                keys.push_back(column);
                head.push_back(spaced(column));
            }
        std::vector<std::vector<std::string>> rows;
        for (const auto& item : value.items()) {
            if (!item.is_object() || rows.size() >= kMostRows) break;
            auto& row = rows.emplace_back();
            for (const auto& column : keys)
                row.push_back(item.has(column) ? value_text(column, item.at(column)) : "–");
        }
        page.paragraph(capital(spaced(key)) +
                       (value.size() > rows.size()
                            ? fmt::format(", the first {} of {}", rows.size(), value.size())
                            : ""));
        page.table(head, rows);
    }
}

/// Columns by name, a row at a time.
void for_each_row(const JsonReader& curve,
                  const std::function<void(const std::map<std::string, double>&)>& visit) {
    const auto columns = texts(curve.find("columns"));
    for (const auto& row : curve.at("rows").items()) {
        std::map<std::string, double> values;
        const auto cells = row.items();
        for (std::size_t i = 0; i < cells.size() && i < columns.size(); ++i)
            if (cells[i].is_number()) values[columns[i]] = cells[i].number();
        visit(values);
    }
}

void add_profile(Page& page, const JsonReader& r) {
    page.figures({{r.text_or("device", "?"), "device"},
                  {std::to_string(r.has("kernels") ? r.at("kernels").size() : 0), "kernel curves"},
                  {std::to_string(r.has("links") ? r.at("links").size() : 0), "link curves"}});
    Chart rates{.kind = ChartKind::scatter,
                .title = "Matrix products: work against rate",
                .x_axis = "flops of one call",
                .y_axis = "Flop/s",
                .words = "Each point is one measured shape.",
                .log_x = true,
                .log_y = true};
    Chart spread{.kind = ChartKind::scatter,
                 .title = "Spread of the measurements",
                 .x_axis = "median, seconds",
                 .y_axis = "relative spread",
                 .words = "How far repeated measurements of a shape lie apart, over the median.",
                 .log_x = true};
    std::vector<std::vector<std::string>> rows;
    if (const auto kernels = r.find("kernels"))
        for (const auto& curve : kernels->items()) {
            const std::string name =
                curve.at("kernel").text() + " " + curve.text_or("precision", "");
            Series rate{.name = name, .line = false}, spreads{.name = name, .line = false};
            std::size_t count = 0;
            double worst = 0;
            for_each_row(curve, [&](const auto& v) {
                ++count;
                const auto get = [&](const char* key) {
                    const auto at = v.find(key);
                    return at == v.end() ? 0.0 : at->second;
                };
                const double median = get("median_s");
                if (!(median > 0)) return;
                const double flops = 2 * get("m") * get("n") * get("k");
                if (flops > 0) rate.points.push_back({flops, flops / median});
                if (v.contains("relative_spread"))
                    spreads.points.push_back({median, get("relative_spread")});
                worst = std::max(worst, get("relative_spread"));
            });
            if (rows.size() < kMostRows)
                rows.push_back(
                    {name, curve.text_or("basis", ""), std::to_string(count), percent(worst)});
            if (!rate.points.empty() && rates.series.size() < 8)
                rates.series.push_back(std::move(rate));
            if (!spreads.points.empty() && spread.series.size() < 8)
                spread.series.push_back(std::move(spreads));
        }
    if (!rates.series.empty()) page.chart(rates);
    Chart links{.kind = ChartKind::scatter,
                .title = "Links: message against time",
                .x_axis = "bytes",
                .y_axis = "seconds",
                .words = "Median time of a collective over its message size.",
                .log_x = true,
                .log_y = true};
    if (const auto curves = r.find("links"))
        for (const auto& curve : curves->items()) {
            Series series{.name = fmt::format("{}, {} ranks", spaced(curve.at("collective").text()),
                                              curve.count_or("num_ranks", 0))};
            for_each_row(curve, [&](const auto& v) {
                const auto bytes = v.find("bytes"), median = v.find("median_s");
                if (bytes != v.end() && median != v.end() && bytes->second > 0 &&
                    median->second > 0)
                    series.points.push_back({bytes->second, median->second});
            });
            if (!series.points.empty() && links.series.size() < 10)
                links.series.push_back(std::move(series));
        }
    if (!links.series.empty()) page.chart(links);
    if (!spread.series.empty()) page.chart(spread);
    if (!rows.empty()) page.table({"kernel", "basis", "shapes", "widest spread"}, rows);
    if (rates.series.empty() && links.series.empty()) {
        page.paragraph("Nothing was measured: times come from the datasheet's roofline.");
        add_other(page, r);
    }
}

void add_trace(Page& page, const JsonReader& r) {
    const int experts = r.at("num_experts").count(1);
    page.figures({{count_text(r.number_or("tokens", 0)),
                   "tokens in " + std::to_string(r.count_or("steps", 0)) +
                       (r.count_or("steps", 0) == 1 ? " step" : " steps")},
                  {fmt::format("top {} of {}", r.count_or("top_k", 0), experts),
                   r.count_or("num_moe_heads", 1) > 1
                       ? std::to_string(r.count_or("num_moe_heads", 1)) + " MoE heads"
                       : "experts"},
                  {spaced(r.text_or("source", "?")), "source"}});
    HeatMap heat{.title = "Load of the experts, over the mean",
                 .x_axis = "expert",
                 .y_axis = "layer",
                 .words =
                     "One row a MoE layer, one column an expert, over all steps; an even row is a "
                     "balanced layer.",
                 .unit = "× the mean"};
    Chart ranks{
        .kind = ChartKind::line,
        .title = "Busiest rank over the mean, in one micro-batch",
        .x_axis = "expert-parallel ranks",
        .y_axis = "max / mean",
        .words = "What a layer waits for, when experts lie in equal blocks; 1 is perfect balance.",
        .log_x = true};
    ranks.y_from_zero = false;
    std::vector<std::vector<std::string>> rows;
    const auto layers = r.at("layers");
    for (const std::size_t i : evenly(layers.size(), kMostRows)) {
        const auto layer = layers.at(i);
        const std::string name =
            "layer " + std::to_string(layer.count_or("layer", static_cast<int>(i)));
        auto counts = numbers(layer.find("tokens_per_expert"));
        double total = 0;
        for (const double c : counts) total += c;
        for (double& c : counts) c = total > 0 ? c * static_cast<double>(counts.size()) / total : 0;
        heat.rows.push_back(name);
        heat.values.push_back(std::move(counts));
        Series series{.name = name};
        if (const auto micro_batch = layer.find("micro_batch");
            micro_batch && micro_batch->has("by_ranks"))
            for (const auto& [n, value] : micro_batch->at("by_ranks").members())
                series.points.push_back({std::stod(n), number_at(value, {"mean"}, 1)});
        if (!series.points.empty() && ranks.series.size() < 8)
            ranks.series.push_back(std::move(series));
        const auto cell = [&](const char* key) {
            return layer.has(key) && layer.at(key).is_number()
                       ? fmt::format("{:.3g}", layer.at(key).number())
                       : std::string("–");
        };
        rows.push_back(
            {name, cell("max_over_mean"),
             fmt::format("{:.3g}", number_at(layer, {"micro_batch", "max_over_mean", "mean"}, 1)),
             cell("gini"), cell("entropy"), cell("experts_times_over_dispersion"),
             cell("domain_cosine"), cell("sum_of_chosen_gates")});
    }
    page.heat_map(heat);
    if (!ranks.series.empty()) page.chart(ranks);
    if (const auto drift = r.find("drift"); drift && drift->size() > 1) {
        Chart chart{.kind = ChartKind::line,
                    .title = "Over the steps",
                    .x_axis = "step",
                    .words =
                        "Max over mean of single micro-batches, and how popularity correlates with "
                        "the window before."};
        Series balance{.name = "max / mean of a micro-batch"},
            same{.name = "correlation of popularity"};
        for (const auto& window : drift->items()) {
            balance.points.push_back(
                {window.at("to_step").number(), window.number_or("micro_batch_max_over_mean", 1)});
            if (window.has("popularity_correlation"))
                same.points.push_back(
                    {window.at("to_step").number(), window.at("popularity_correlation").number()});
        }
        chart.series = {balance, same};
        page.chart(chart);
    }
    page.table({"", "max/mean", "one micro-batch", "Gini", "entropy", "E·ρ", "domain cosine",
                "sum of gates"},
               rows);
}

void add_comparison(Page& page, const JsonReader& r) {
    std::vector<std::vector<std::string>> rows;
    if (const auto fields = r.find("fields"))
        for (const auto& field : fields->items()) {
            std::vector<std::string> row;
            for (const auto& [key, value] : field.members()) row.push_back(value_text(key, value));
            rows.push_back(std::move(row));
            if (rows.size() == 1)
                for (auto& cell : rows[0]) cell = cell.empty() ? "–" : cell;
        }
    if (!rows.empty()) {
        std::vector<std::string> head;
        for (const auto& [key, value] : r.at("fields").at(std::size_t{0}).members())
            head.push_back(spaced(key));
        page.table(head, rows);
    }
}

std::string collective_title(const JsonReader& r) {
    return capital(spaced(r.text_or("collective", "collective"))) +
           fmt::format(", {} ranks", r.count_or("ranks", 0)) +
           (r.has("cluster") && r.at("cluster").is_string() ? " of " + r.at("cluster").text() : "");
}

void add_collective(Page& page, const JsonReader& r) {
    const auto rows = r.at("rows").items();
    constexpr double kGB = 1e9;
    if (rows.size() == 1) {
        page.figures(
            {{value_text("time_s", rows[0].at("time_s")),
              "for " + value_text("bytes", rows[0].at("bytes"))},
             {value_text("bandwidth", rows[0].at("algorithm_bandwidth")), "algorithm bandwidth"},
             {value_text("bandwidth", rows[0].at("bus_bandwidth")), "bus bandwidth"}});
    } else {
        Chart chart{.kind = ChartKind::scatter,
                    .title = "Bandwidth over message size",
                    .x_axis = "bytes",
                    .y_axis = "GB/s",
                    .words =
                        "Algorithm bandwidth is the message over its time; bus bandwidth what "
                        "the links carry of it, as nccl-tests count.",
                    .log_x = true};
        Series bus{.name = "bus bandwidth"}, algorithm{.name = "algorithm bandwidth"};
        for (const auto& row : rows) {
            const double bytes = number_at(row, {"bytes"}, 0);
            if (!(bytes > 0)) continue;
            bus.points.push_back({bytes, number_at(row, {"bus_bandwidth"}, 0) / kGB});
            algorithm.points.push_back({bytes, number_at(row, {"algorithm_bandwidth"}, 0) / kGB});
        }
        chart.series = {bus, algorithm};
        page.chart(chart);
    }
    page.facts({{"algorithm", spaced(r.text_or("algorithm", "–"))},
                {"fidelity", r.text_or("fidelity", "–")},
                {"engine", spaced(r.text_or("engine", "–"))}});
    if (rows.size() == 1) return;
    std::vector<std::vector<std::string>> cells;
    for (const auto& row : rows) {
        auto& line = cells.emplace_back();
        for (const char* key :
             {"bytes", "time_s", "algorithm_bandwidth", "bus_bandwidth", "algorithm"})
            line.push_back(row.has(key) ? value_text(key, row.at(key)) : "–");
    }
    page.table({"message", "time", "algorithm bandwidth", "bus bandwidth", "algorithm"}, cells);
}

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

/// "model" of "moeplan/model.schema.json", as a heading; empty without a schema.
std::string schema_word(const JsonReader& r) {
    std::string word = r.is_object() ? r.text_or("$schema", "") : "";
    word = word.substr(word.rfind('/') + 1);
    word = spaced(word.substr(0, word.find('.')));
    std::replace(word.begin(), word.end(), '-', ' ');
    return capital(word);
}

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

/// The answer first, then what it rests on. (Training records share charts, so files of a kind
/// stand together.)
int place_of(ReportKind kind) {
    static const std::vector<ReportKind> order = {
        ReportKind::plan,       ReportKind::step,       ReportKind::timeline,
        ReportKind::comparison, ReportKind::validation, ReportKind::accuracy,
        ReportKind::training,   ReportKind::trace,      ReportKind::profile,
        ReportKind::collective, ReportKind::model, ReportKind::check, ReportKind::cluster, ReportKind::corpus,
        ReportKind::other};
    return static_cast<int>(std::find(order.begin(), order.end(), kind) - order.begin());
}

}  // namespace

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

void add_training_section(Page& page, const std::vector<const ReportFile*>& files) {
    Chart loss{.kind = ChartKind::line,
               .title = "Loss",
               .x_axis = "step",
               .y_axis = "nats a token",
               .words = "Training loss, smoothed over a fortieth of the run."};
    Chart held_out{.kind = ChartKind::line,
                   .title = "Held-out loss",
                   .x_axis = "step",
                   .y_axis = "nats a token",
                   .words = "On documents that are never trained on."};
    Chart balance{.kind = ChartKind::line,
                  .title = "Busiest expert over the mean",
                  .x_axis = "step",
                  .y_axis = "max / mean",
                  .words = "Mean over the layers of each step; 1 is perfect balance."};
    Chart speed{.kind = ChartKind::line,
                .title = "Tokens a second",
                .x_axis = "step",
                .y_axis = "tokens/s",
                .words = "Smoothed over a fortieth of the run."};
    loss.y_from_zero = held_out.y_from_zero = balance.y_from_zero = false;
    std::vector<std::vector<std::string>> rows;
    for (const ReportFile* file : files) {
        std::vector<std::array<double, 2>> losses, held, imbalance, rate;
        for (const auto& line : file->answer.items()) {
            const double step = number_at(line, {"step"});
            if (std::isnan(step)) continue;
            const auto add = [&](auto& to, double value) {
                if (std::isfinite(value)) to.push_back({step, value});
            };
            add(losses, number_at(line, {"loss"}));
            add(held, number_at(line, {"held_out_loss"}));
            add(rate, number_at(line, {"tokens_per_second"}));
            if (const auto values = numbers(line.find("expert_imbalance")); !values.empty()) {
                double sum = 0;
                for (const double v : values) sum += v;
                add(imbalance, sum / static_cast<double>(values.size()));
            }
        }
        const auto put = [&](Chart& chart, const auto& points) {
            if (!points.empty())
                chart.series.push_back({.name = file->name, .points = smoothed(points)});
        };
        put(loss, losses);
        if (!held.empty()) held_out.series.push_back({.name = file->name, .points = held});
        put(balance, imbalance);
        put(speed, rate);
        if (!losses.empty()) {
            std::vector<double> rates;
            for (const auto& [step, value] : rate) rates.push_back(value);
            std::sort(rates.begin(), rates.end());
            const double last = smoothed(losses).back()[1];
            double tail = 0;
            const std::size_t n = std::max<std::size_t>(1, losses.size() / 20);
            for (std::size_t i = losses.size() - n; i < losses.size(); ++i)
                tail += losses[i][1] / static_cast<double>(n);
            rows.push_back(
                {file->name, std::to_string(losses.size()),
                 fmt::format("{:.3f}", losses.front()[1]),
                 fmt::format("{:.3f}", losses.size() > 20 ? tail : last),
                 fmt::format("{:.3f}", losses.front()[1] - (losses.size() > 20 ? tail : last)),
                 rates.empty() ? "–" : fmt::format("{:.0f}", rates[rates.size() / 2])});
        }
    }
    page.table({"run", "steps", "first loss", "last loss (mean of a twentieth)", "fell by",
                "tokens/s (median)"},
               rows);
    for (const Chart* chart : {&loss, &held_out, &balance, &speed})
        if (!chart->series.empty()) page.chart(*chart);
}

void add_sections(Page& page, const ReportFile& file) {
    switch (file.kind) {
        case ReportKind::step:
            return add_step_sections(page, file.answer);
        case ReportKind::timeline:
            return add_timeline_sections(page, file.answer);
        case ReportKind::plan:
            return add_plan(page, file.answer);
        case ReportKind::validation:
            return add_validation_sections(page, file.answer);
        case ReportKind::accuracy:
            return add_accuracy_sections(page, file.answer);
        case ReportKind::profile:
            return add_profile(page, file.answer);
        case ReportKind::trace:
            return add_trace(page, file.answer);
        case ReportKind::training:
            return add_training_section(page, {&file});
        case ReportKind::collective:
            return add_collective(page, file.answer);
        case ReportKind::comparison:
            return add_comparison(page, file.answer);
        case ReportKind::cluster:
            return add_cluster_sections(page, file.answer);
        case ReportKind::model:
            return add_model_sections(page, file.answer);
        case ReportKind::check:
            return add_check_sections(page, file.answer);
        case ReportKind::corpus:
        case ReportKind::other:
            return add_other(page, file.answer);
    }
}

/// What a page over one file is called, and what stands beneath.
std::pair<std::string, std::string> heading_of(const ReportFile& file) {
    const std::string kind = kind_title(file.kind);
    switch (file.kind) {
        case ReportKind::cluster:
            return {kind + ": " + cluster_title(file.answer),
                    "Its GPUs and the links between them"};
        case ReportKind::model:
            return {kind + ": " + file.answer.text_or("name", file.name), "Its parameters and flops"};
        case ReportKind::check:
            return {check_title(file.answer), file.name};
        case ReportKind::collective:
            return {collective_title(file.answer), kind};
        case ReportKind::plan:
            return {plan_title(file.answer), file.name};
        case ReportKind::other: {
            const std::string name = file.answer.text_or("name", file.name),
                              what = schema_word(file.answer);
            return {what.empty() ? kind : what + (name.empty() ? "" : ": " + name),
                    name == file.name ? "" : file.name};
        }
        default:
            return {kind, file.name};
    }
}

std::string page_for(const std::vector<ReportFile>& files, const std::string& title) {
    std::vector<std::string> names;
    for (const auto& file : files)
        if (!file.name.empty() && file.name != title) names.push_back(file.name);
    auto [heading, beneath] = files.size() == 1 ? heading_of(files[0])
                                                : std::pair<std::string, std::string>(
                                                      "moeplan report", join(names, ", "));
    if (!title.empty()) {
        beneath = !names.empty()  ? join(names, ", ")
                  : files.empty() ? ""
                                  : kind_title(files[0].kind);
        heading = title;
    }
    Page page(heading, beneath);
    std::vector<const ReportFile*> order;
    for (const auto& file : files) order.push_back(&file);
    std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
        return place_of(a->kind) < place_of(b->kind);
    });
    std::vector<const ReportFile*> training;
    for (const auto* file : order)
        if (file->kind == ReportKind::training) training.push_back(file);
    bool training_done = false;
    for (const auto* file : order) {
        if (file->kind == ReportKind::training) {
            if (training_done) continue;
            training_done = true;
            if (files.size() > 1) page.section("Training");
            add_training_section(page, training);
            continue;
        }
        if (files.size() > 1 && file->kind == ReportKind::plan)
            page.section(plan_title(file->answer));
        else if (files.size() > 1 && file->kind != ReportKind::validation) {
            // The first file without a name is what the page itself is named after.
            if (!file->name.empty() || file != order.front())
                page.section(kind_title(file->kind) +
                             (file->name.empty() ? "" : ": " + file->name));
        }
        add_sections(page, *file);
    }
    return page.html();
}

void write_page(const std::string& html_file, const Json& answer, const std::string& name) {
    if (!html_file.empty()) write_whole(html_file, page_for(answer, name));
}

void write_page(const std::string& html_file, const std::vector<ReportFile>& files,
                const std::string& title) {
    if (!html_file.empty()) write_whole(html_file, page_for(files, title));
}

}  // namespace moeplan::cli
