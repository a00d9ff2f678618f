#include "planner/search/closed_form_runs.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "planner/parallel_for.hpp"
#include "planner/resize.hpp"
#include "planner/scout.hpp"
#include "planner/search/scouting.hpp"

namespace moeplan {
namespace {

/// The points of one model: scouted if they are many, then run.
class ModelRuns {
  public:
    ModelRuns(const SearchGrid& grid, std::vector<Point>& points, Correction& correction,
              std::size_t keep, std::size_t most, const StepRunner& runner, int num_threads,
              ClosedFormRuns& out)
        : grid_(grid),
          points_(points),
          correction_(correction),
          keep_(keep),
          most_(most),
          runner_(runner),
          num_threads_(num_threads),
          out_(out) {
        std::stable_sort(points_.begin(), points_.end(),
                         [](const Point& a, const Point& b) { return a.bound < b.bound; });
    }

    /// @param known  good layouts of models with as many experts; then of this one, too
    void scout(std::vector<std::size_t>& known, bool balanced,
               const std::function<void(double)>& done) {
        if (points_.size() <= most_) return;
        const auto price_some = [this](const std::vector<std::size_t>& at) { price(at); };
        Scouting scouting(
            points_, grid_.layouts, correction_,
            [&](Point& point) { point.scouted = scout_step(grid_.case_of(point), runner_); },
            balanced ? std::function<void(const std::vector<std::size_t>&)>{} : price_some,
            num_threads_, done);
        known = scouting.run(known);
        out_.scouted += scouting.num_seen();
    }

    /// What runs teaches what to run next; those not looked at come last, by their bound.
    void run(const std::function<void(double)>& done) {
        std::vector<std::size_t> open;
        for (std::size_t i = 0; i < points_.size(); ++i)
            if (!points_[i].priced) open.push_back(i);
        std::size_t ran = 0;
        while (!open.empty() && ran < most_) {
            std::stable_sort(open.begin(), open.end(), [&](std::size_t a, std::size_t b) {
                return estimate(points_[a]) < estimate(points_[b]);
            });
            const std::size_t room =
                std::min({kRound, most_ - ran, std::max<std::size_t>(4, most_ / 4)});
            std::vector<std::size_t> round, later;
            for (const std::size_t i : open) {
                if (excluded(points_[i])) continue;
                (round.size() < room ? round : later).push_back(i);
            }
            price(round);
            ran += round.size();
            open = std::move(later);
            done(std::min(1.0, static_cast<double>(ran) / static_cast<double>(most_)));
        }
        for (const std::size_t i : open)
            if (!excluded(points_[i])) ++out_.below_bound;
    }

  private:
    bool excluded(const Point& point) const {
        return times_.size() >= keep_ && point.bound.value >= times_[keep_ - 1];
    }
    double estimate(const Point& point) const {
        return point.scouted.value * correction_.of(grid_.layouts[point.layout]);
    }

    void price(const std::vector<std::size_t>& at) {
        std::vector<Priced> round;
        for (const std::size_t i : at) {
            points_[i].priced = true;
            round.push_back({points_[i], {}});
        }
        parallel_for(round.size(), num_threads_, [&](std::size_t i) {
            round[i].report = runner_(grid_.case_of(round[i].point));
        });
        for (Priced& priced : round) {
            const double time = priced.report.step_time.value;
            if (priced.point.scouted.value < 1e300)
                correction_.learn(grid_.layouts[priced.point.layout],
                                  time / priced.point.scouted.value);
            times_.push_back(time);
            out_.run.push_back(std::move(priced));
        }
        std::sort(times_.begin(), times_.end());
    }

    const SearchGrid& grid_;
    std::vector<Point>& points_;
    Correction& correction_;
    std::size_t keep_, most_;
    const StepRunner& runner_;
    int num_threads_;
    ClosedFormRuns& out_;
    std::vector<double> times_;  // ascending: those that ran
};

}  // namespace

std::size_t most_runs(const SearchSpace& space, std::size_t num_models) {
    return space.max_coarse > 0
               ? static_cast<std::size_t>(space.max_coarse)
               : std::max<std::size_t>(8, 64 / std::max<std::size_t>(num_models, 1));
}

ClosedFormRuns run_closed_form(const SearchGrid& grid, std::vector<std::vector<Point>> waiting,
                               std::size_t keep, const StepRunner& runner, int num_threads,
                               const std::function<void(double, const std::string&)>& tell) {
    ClosedFormRuns out;
    const std::size_t most = most_runs(grid.space, waiting.size());
    std::map<int, std::vector<std::size_t>> good_layouts;  // by number of experts
    std::map<int, Correction> corrections;                 // likewise
    for (std::size_t m = 0; m < waiting.size(); ++m) {
        const StepCase& step = grid.cases[m];
        const auto share = [&](double done) {
            return (static_cast<double>(m) + done) / static_cast<double>(waiting.size());
        };
        const MoeFeedForward* moe = first_moe(step.model);
        const int experts = moe ? moe->num_experts : 0;
        const auto* synthetic = std::get_if<SyntheticRouting>(&step.routing);
        ModelRuns runs(grid, waiting[m], corrections[experts], keep, most, runner, num_threads,
                       out);
        runs.scout(
            good_layouts[experts], synthetic && synthetic->kind == "balanced",
            [&](double done) { tell(share(0.6 * done), "looking around: " + step.model.name); });
        runs.run(
            [&](double done) { tell(share(0.6 + 0.4 * done), "closed form: " + step.model.name); });
    }
    return out;
}

}  // namespace moeplan
