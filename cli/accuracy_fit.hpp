#pragma once
/// Constants: fitted for the shipped calibration, fitted to a user's runs, and how predictions with
/// them come out.

#include <string>
#include <vector>

#include "planner/accuracy/evaluate.hpp"

namespace moeplan::cli {

/// Three predictions a record: as fitted, with neutral constants, and fitted without its source.
EvaluationOptions three_predictions(const std::vector<Record>&, int threads);
void print_predictions(const Evaluation&);

/// The shipped constants, to `to`, and for each source those without it, to `study_to` (empty: the
/// shipped study). Minutes; nothing but this command ever fits them.
int fit_shipped(const std::vector<std::string>& files, const std::string& to,
                const std::string& study_to, int threads);
/// Own runs on one kind of GPU: its shipped profile, with constants moved from the shipped ones as
/// far as the runs ask for it.
int calibrate_profile(const std::string& file, const std::string& to, int threads);

}  // namespace moeplan::cli
