#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/data_files.hpp"
#include "core/digest.hpp"
#include "core/errors.hpp"
#include "core/quantity_text.hpp"
#include "core/text.hpp"
#include "profiler/curve_index.hpp"
#include "profiler/profile.hpp"

namespace moeplan {
namespace {

constexpr double kShare = 1;  // efficiencies are shares of the floor's rate

std::vector<std::string> texts(const JsonReader& reader) {
    std::vector<std::string> out;
    for (const JsonReader& item : reader.items()) out.push_back(item.text());
    return out;
}

std::vector<std::vector<double>> rows(const JsonReader& reader, std::size_t num_columns) {
    std::vector<std::vector<double>> out;
    for (const JsonReader& row : reader.items()) {
        std::vector<double> values;
        for (const JsonReader& value : row.items()) values.push_back(value.number());
        if (values.size() != num_columns)
            row.fail(std::to_string(num_columns) + " values, one a column");
        out.push_back(std::move(values));
    }
    return out;
}

std::vector<Tile> tiles_from_json(const JsonReader& reader) {
    std::vector<Tile> tiles;
    for (const JsonReader& tile : reader.items()) {
        if (!tile.is_array() || tile.size() != 2) tile.fail("[rows, columns]");
        tiles.push_back(
            {tile.at(std::size_t{0}).count(1, 4096), tile.at(std::size_t{1}).count(1, 4096)});
    }
    return tiles;
}

Json to_json(const std::vector<Tile>& tiles) {
    Json json = Json::array();
    for (const Tile& tile : tiles) json.push_back({tile.rows, tile.columns});
    return json;
}

GemmModel gemm_model_from_json(const JsonReader& reader) {
    reader.refuse_unknown({"tiles", "efficiency", "tile_loss", "pipeline_depth",
                           "wave_quantisation", "memory_efficiency", "fp8_efficiency",
                           "fp4_efficiency", "launch", "split"});
    GemmModel model;
    model.tiles = tiles_from_json(reader.at("tiles"));
    if (model.tiles.empty()) reader.at("tiles").fail("at least one tile");
    model.efficiency = reader.at("efficiency").number(1e-6, kShare);
    model.tile_loss = reader.at("tile_loss").number(0, 100);
    model.pipeline_depth = reader.at("pipeline_depth").number(0, 1e6);
    model.wave_quantisation = reader.at("wave_quantisation").number(0, 1);
    model.memory_efficiency = reader.at("memory_efficiency").number(1e-6, kShare);
    model.fp8_efficiency = reader.at("fp8_efficiency").number(1e-6, kShare);
    model.fp4_efficiency = reader.at("fp4_efficiency").number(1e-6, kShare);
    model.launch = reader.at("launch").seconds();
    model.split = reader.at("split").seconds();
    return model;
}

Json to_json(const GemmModel& model) {
    Json json;
    json["tiles"] = to_json(model.tiles);
    json["efficiency"] = model.efficiency;
    json["tile_loss"] = model.tile_loss;
    json["pipeline_depth"] = model.pipeline_depth;
    json["wave_quantisation"] = model.wave_quantisation;
    json["memory_efficiency"] = model.memory_efficiency;
    json["fp8_efficiency"] = model.fp8_efficiency;
    json["fp4_efficiency"] = model.fp4_efficiency;
    json["launch"] = to_exact_text(model.launch);
    json["split"] = to_exact_text(model.split);
    return json;
}

AttentionModel attention_model_from_json(const JsonReader& reader) {
    reader.refuse_unknown(
        {"efficiency", "half_sequence", "head_power", "wave_quantisation", "launch"});
    AttentionModel model;
    model.efficiency = reader.at("efficiency").number(1e-6, kShare);
    model.half_sequence = reader.at("half_sequence").number(0, 1e6);
    model.head_power = reader.at("head_power").number(0, 2);
    model.wave_quantisation = reader.at("wave_quantisation").number(0, 1);
    model.launch = reader.at("launch").seconds();
    return model;
}

Json to_json(const AttentionModel& model) {
    Json json;
    json["efficiency"] = model.efficiency;
    json["half_sequence"] = model.half_sequence;
    json["head_power"] = model.head_power;
    json["wave_quantisation"] = model.wave_quantisation;
    json["launch"] = to_exact_text(model.launch);
    return json;
}

DeviceRates device_rates_from_json(const JsonReader& reader) {
    reader.refuse_unknown({"name", "peak", "memory_bandwidth", "num_sms"});
    DeviceRates rates;
    rates.name = reader.at("name").text();
    rates.peak = reader.at("peak").flops_per_second();
    rates.memory_bandwidth = reader.at("memory_bandwidth").bytes_per_second();
    rates.num_sms = reader.at("num_sms").count(1, 100000);
    if (!(rates.peak.value > 0)) reader.at("peak").fail("a positive rate");
    if (!(rates.memory_bandwidth.value > 0)) reader.at("memory_bandwidth").fail("a positive rate");
    return rates;
}

Json to_json(const DeviceRates& rates) {
    Json json;
    json["name"] = rates.name;
    json["peak"] = to_exact_text(rates.peak);
    json["memory_bandwidth"] = to_exact_text(rates.memory_bandwidth);
    json["num_sms"] = rates.num_sms;
    return json;
}

Roofline roofline_from_json(const JsonReader& reader) {
    reader.refuse_unknown({"peak", "memory_bandwidth", "num_sms", "l2", "tiles", "gemm_efficiency",
                           "attention_efficiency", "memory_efficiency", "gemm_half_depth",
                           "attention_half_sequence", "attention_backward", "kernel_overhead",
                           "gemm_model", "attention_model", "board_power_w"});
    Roofline roofline;
    for (const auto& [name, value] : reader.at("peak").members()) {
        const auto precision = from_name<Precision>(name);
        if (!precision) value.fail("a precision as key: " + choices<Precision>());
        roofline.peak[*precision] = value.flops_per_second();
        if (!(roofline.peak[*precision].value > 0)) value.fail("a positive rate");
    }
    if (roofline.peak.empty()) reader.at("peak").fail("at least one precision with its rate");
    roofline.memory_bandwidth = reader.at("memory_bandwidth").bytes_per_second();
    if (!(roofline.memory_bandwidth.value > 0))
        reader.at("memory_bandwidth").fail("a positive rate");
    roofline.num_sms = reader.count_or("num_sms", 0, 0, 100000);
    if (const auto l2 = reader.find("l2")) roofline.l2 = l2->bytes();
    if (const auto tiles = reader.find("tiles")) roofline.tiles = tiles_from_json(*tiles);
    const auto share = [&](std::string_view key, double& value) {
        if (const auto found = reader.find(key)) value = found->number(1e-6, kShare);
    };
    share("gemm_efficiency", roofline.gemm_efficiency);
    share("attention_efficiency", roofline.attention_efficiency);
    share("memory_efficiency", roofline.memory_efficiency);
    share("attention_backward", roofline.attention_backward);
    if (const auto found = reader.find("gemm_half_depth"))
        roofline.gemm_half_depth = found->number(0, 1e6);
    if (const auto found = reader.find("attention_half_sequence"))
        roofline.attention_half_sequence = found->number(0, 1e6);
    if (const auto found = reader.find("kernel_overhead"))
        roofline.kernel_overhead = found->seconds();
    if (const auto found = reader.find("board_power_w"))
        roofline.board_power_w = found->number(1, 1e5);
    if (const auto found = reader.find("gemm_model"))
        roofline.gemm_model = gemm_model_from_json(*found);
    if (const auto found = reader.find("attention_model"))
        roofline.attention_model = attention_model_from_json(*found);
    return roofline;
}

Json to_json(const Roofline& roofline) {
    Json json;
    for (const auto& [precision, rate] : roofline.peak)
        json["peak"][std::string(name_of(precision))] = to_exact_text(rate);
    json["memory_bandwidth"] = to_exact_text(roofline.memory_bandwidth);
    json["num_sms"] = roofline.num_sms;
    json["l2"] = to_exact_text(roofline.l2);
    json["tiles"] = to_json(roofline.tiles);
    json["gemm_efficiency"] = roofline.gemm_efficiency;
    json["gemm_half_depth"] = roofline.gemm_half_depth;
    json["attention_efficiency"] = roofline.attention_efficiency;
    json["attention_half_sequence"] = roofline.attention_half_sequence;
    json["attention_backward"] = roofline.attention_backward;
    json["memory_efficiency"] = roofline.memory_efficiency;
    json["kernel_overhead"] = to_exact_text(roofline.kernel_overhead);
    if (roofline.board_power_w > 0) json["board_power_w"] = roofline.board_power_w;
    if (roofline.gemm_model) json["gemm_model"] = to_json(*roofline.gemm_model);
    if (roofline.attention_model) json["attention_model"] = to_json(*roofline.attention_model);
    return json;
}

}  // namespace

Profile profile_from_json(const JsonReader& reader) {
    if (!reader.is_object())
        reader.fail("a profile: an object with name, roofline, kernels and links");
    reader.refuse_unknown({"name", "device", "driver", "source", "clocks_mhz", "conditions",
                           "roofline", "host", "calibration", "host_overlap", "kernels", "links",
                           "stretches", "held_out"});
    Profile profile;
    profile.name = reader.at("name").text();
    profile.device = reader.text_or("device", profile.name);
    profile.driver = reader.text_or("driver", "");
    profile.source = reader.text_or("source", "");
    profile.clocks_mhz = reader.number_or("clocks_mhz", 0);
    if (const auto conditions = reader.find("conditions"))
        for (const auto& [key, value] : conditions->members())
            profile.conditions[key] = value.text();
    profile.roofline = roofline_from_json(reader.at("roofline"));
    if (const auto host = reader.find("host")) {
        host->refuse_unknown({"per_launch", "per_sync"});
        profile.host.per_launch = host->at("per_launch").seconds();
        profile.host.per_sync = host->at("per_sync").seconds();
    }
    if (const auto calibration = reader.find("calibration"))
        profile.calibration = calibration_from_json(*calibration);
    if (const auto overlap = reader.find("host_overlap"))
        profile.host_overlap = overlap->number(0, 1);
    if (const auto kernels = reader.find("kernels"))
        for (const JsonReader& item : kernels->items()) {
            item.refuse_unknown(
                {"kernel", "precision", "basis", "source", "columns", "rows", "measured_on"});
            KernelCurve curve;
            if (const auto device = item.find("measured_on"))
                curve.measured_on = device_rates_from_json(*device);
            curve.kernel = item.at("kernel").text();
            if (kernel_named(curve.kernel).index < 0) {
                const std::vector<std::string> names(kernel_names().begin(), kernel_names().end());
                item.at("kernel").fail("one of " + join(names, ", "));
            }
            curve.precision = item.at("precision").choice<Precision>();
            curve.basis = item.at("basis").choice<Basis>();
            curve.source = item.text_or("source", "");
            curve.columns = texts(item.at("columns"));
            curve.rows = rows(item.at("rows"), curve.columns.size());
            profile.kernels.push_back(std::move(curve));
        }
    if (const auto links = reader.find("links"))
        for (const JsonReader& item : links->items()) {
            item.refuse_unknown({"collective", "num_ranks", "basis", "source", "columns", "rows"});
            LinkCurve curve;
            curve.collective = item.at("collective").text();
            curve.num_ranks = item.at("num_ranks").count(1);
            curve.basis = item.at("basis").choice<Basis>();
            curve.source = item.text_or("source", "");
            curve.columns = texts(item.at("columns"));
            curve.rows = rows(item.at("rows"), curve.columns.size());
            profile.links.push_back(std::move(curve));
        }
    if (const auto item = reader.find("stretches")) {
        item->refuse_unknown({"source", "window_s", "columns", "rows"});
        StretchCurve curve;
        curve.source = item->text_or("source", "");
        curve.window = {item->at("window_s").number(1e-9, 1e6)};
        curve.columns = texts(item->at("columns"));
        curve.rows = rows(item->at("rows"), curve.columns.size());
        profile.stretches = std::move(curve);
    }
    profile.digest = digest_of(reader.value().dump());
    try {
        prepare(profile);
    } catch (const InputError& error) {  // the curve's own place, under the file's name
        throw InputError(reader.file(),
                         error.file.substr(std::min(error.file.size(), profile.name.size() + 2)) +
                             "/" + error.field,
                         error.value, error.expected);
    }
    return profile;
}

Json to_json(const Profile& profile) {
    Json json = json_header("profile");
    json["name"] = profile.name;
    json["device"] = profile.device;
    json["driver"] = profile.driver;
    json["source"] = profile.source;
    json["clocks_mhz"] = profile.clocks_mhz;
    json["conditions"] = Json::object();
    for (const auto& [key, value] : profile.conditions) json["conditions"][key] = value;
    json["roofline"] = to_json(profile.roofline);
    json["host"] = {{"per_launch", to_exact_text(profile.host.per_launch)},
                    {"per_sync", to_exact_text(profile.host.per_sync)}};
    json["host_overlap"] = profile.host_overlap;
    if (profile.calibration != Calibration{}) json["calibration"] = to_json(profile.calibration);
    json["kernels"] = Json::array();
    for (const KernelCurve& curve : profile.kernels) {
        Json item;
        item["kernel"] = curve.kernel;
        item["precision"] = name_of(curve.precision);
        item["basis"] = name_of(curve.basis);
        item["source"] = curve.source;
        if (curve.measured_on) item["measured_on"] = to_json(*curve.measured_on);
        item["columns"] = curve.columns;
        item["rows"] = curve.rows;
        json["kernels"].push_back(std::move(item));
    }
    json["links"] = Json::array();
    for (const LinkCurve& curve : profile.links) {
        Json item;
        item["collective"] = curve.collective;
        item["num_ranks"] = curve.num_ranks;
        item["basis"] = name_of(curve.basis);
        item["source"] = curve.source;
        item["columns"] = curve.columns;
        item["rows"] = curve.rows;
        json["links"].push_back(std::move(item));
    }
    if (profile.stretches)
        json["stretches"] = {{"source", profile.stretches->source},
                             {"window_s", profile.stretches->window.value},
                             {"columns", profile.stretches->columns},
                             {"rows", profile.stretches->rows}};
    return json;
}

Profile load_profile(const std::string& name_or_file) {
    const JsonReader reader =
        JsonReader::from_file(shipped_or_file("--profile", "specs/profiles", name_or_file));
    Profile profile = profile_from_json(reader);
    if (profile.host_overlap > 0 && !reader.has("calibration")) {
        profile.calibration = shipped_calibration();
        profile.digest =
            Digest{}.add(profile.digest).add(to_json(profile.calibration).dump()).hex();
    }
    return profile;
}

std::vector<std::string> shipped_profiles() { return shipped_names("specs/profiles"); }

}  // namespace moeplan
