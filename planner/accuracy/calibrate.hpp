#pragma once
/// Published or own runs as targets of a fit, and calibrations as profiles.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "planner/accuracy/evaluate.hpp"
#include "planner/accuracy/fit.hpp"

namespace moeplan {

/// Step times of records that can be predicted: cases made once, predicted under many calibrations.
/// Exact for all but the longest walks (`Short`); `accuracy` judges the constants without this.
class CalibrationCases {
  public:
    /// @param without  sources that are not fitted to
    CalibrationCases(const std::vector<Record>&, const ProfileSource&,
                     const std::vector<std::string>& without, int num_threads);
    const std::vector<FitTarget>& targets() const { return targets_; }
    /// GPUs that the cases run on.
    const std::vector<std::string>& gpus() const { return gpus_; }
    std::vector<double> predict(const Calibration&) const;

  private:
    int num_threads_;
    /// A case, or two shorter ones from which its time is continued; `scale` makes up for what that
    /// missed at the shipped constants. A fit asks hundreds of times, a long walk takes seconds.
    struct Short {
        StepCase step;
        int more = 0;      ///< micro-batches of a second, longer walk; 0: the whole case
        double times = 0;  ///< that the difference is added
        double scale = 1;
    };
    static double time_of(const Short&, const std::shared_ptr<const Profile>&);
    std::vector<Short> cases_;
    std::vector<std::string> gpu_of_, gpus_;
    /// By the values of the constants that can matter to a case: derivatives by the others are
    /// free.
    mutable std::vector<std::map<std::vector<double>, double>> known_;
    std::vector<FitTarget> targets_;
};

/// validation/calibration.json: sources that are kept out of the fit, why; and for each source the
/// constants fitted without it.
struct CalibrationStudy {
    std::map<std::string, std::string> not_fitted;  ///< source → why
    std::map<std::string, Calibration> left_out;    ///< source → constants
};
CalibrationStudy read_calibration_study(const JsonReader&);  ///< @throws InputError
Json to_json(const CalibrationStudy&);

}  // namespace moeplan
