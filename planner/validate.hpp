#pragma once
/// Was the prediction right? Any two reports, field by field.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/json.hpp"
#include "simulator/step.hpp"

namespace moeplan {

struct FieldError {
    std::string field;  ///< as in the JSON of a report: "exposed.dispatch_s"
    double predicted = 0, measured = 0;
    std::optional<double> tolerance;  ///< allowed relative error; empty: shown, not judged
    double relative_error() const;    ///< (predicted − measured) / |measured|; 0 if both are zero
    bool passed() const;              ///< true where nothing is judged
    bool operator==(const FieldError&) const = default;
};
struct Validation {
    std::vector<FieldError> fields;
    bool passed = false;  ///< every judged field is, and at least one was judged
};

using Tolerances = std::map<std::string, double>;  ///< field → allowed relative error

/// What a validation run is judged by. Step time within 20 %; tokens a second are its inverse.
Tolerances default_tolerances();

/// Every number of both reports. Lists are compared by their largest (memory) or mean (others)
/// entry. A tolerance whose field either report lacks fails: what was asked for was not compared.
Validation validate(const StepReport& predicted, const StepReport& measured,
                    const Tolerances& tolerances);

/// A machine that others share does not stay as fast as it was while it was profiled: seconds of a
/// reference piece then and around the measured steps, and what is predicted at the latter.
struct PaceShift {
    Seconds profiled, measured;
    Seconds predicted_step;     ///< at the pace of the measured steps
    double relative_error = 0;  ///< of that; judged is the prediction as it was
    double slower() const { return measured.value / profiled.value; }
};
/// Empty where one of the two does not know, or as many ranks did not run at once in both.
std::optional<PaceShift> pace_shift(const Profile&, const StepReport& predicted,
                                    const StepReport& measured);
Json to_json(const PaceShift&);

/// The numbers of a report by field name, in the order of its JSON.
std::vector<std::pair<std::string, double>> numbers_of(const StepReport&);

/// @return  [{field, predicted, measured, relative_error, tolerance, passed}]
Json to_json(const Validation&);

}  // namespace moeplan
