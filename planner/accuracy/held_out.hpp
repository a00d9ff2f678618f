#pragma once
/// A measurement, and what is said of it without having seen it.

#include <string>
#include <vector>

#include "planner/accuracy/record.hpp"

namespace moeplan {

/// One point of a kernel or collective.
struct HeldOutRow {
    std::string id;    ///< of the record
    std::string kind;  ///< gemm, moe_forward, attention, bandwidth; all_reduce, dispatch …
    std::string gpu, precision;
    std::string what;      ///< the shape or size
    std::string held_out;  ///< point (every fifth of a curve), curve, source, nothing_fitted
    std::string variant;   ///< moe_forward: balanced or skewed; collectives: ranks
    double measured = 0, predicted = 0;  ///< seconds, or bytes a second of a bandwidth
    double error() const { return predicted / measured - 1; }
};

struct HeldOutAnswers {
    std::vector<HeldOutRow> rows;
    std::vector<SkippedRecord> skipped;
};

}  // namespace moeplan
