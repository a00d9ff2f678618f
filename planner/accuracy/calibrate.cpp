#include "planner/accuracy/calibrate.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/errors.hpp"
#include "planner/parallel_for.hpp"

namespace moeplan {

namespace {

/// Walks of many stages that find no early rhythm: 4 · stages micro-batches and, for all beyond, the
/// difference that another `stages` make.
void shorten(StepCase& step, int& more, double& times, const StepReport& report) {
    const int stages = step.layout.pipeline_parallel_size, all = step.schedule.num_micro_batches;
    const bool found_its_rhythm =
        std::any_of(report.folded.begin(), report.folded.end(), [](const std::string& line) {
            return line.starts_with("micro-batches that all do the same");
        });
    if (found_its_rhythm || stages < 2 || all < 10 * stages) return;
    step.schedule.num_micro_batches = 4 * stages + all % stages;
    more = stages;
    times = static_cast<double>(all - step.schedule.num_micro_batches) / stages;
}

}  // namespace

double CalibrationCases::time_of(const Short& made, const std::shared_ptr<const Profile>& profile) {
    StepCase step = made.step;
    step.profile = profile;
    const double first = estimate_step(step).step_time.value;
    if (made.more == 0) return first * made.scale;
    step.schedule.num_micro_batches += made.more;
    const double second = estimate_step(step).step_time.value;
    return (first + (second - first) * made.times) * made.scale;
}

CalibrationCases::CalibrationCases(const std::vector<Record>& records,
                                   const ProfileSource& profiles,
                                   const std::vector<std::string>& without, int num_threads)
    : num_threads_(num_threads) {
    for (const Record& record : records) {
        const auto* training = std::get_if<TrainingRecord>(&record);
        // a table of runs is one source, smoothed: for ranking, not for fitting
        if (!training || !training->step_time || !training->sweep.empty()) continue;
        if (std::find(without.begin(), without.end(), training->source.title) != without.end())
            continue;
        auto built = case_of(*training, profiles);
        if (!std::holds_alternative<RecordCase>(built)) continue;
        Short made{std::get<RecordCase>(built).step, 0, 0, 1};
        try {
            const StepReport report = estimate_step(made.step);
            shorten(made.step, made.more, made.times, report);
            made.scale = report.step_time.value / time_of(made, made.step.profile);
        } catch (const InputError&) {
            continue;  // `accuracy` lists it with the reason
        }
        cases_.push_back(std::move(made));
        gpu_of_.push_back(training->gpu);
        targets_.push_back({training->source.title, training->step_time->value});
    }
    known_.resize(cases_.size());
    gpus_ = gpu_of_;
    std::sort(gpus_.begin(), gpus_.end());
    gpus_.erase(std::unique(gpus_.begin(), gpus_.end()), gpus_.end());
}

namespace {

/// Whether a constant can change the time of this case.
bool matters(Constant constant, const StepCase& step) {
    const auto& peak = step.profile->roofline.peak;
    const bool fp4 = peak.contains(Precision::nvfp4), fp8 = peak.contains(Precision::fp8);
    switch (constant) {
        case Constant::sustained_ampere:
            return !fp4 && !fp8;
        case Constant::sustained_hopper:
            return !fp4 && fp8;
        case Constant::sustained_blackwell:
            return fp4;
        case Constant::power_exponent:
            return fp4 || fp8;
        case Constant::narrow_training:
            return step.schedule.precision == Precision::fp8 ||
                   step.schedule.precision == Precision::mxfp8 ||
                   step.schedule.precision == Precision::nvfp4;
        default:
            return true;
    }
}

}  // namespace

std::vector<double> CalibrationCases::predict(const Calibration& calibration) const {
    const ProfileSource profiles = shipped_profile_source(calibration);
    std::vector<double> out(cases_.size());
    parallel_for(cases_.size(), num_threads_, [&](std::size_t i) {
        std::vector<double> key;
        for (const ConstantFacts& facts : constant_facts())
            if (matters(facts.constant, cases_[i].step)) key.push_back(calibration[facts.constant]);
        const auto known = known_[i].find(key);
        if (known != known_[i].end()) {
            out[i] = known->second;
            return;
        }
        out[i] = known_[i][key] = time_of(cases_[i], profiles(gpu_of_[i]));
    });
    return out;
}

CalibrationStudy read_calibration_study(const JsonReader& reader) {
    reader.refuse_unknown({"not_fitted", "left_out"});
    CalibrationStudy study;
    if (const auto sources = reader.find("not_fitted"))
        for (const auto& [source, why] : sources->members()) study.not_fitted[source] = why.text();
    if (const auto sources = reader.find("left_out"))
        for (const auto& [source, calibration] : sources->members())
            study.left_out[source] = calibration_from_json(calibration);
    return study;
}

Json to_json(const CalibrationStudy& study) {
    Json out = json_header("calibration-study");
    out["not_fitted"] = Json::object();
    for (const auto& [source, why] : study.not_fitted) out["not_fitted"][source] = why;
    out["left_out"] = Json::object();
    for (const auto& [source, calibration] : study.left_out)
        out["left_out"][source] = to_json(calibration);
    return out;
}

}  // namespace moeplan
