#include "planner/accuracy/record.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "core/errors.hpp"
#include "core/text.hpp"
#include "planner/accuracy/gpu_names.hpp"

namespace moeplan {
namespace {

constexpr int kMostGpus = 1 << 20;
/// A step time stands twice in a record, as measured and in `canonical`; further apart than
/// rounding, one of the two has another unit.
constexpr double kSameTime = 0.01;

std::string reason_of(const InputError& error) {
    std::string out = error.field.empty() ? "" : error.field;
    if (!error.value.empty()) out += (out.empty() ? "" : " is ") + error.value;
    return out + (out.empty() ? "" : ", ") + "expected " + error.expected;
}

/// A reader of one record: messages name places inside it.
std::string text_or(const JsonReader& reader, std::string_view key) {
    const auto found = reader.find(key);
    return found && found->is_string() ? found->text() : "";
}

RecordSource source_of(const JsonReader& record) {
    const auto source = record.find("source");
    if (!source || !source->is_object()) record.fail("an object with \"source\": who measured it");
    return {source->at("title").text(), text_or(*source, "url_or_repo"), text_or(*source, "path"),
            text_or(*source, "table"), text_or(*source, "date")};
}

int size_of(const JsonReader& canonical, const char* key, int otherwise = 1) {
    return canonical.count_or(key, otherwise, 1, kMostGpus);
}

/// A time in seconds from the record's own measurement, empty where the metric is no time or rate
/// of a step. @throws InputError for a unit that does not fit the metric
std::optional<double> measured_step_time(const JsonReader& measured, double tokens, int sequences,
                                         int gpus) {
    const std::string metric = measured.at("metric").text(), unit = measured.at("unit").text();
    const auto starts = [&](std::string_view prefix) {
        return unit == prefix || unit.starts_with(std::string(prefix) + " ") ||
               unit.starts_with(std::string(prefix) + ",");
    };
    const auto value = [&] { return measured.at("value").number(1e-12, 1e15); };
    if (metric.starts_with("iteration_time") || metric.starts_with("step_time")) {
        if (starts("ms")) return value() * 1e-3;
        if (starts("s")) return value();
        if (starts("us")) return value() * 1e-6;
        measured.at("unit").fail("s, ms or us for " + metric);
    }
    if (metric == "tokens_per_s_per_gpu") {
        if (starts("tokens/s/GPU")) return tokens / gpus / value();
        measured.at("unit").fail("tokens/s/GPU for " + metric);
    }
    if (metric == "tokens_per_s") {
        if (starts("tokens/s")) return tokens / value();
        measured.at("unit").fail("tokens/s for " + metric);
    }
    if (metric == "samples_per_s") {
        if (starts("sequences/s") || starts("samples/s")) return sequences / value();
        measured.at("unit").fail("sequences/s for " + metric);
    }
    if (metric.ends_with("tflops_per_gpu") && !starts("TFLOP/s/GPU"))
        measured.at("unit").fail("TFLOP/s/GPU for " + metric);
    return std::nullopt;
}

SkippedRecord skipped(const std::string& id, const std::string& group, const std::string& source,
                      std::string rule, std::string reason) {
    return {id, group, source, std::move(reason), std::move(rule)};
}

/// One record of the training group. @throws InputError naming what is wrong
Record training_record(const JsonReader& record, const std::string& id) {
    TrainingRecord out;
    out.id = id;
    out.source = source_of(record);
    const JsonReader workload = record.at("workload");
    const auto canonical_found = record.find("canonical");
    if (!canonical_found || !canonical_found->is_object())
        return skipped(id, "training", out.source.title, "missing", "no \"canonical\" fields");
    const JsonReader canonical = *canonical_found;
    std::vector<std::string> missing;
    if (const auto list = canonical.find("missing"))
        for (const JsonReader& item : list->items()) missing.push_back(item.text());
    // A run that states its memory alone is still a memory to predict.
    const bool only_memory = missing == std::vector<std::string>{"step_time_s or tflops_per_gpu"} &&
                             canonical.has("peak_memory_gib");
    if (!missing.empty() && !only_memory)
        return skipped(id, "training", out.source.title, "missing",
                       "the source does not state " + join(missing, ", "));

    out.model_name = text_or(workload, "model");
    out.notes = text_or(record, "notes");
    out.kind = canonical.text_or("kind", "pretrain");
    out.gpu = canonical.at("gpu").text();
    out.gpus = canonical.at("gpus").count(1, kMostGpus);
    const auto arguments = stated_arguments(workload.value());
    out.seq = canonical.at("seq").count(1, 1 << 26);
    out.model = model_of_architecture(workload.at("architecture"), out.model_name, out.seq,
                                      arguments, out.model_assumptions);
    out.micro_batch = canonical.at("micro_batch").count(1, kMostGpus);
    out.global_batch = canonical.at("global_batch").count(1, 1 << 26);
    if (canonical.has("gpus_per_node"))
        out.gpus_per_node = canonical.at("gpus_per_node").count(1, 1024);
    out.tp = size_of(canonical, "tp");
    out.pp = size_of(canonical, "pp");
    out.vpp = out.pp > 1 ? size_of(canonical, "vpp") : 1;  // nothing to interleave without stages
    out.cp = size_of(canonical, "cp");
    out.ep = size_of(canonical, "ep");
    if (canonical.has("etp")) out.etp = size_of(canonical, "etp");
    out.precision = canonical.at("precision").choice<Precision>();
    if (const auto found = canonical.find("recompute")) {
        const std::string text = found->text();
        if (text == "none")
            out.recompute = Recomputation::none;
        else if (text == "selective")
            out.recompute = Recomputation::selective;
        else if (text == "full")
            out.recompute = Recomputation::full;
        else
            found->fail("none, selective or full");
    }
    if (const auto found = canonical.find("recompute_modules")) {
        if (found->is_array()) {
            std::vector<std::string> modules;
            for (const JsonReader& item : found->items()) modules.push_back(item.text());
            out.recompute_modules = join(modules, ", ");
        } else {
            out.recompute_modules = found->text();
        }
    }
    if (const auto found = canonical.find("sharding")) out.sharding = found->choice<Sharding>();
    if (const auto found = canonical.find("routing")) {
        out.routing = found->text();
        if (*out.routing != "balanced" && *out.routing != "token_drop" && *out.routing != "natural")
            found->fail("balanced, token_drop or natural");
    }
    out.software =
        stated_software(text_or(record, "software"), out.source.date, workload.value(), out.notes);
    if (const auto hardware = record.find("hardware"); hardware && hardware->is_object())
        out.network = stated_network(text_or(*hardware, "inter"), text_or(*hardware, "nic"),
                                     out.gpus_per_node.value_or(8));

    if (const auto found = canonical.find("step_time_s"))
        out.step_time = Seconds{found->number(1e-9, 1e9)};
    if (const auto found = canonical.find("tflops_per_gpu"))
        out.tflops_per_gpu = found->number(1e-6, 1e6);
    out.tflops_convention = text_or(canonical, "tflops_convention");
    if (const auto found = canonical.find("peak_memory_gib"))
        out.peak_memory = Bytes{found->number(1e-6, 1e6) * (1 << 30)};
    out.peak_memory_kind = text_or(canonical, "peak_memory_kind");
    if (const auto measured = record.find("measured"); measured && measured->is_object()) {
        const double tokens = 1.0 * out.seq * out.global_batch;
        const auto time = measured_step_time(*measured, tokens, out.global_batch, out.gpus);
        if (time && out.step_time && std::abs(*time / out.step_time->value - 1) > kSameTime)
            return skipped(id, "training", out.source.title, "unit",
                           "measured " + exact_text(measured->at("value").number()) + " " +
                               measured->at("unit").text() + " comes to " + exact_text(*time) +
                               " s a step, canonical says " + exact_text(out.step_time->value) +
                               " s");
    }
    if (!out.step_time && !out.tflops_per_gpu && !out.peak_memory)
        return skipped(id, "training", out.source.title, "missing",
                       "nothing measured: no step time, rate or peak memory");
    if (const auto list = record.find("other_releases"); list && list->is_array())
        for (const JsonReader& other : list->items())
            if (other.is_object() && other.has("tokens_per_s_per_gpu"))
                out.other_releases.push_back(
                    {text_or(other, "container"), other.at("tokens_per_s_per_gpu").number(0)});
    return out;
}

/// vTrain's single-node sweep: one source, columns and rows.
std::vector<Record> table_records(const JsonReader& table) {
    const std::string id = table.at("id").text();
    const RecordSource source = source_of(table);
    std::vector<std::string> columns;
    for (const JsonReader& column : table.at("columns").items()) columns.push_back(column.text());
    const auto column_of = [&](std::string_view name) {
        const auto found = std::find(columns.begin(), columns.end(), name);
        return found == columns.end() ? -1 : static_cast<int>(found - columns.begin());
    };
    double unit = 1e-3;
    int time = column_of("iteration_time_ms");
    if (time < 0) {
        unit = 1;
        time = column_of("iteration_time_s");
    }
    for (const char* needed :
         {"gpus", "gbs", "mbs", "hidden", "heads", "layers", "seq", "tp", "dp", "pp"})
        if (column_of(needed) < 0)
            table.at("columns").fail(std::string("a column \"") + needed + "\"");
    if (time < 0) table.at("columns").fail("a column iteration_time_ms or iteration_time_s");

    const std::string software = text_or(table, "software"), workload = text_or(table, "workload");
    const JsonReader hardware = table.at("hardware");
    const std::string part = text_or(hardware, "gpu");
    std::vector<Record> out;
    std::size_t index = 0;
    for (const JsonReader& row : table.at("rows").items()) {
        const std::string row_id = id + "#" + std::to_string(index++);
        try {
            if (!row.is_array() || row.size() != columns.size())
                row.fail(std::to_string(columns.size()) + " values, one a column");
            const auto count = [&](const char* name) {
                return row.at(static_cast<std::size_t>(column_of(name))).count(1, 1 << 24);
            };
            TrainingRecord record;
            record.id = row_id;
            record.sweep = id;
            record.source = source;
            record.model_name =
                "GPT h" + std::to_string(count("hidden")) + " L" + std::to_string(count("layers"));
            record.kind = "pretrain";
            record.gpu = gpu_id_of_name(part).value_or(part);
            record.gpus = count("gpus");
            record.gpus_per_node =
                std::min(record.gpus, hardware.count_or("gpus_per_node", 8, 1, 1024));
            record.seq = count("seq");
            Json architecture = {{"type", "dense"},
                                 {"layers", count("layers")},
                                 {"hidden", count("hidden")},
                                 {"heads", count("heads")},
                                 {"attention", "mha"},
                                 {"head_dim", std::max(1, count("hidden") / count("heads"))},
                                 {"ffn", 4 * count("hidden")},
                                 {"activation", "gelu"},
                                 {"vocab", 51200}};
            record.model_assumptions.push_back(
                "vocabulary: 51200, Megatron's GPT-2 vocabulary as padded in its papers");
            record.model =
                model_of_architecture(JsonReader::from_value(std::move(architecture), row_id),
                                      record.model_name, record.seq, {},
                                      record.model_assumptions);
            record.micro_batch = count("mbs");
            record.global_batch = count("gbs");
            record.tp = count("tp");
            record.pp = count("pp");
            if (1LL * record.tp * record.pp * count("dp") != record.gpus)
                row.fail("TP·PP·DP = gpus");
            record.precision =
                software.find("fp16") != std::string::npos ? Precision::fp16 : Precision::bf16;
            if (workload.find("full activation checkpointing") != std::string::npos)
                record.recompute = Recomputation::full;
            record.software = stated_software(software, source.date, Json::object(), "");
            record.step_time =
                Seconds{row.at(static_cast<std::size_t>(time)).number(1e-9, 1e12) * unit};
            out.emplace_back(std::move(record));
        } catch (const InputError& error) {
            out.emplace_back(skipped(row_id, "training", source.title, "field", reason_of(error)));
        }
    }
    return out;
}

Record one_record(const JsonReader& record, const std::string& fallback_id) {
    std::string id = fallback_id, group, source;
    try {
        if (!record.is_object()) record.fail("a record: an object with id, group, source …");
        id = record.at("id").text();
        group = record.at("group").text();
        if (const auto found = record.find("source"); found && found->is_object())
            source = text_or(*found, "title");
        if (group == "training") return training_record(record, id);
        if (group == "collectives" || group == "kernels")
            return CurveRecord{id, group, source, record};
        if (group == "routing" || group == "peer_claims")
            return skipped(id, group, source, "not_a_target", "not a prediction target");
        record.at("group").fail("training, collectives, kernels, routing or peer_claims");
    } catch (const InputError& error) {
        return skipped(id, group, source, "field", reason_of(error));
    }
}

/// A table whose columns are wrong is one record that is skipped.
std::vector<Record> table_or_reason(const JsonReader& table) {
    try {
        return table_records(table);
    } catch (const InputError& error) {
        return {
            skipped(text_or(table, "id"), text_or(table, "group"), "", "field", reason_of(error))};
    }
}

bool is_table(const JsonReader& file) {
    return file.is_object() && file.has("columns") && file.has("rows");
}

}  // namespace

const std::string& id_of(const Record& record) {
    return std::visit([](const auto& r) -> const std::string& { return r.id; }, record);
}

StatedNetwork stated_network(const std::string& inter, const std::string& nic, int gpus_per_node) {
    StatedNetwork out;
    const auto words = lower_words(inter);
    const auto number = [](const std::string& word) {
        double value = 0;
        std::size_t used = 0;
        try {
            value = std::stod(word, &used);
        } catch (const std::exception&) {
            used = 0;
        }
        return used == word.size() && value > 0 ? value : 0.0;
    };
    const auto follows = [&](std::size_t at, std::initializer_list<std::string_view> expected) {
        for (const std::string_view word : expected)
            if (at >= words.size() || words[at++] != word) return false;
        return true;
    };
    // "8x ConnectX-7": adapters of a node
    if (const auto x = nic.find('x'); x != std::string::npos && x > 0)
        if (const double count = number(nic.substr(0, x)); count >= 1 && count <= 1024)
            out.nics_per_node = static_cast<int>(count);
    for (std::size_t i = 0; i < words.size(); ++i) {
        // "8x50 GB/s per node"
        if (const auto x = words[i].find('x'); x != std::string::npos && x > 0) {
            const double count = number(words[i].substr(0, x)),
                         rate = number(words[i].substr(x + 1));
            if (count >= 1 && rate > 0 && follows(i + 1, {"gb", "s"})) {
                const bool bytes = inter.find("GB/s") != std::string::npos;
                out.nics_per_node = static_cast<int>(count);
                out.nic_gbps = rate * (bytes ? 8 : 1);
                return out;
            }
        }
        const double rate = number(words[i]);
        if (rate <= 0 || !follows(i + 1, {"gb", "s"})) continue;
        const double gbps = rate * (inter.find("GB/s") != std::string::npos ? 8 : 1);
        if (follows(i + 3, {"per", "node"})) {
            // Aggregate of a node: shared out over its adapters, one a GPU if none is counted.
            const int count = out.nics_per_node.value_or(gpus_per_node);
            out.nics_per_node = count;
            out.nic_gbps = gbps / count;
        } else if (follows(i + 3, {"per", "gpu"})) {
            out.nics_per_node = gpus_per_node;
            out.nic_gbps = gbps;
        } else {
            if (follows(i + 3, {"one", "adapter", "per", "node"})) out.nics_per_node = 1;
            out.nic_gbps = gbps;
        }
        return out;
    }
    if (!out.nic_gbps) out.nics_per_node.reset();
    return out;
}

std::vector<Record> read_records(const JsonReader& file) {
    if (is_table(file)) return table_or_reason(file);
    std::vector<Record> out;
    if (file.is_object() && file.has("records")) return read_records(file.at("records"));
    if (file.is_object() && file.has("systems") && file.has("gpus"))
        return {
            skipped(file.file(), "datasheets", "", "not_a_target", "datasheets, no measurement")};
    if (file.is_object()) {
        if (!file.has("id") || !file.has("group"))
            file.fail("a list of records, one record (id, group …) or a table (columns, rows)");
        out.push_back(one_record(file, "?"));
        return out;
    }
    if (!file.is_array())
        file.fail("a list of records, one record (id, group …) or a table (columns, rows)");
    for (const JsonReader& item : file.items()) {
        if (is_table(item))
            for (Record& record : table_or_reason(item)) out.push_back(std::move(record));
        else
            out.push_back(one_record(item, item.pointer()));
    }
    return out;
}

std::vector<Record> read_record_files(const std::vector<std::string>& files) {
    std::vector<Record> out;
    std::set<std::string> seen;
    for (const std::string& file : files)
        for (Record& record : read_records(JsonReader::from_file(file))) {
            const std::string id = id_of(record);
            if (!seen.insert(id).second) {
                SkippedRecord duplicate;
                duplicate.id = id;
                duplicate.rule = "duplicate";
                duplicate.reason = "the id came before";
                std::visit(
                    [&](const auto& r) {
                        using T = std::decay_t<decltype(r)>;
                        if constexpr (std::is_same_v<T, TrainingRecord>) {
                            duplicate.group = "training";
                            duplicate.source = r.source.title;
                        } else {
                            duplicate.group = r.group;
                            duplicate.source = r.source;
                        }
                    },
                    record);
                out.emplace_back(std::move(duplicate));
            } else {
                out.push_back(std::move(record));
            }
        }
    return out;
}

}  // namespace moeplan
