#include "profiler/calibration.hpp"

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/data_files.hpp"
#include "profiler/profile.hpp"

namespace moeplan {
namespace {

constexpr std::array<ConstantFacts, kNumConstants> kFacts = {{
    {Constant::sustained_ampere, "sustained_ampere",
     "share of the benchmarked rate that matrix products and attention hold in long runs (clocks, "
     "power limit, shared caches): Volta and Ampere",
     "", 1, 0.4, 1.2},
    {Constant::sustained_hopper, "sustained_hopper", "the same: Hopper", "", 1, 0.4, 1.2},
    {Constant::sustained_blackwell, "sustained_blackwell", "the same: Blackwell", "", 1, 0.3, 1.2},
    {Constant::power_exponent, "power_exponent",
     "how the sustained rate follows the power that a GPU may draw a peak flop, among GPUs of one "
     "generation: 0 not at all, 1 in proportion (every flop costs the same energy)",
     "", 0, 0, 1.2},
    {Constant::narrow_training, "narrow_training",
     "the same for fp8 and fp4 products of any generation (scales and transposes as well)", "", 1,
     0.3, 1.2},
    {Constant::attention_backward, "attention_backward",
     "efficiency of attention's backward over its forward's, where no curve of it is known", "", 1,
     0.3, 1.2},
    {Constant::memory_training, "memory_training",
     "share of the benchmarked memory rate that memory-bound kernels reach in training", "", 1, 0.4,
     1.2},
    {Constant::framework_launch, "framework_launch_s",
     "host time that a training framework spends a kernel, beyond the bare launch", "s", 0, 0,
     60e-6},
    {Constant::step_overhead, "step_overhead_s",
     "host time a step outside of its layers (data, logging, gradient norm, scaler)", "s", 0, 0, 1},
    {Constant::expert_exchange, "expert_exchange",
     "share of the scale-out rate that an all-to-all among experts reaches", "", 1, 0.1, 1.2},
    {Constant::collective_training, "collective_training",
     "share of the benchmarked rate that any other collective between domains reaches beside "
     "training, where several of its ranks share a domain",
     "", 1, 0.3, 1.2},
    {Constant::far_adapter, "far_adapter",
     "share of that rate which is left where a ring leaves a node through an adapter that is not "
     "beside its last GPU, across the CPUs (NCCL before PXN)",
     "", 1, 0.2, 1},
}};

}  // namespace

template <>
const EnumNames<Constant>& enum_names<Constant>() {
    static const EnumNames<Constant> names = [] {
        EnumNames<Constant> out;
        for (const ConstantFacts& facts : kFacts) out.emplace_back(facts.constant, facts.name);
        return out;
    }();
    return names;
}

std::span<const ConstantFacts> constant_facts() { return kFacts; }

Calibration::Calibration() {
    for (std::size_t i = 0; i < kFacts.size(); ++i) values[i] = kFacts[i].neutral;
}

Calibration calibration_from_json(const JsonReader& reader) {
    reader.refuse_unknown({"source", "constants", "errors"});
    Calibration calibration;
    calibration.source = reader.text_or("source", "");
    for (const auto& [name, value] : reader.at("constants").members()) {
        const auto constant = from_name<Constant>(name);
        if (!constant) value.fail("a constant as key: " + choices<Constant>());
        const ConstantFacts& facts = kFacts[static_cast<std::size_t>(*constant)];
        calibration[*constant] = value.number(facts.least, facts.most);
    }
    if (const auto errors = reader.find("errors"))
        for (const JsonReader& item : errors->items()) {
            ErrorBand band;
            band.architecture = item.at("architecture").text();
            if (band.architecture != "dense" && band.architecture != "moe")
                item.at("architecture").fail("dense or moe");
            band.narrow = item.at("narrow").boolean();
            band.low = item.at("low").number(-5, 5);
            band.high = item.at("high").number(band.low, 5);
            band.records = item.count_or("records", 0);
            band.sources = item.count_or("sources", 0);
            calibration.errors.push_back(std::move(band));
        }
    return calibration;
}

Json to_json(const Calibration& calibration) {
    Json json;
    json["source"] = calibration.source;
    for (const ConstantFacts& facts : kFacts)
        json["constants"][std::string(facts.name)] = calibration[facts.constant];
    if (!calibration.errors.empty()) json["errors"] = Json::array();
    for (const ErrorBand& band : calibration.errors)
        json["errors"].push_back(Json{{"architecture", band.architecture},
                                      {"narrow", band.narrow},
                                      {"low", band.low},
                                      {"high", band.high},
                                      {"records", band.records},
                                      {"sources", band.sources}});
    return json;
}

Calibration shipped_calibration() {
    return calibration_from_json(JsonReader::from_file(shipped_file("specs", "calibration")));
}

namespace {

/// Where a generation's constant is meant: watts a flop per second of the 16-bit peak on the GPU
/// whose tables the generation's formula was fitted on. H100 SXM: 700 W, 989 TFlop/s. B200: 1000 W,
/// 2250 TFlop/s. Ampere's GPUs draw alike, and Volta is none of them.
constexpr double kHopperPower = 700 / 989e12, kBlackwellPower = 1000 / 2250e12;

}  // namespace

double sustained(const Profile& profile, Precision precision) {
    if (profile.host_overlap <= 0) return 1;  // a CPU: measured as it runs
    // The tensor cores of a generation are told by what they multiply: fp4 came with Blackwell, fp8
    // with Hopper.
    const auto& peak = profile.roofline.peak;
    const bool blackwell = peak.contains(Precision::nvfp4),
               hopper = !blackwell && peak.contains(Precision::fp8),
               narrow = precision == Precision::fp8 || precision == Precision::mxfp8 ||
                        precision == Precision::nvfp4;
    double rate = profile.calibration[narrow      ? Constant::narrow_training
                                      : blackwell ? Constant::sustained_blackwell
                                      : hopper    ? Constant::sustained_hopper
                                                  : Constant::sustained_ampere];
    const auto wide = peak.find(Precision::bf16);
    if ((blackwell || hopper) && profile.roofline.board_power_w > 0 && wide != peak.end())
        rate *= std::pow(profile.roofline.board_power_w / wide->second.value /
                             (blackwell ? kBlackwellPower : kHopperPower),
                         profile.calibration[Constant::power_exponent]);
    return rate;
}

}  // namespace moeplan
