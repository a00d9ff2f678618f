#include "planner/validate.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace moeplan {
namespace {

/// Parts of a report that are no quantities to compare.
bool is_compared(const std::string& key) {
    return key != "made" && key != "version" && key != "timeline" && key != "link_use" && key != "losses" &&
           key != "interval_s" && key != "routing_interval_s" && key != "memory_by_rank" &&
           key != "relative_spread" && key != "machine_pace_s" && key != "basis";
}

void flatten(const Json& value, const std::string& path,
             std::vector<std::pair<std::string, double>>& out) {
    if (value.is_number()) {
        out.emplace_back(path, value.get<double>());
    } else if (value.is_object()) {
        for (const auto& [key, entry] : value.items())
            if (!path.empty() || is_compared(key))
                flatten(entry, path.empty() ? key : path + "." + key, out);
    } else if (value.is_array() && !value.empty() && value.front().is_number()) {
        double largest = -std::numeric_limits<double>::infinity(), sum = 0;
        for (const Json& entry : value) {
            largest = std::max(largest, entry.get<double>());
            sum += entry.get<double>();
        }
        // Memory fails at the fullest rank; of the others the mean is what repeats.
        if (path.find("memory") != std::string::npos)
            out.emplace_back(path + ".max", largest);
        else
            out.emplace_back(path + ".mean", sum / static_cast<double>(value.size()));
    }
}

}  // namespace

double FieldError::relative_error() const {
    if (predicted == measured) return 0;
    if (measured == 0) return std::numeric_limits<double>::infinity();
    return (predicted - measured) / std::abs(measured);
}

bool FieldError::passed() const {
    return !tolerance || std::abs(relative_error()) <= *tolerance;  // false for NaN
}

Tolerances default_tolerances() {
    // 1 / (1 − 0.2) − 1: the same step times, read as rates.
    return {{"step_time_s", 0.2}, {"tokens_per_second", 0.25}};
}

std::vector<std::pair<std::string, double>> numbers_of(const StepReport& report) {
    std::vector<std::pair<std::string, double>> out;
    flatten(to_json(report), "", out);
    return out;
}

Validation validate(const StepReport& predicted, const StepReport& measured,
                    const Tolerances& tolerances) {
    Validation out;
    out.passed = true;
    const auto theirs = numbers_of(measured);
    std::map<std::string, double> by_name(theirs.begin(), theirs.end());
    std::map<std::string, double> open = tolerances;
    for (const auto& [field, value] : numbers_of(predicted)) {
        const auto found = by_name.find(field);
        if (found == by_name.end()) continue;
        FieldError error{field, value, found->second, std::nullopt};
        if (const auto asked = open.find(field); asked != open.end()) {
            error.tolerance = asked->second;
            open.erase(asked);
        }
        out.passed = out.passed && error.passed();
        out.fields.push_back(std::move(error));
    }
    for (const auto& [field, tolerance] : open) {
        const double nan = std::numeric_limits<double>::quiet_NaN();
        out.fields.push_back({field, nan, nan, tolerance});
        out.passed = false;
    }
    out.passed = out.passed && !tolerances.empty();
    return out;
}

std::optional<PaceShift> pace_shift(const Profile& profile, const StepReport& predicted,
                                    const StepReport& measured) {
    const std::optional<Seconds> profiled = machine_pace(profile);
    const auto ranks = profile.conditions.find("ranks_at_once");
    if (!profiled || !measured.machine_pace || !(*measured.machine_pace > 0) ||
        ranks == profile.conditions.end() ||
        ranks->second != std::to_string(measured.peak_memory.size()))
        return std::nullopt;
    PaceShift out{*profiled, Seconds{*measured.machine_pace}, {}, 0};
    out.predicted_step = predicted.step_time * out.slower();
    out.relative_error = out.predicted_step.value / measured.step_time.value - 1;
    return out;
}

Json to_json(const PaceShift& pace) {
    return {{"profile_s", pace.profiled.value},
            {"measured_s", pace.measured.value},
            {"slower", pace.slower()},
            {"predicted_step_time_s", pace.predicted_step.value},
            {"relative_error", pace.relative_error}};
}

Json to_json(const Validation& validation) {
    Json out = Json::array();
    for (const FieldError& field : validation.fields) {
        Json entry = {{"field", field.field},
                      {"predicted", field.predicted},
                      {"measured", field.measured},
                      {"relative_error", field.relative_error()}};
        if (field.tolerance) {
            entry["tolerance"] = *field.tolerance;
            entry["passed"] = field.passed();
        } else {
            entry["tolerance"] = nullptr;
            entry["passed"] = nullptr;
        }
        out.push_back(std::move(entry));
    }
    return out;
}

}  // namespace moeplan
