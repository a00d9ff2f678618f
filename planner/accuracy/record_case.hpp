#pragma once
/// A published run as a case to simulate, and what had to be assumed for it.

#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "planner/accuracy/record.hpp"
#include "simulator/step.hpp"

namespace moeplan {

/// `key` = `value`, by the rule `why`.
struct Assumption {
    std::string key, value, why;
};

struct RecordCase {
    StepCase step;
    std::vector<Assumption> assumed;    ///< what the source leaves out
    std::vector<std::string> warnings;  ///< of the rules: it ran, so nothing is refused for them
    bool fits = true;                   ///< by the memory estimate
};

/// A shipped profile by GPU id; shared, so that hundreds of cases hold one copy.
using ProfileSource = std::function<std::shared_ptr<const Profile>(const std::string& gpu)>;

/// @return the case, or why there is none: an unknown GPU, a layout that the rules of its own
/// framework forbid
std::variant<RecordCase, SkippedRecord> case_of(const TrainingRecord&, const ProfileSource&);

}  // namespace moeplan
