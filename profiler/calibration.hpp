#pragma once
/// What benchmarks do not tell of long training runs, as twelve constants, each with a
/// physical meaning. A neutral calibration believes the benchmarks.

#include <array>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "core/enum_names.hpp"
#include "core/json.hpp"
#include "profiler/error_band.hpp"

namespace moeplan {

enum class Constant : std::uint8_t {
    sustained_ampere,
    sustained_hopper,
    sustained_blackwell,
    power_exponent,
    narrow_training,
    attention_backward,
    memory_training,
    framework_launch,
    step_overhead,
    expert_exchange,
    collective_training,
    far_adapter
};
inline constexpr int kNumConstants = 12;

/// One row of the table: what a constant is, and what a fit may make of it.
struct ConstantFacts {
    Constant constant;
    std::string_view name;     ///< key in files; base unit at its end where it has one
    std::string_view meaning;  ///< one sentence
    std::string_view unit;     ///< "" of shares, else "s"
    double neutral;            ///< nothing beyond the benchmarks
    double least, most;        ///< outside, a value is a mistake
};
/// [kNumConstants], in the order of the enumeration.
std::span<const ConstantFacts> constant_facts();

struct Calibration {
    Calibration();  ///< neutral
    std::array<double, kNumConstants> values;
    std::string source;             ///< which records it was fitted on; empty: neutral
    std::vector<ErrorBand> errors;  ///< of predictions with constants fitted like these
    double operator[](Constant constant) const {
        return values[static_cast<std::size_t>(constant)];
    }
    double& operator[](Constant constant) { return values[static_cast<std::size_t>(constant)]; }
    bool operator==(const Calibration&) const = default;
};

/// @name JSON (schemas/calibration.schema.json). A constant that a file leaves out is neutral.
/// @{
Calibration calibration_from_json(const JsonReader&);  ///< @throws InputError
Json to_json(const Calibration&);
/// @}

/// specs/calibration.json: fitted on the published records of validation/ (docs/accuracy.md).
Calibration shipped_calibration();

template <>
const EnumNames<Constant>& enum_names<Constant>();

}  // namespace moeplan
