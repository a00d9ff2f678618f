#include "planner/plan.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <map>

#include "core/errors.hpp"
#include "core/quantity_text.hpp"
#include "core/text.hpp"
#include "model/op_counts.hpp"
#include "planner/parallel_for.hpp"
#include "planner/search/choose.hpp"
#include "planner/search/closed_form_runs.hpp"
#include "planner/search/shapes.hpp"
#include "planner/search/sift.hpp"

namespace moeplan {
namespace {

using Tell = std::function<void(double, const std::string&)>;

/// @return null: no law was asked for
const QualityLaw* law_of(const SearchSpace& space) {
    if (space.quality_law.empty()) return nullptr;
    const QualityLaw* law = find_quality_law(space.quality_law);
    if (law == nullptr) {
        std::vector<std::string> names;
        for (const QualityLaw& one : quality_laws()) names.emplace_back(one.name);
        throw InputError("--law", "", space.quality_law, join(names, ", "));
    }
    return law;
}

std::vector<ParallelLayout> layouts_to_try(const SearchSpace& space, const StepCase& base,
                                           const std::vector<ResizedModel>& models) {
    if (!space.layouts.empty()) return space.layouts;
    int most_experts = 1;
    for (const ResizedModel& model : models)
        if (const MoeFeedForward* moe = first_moe(model.model))
            most_experts = std::max(most_experts, moe->num_experts);
    return layouts_of(num_gpus(base.cluster), scale_up_domain(base.cluster),
                      static_cast<int>(base.model.layers.size()), most_experts, space.fixed);
}

/// A resized model with its routing: the trace's where it fits.
StepCase case_of_model(const SearchSpace& space, const StepCase& base, const ModelSpec& model) {
    StepCase step = base;
    step.model = model;
    if (const auto* trace = std::get_if<std::shared_ptr<const TraceReader>>(&base.routing))
        if (*trace && !fits_trace(step.model, **trace)) step.routing = space.routing_elsewhere;
    return step;
}

/// Every combination's legality, memory and bound, summed up.
struct Sifted {
    std::map<std::string, Refused> refused;
    std::vector<std::vector<Point>> points;  ///< [models of the grid] legal and fit
    double least_need = std::numeric_limits<double>::infinity();  ///< of those that do not fit
    std::string least_need_at;
};

void sift_all(const SearchGrid& grid, Bytes limit, const Runners& runners, int num_threads,
              const Tell& tell, Funnel& funnel, Sifted& out) {
    std::vector<Outcome> outcomes(grid.cases.size() * grid.layouts.size());
    parallel_for(
        outcomes.size(), num_threads,
        [&](std::size_t task) {
            const std::size_t m = task / grid.layouts.size(), l = task % grid.layouts.size();
            StepCase step = grid.cases[m];
            step.layout = grid.layouts[l];
            outcomes[task] =
                sift(grid.space, step, m, l, grid.global_batch_size, limit, runners.bound);
        },
        [&](std::size_t done) {
            if (done % 256 == 0)
                tell(static_cast<double>(done) / static_cast<double>(outcomes.size()),
                     "legality, memory, bounds");
        });
    out.points.resize(grid.cases.size());
    for (Outcome& outcome : outcomes) {
        funnel.combinations += outcome.combinations;
        funnel.legal += outcome.legal;
        funnel.fit += static_cast<std::int64_t>(outcome.points.size());
        for (const auto& [rule, entry] : outcome.refused)
            count_refused(out.refused, rule, entry.count, entry.example, entry.nearest);
        if (outcome.least_need < out.least_need) {
            out.least_need = outcome.least_need;
            out.least_need_at = outcome.least_need_at;
        }
        for (Point& point : outcome.points) out.points[point.model].push_back(std::move(point));
    }
}

/// Loss and objective of each model of a grid.
class Scores {
  public:
    Scores(const SearchGrid& grid, const StepCase& base, const QualityLaw* law,
           double training_tokens)
        : quality(grid.cases.size()),
          objective_(grid.space.objective),
          world_(num_gpus(base.cluster)),
          tokens_per_step_(static_cast<double>(grid.global_batch_size) *
                           base.schedule.sequence_length),
          tokens_(grid.cases.size(), training_tokens) {
        if (law == nullptr) return;
        const QualityCase own = quality_case(base.model, training_tokens);
        for (std::size_t m = 0; m < grid.cases.size(); ++m) {
            const QualityCase model = quality_case(grid.cases[m].model, training_tokens);
            quality[m] = law->estimate(model, own);
            if (objective_ != Objective::throughput)
                tokens_[m] = tokens_to_base_loss(*law, model, own).central;
        }
    }

    std::vector<std::optional<QualityEstimate>> quality;  ///< [models]

    /// What the objective orders by; less is better.
    double of(std::size_t model, Seconds step_time) const {
        const double per_token = step_time.value / tokens_per_step_;
        switch (objective_) {
            case Objective::throughput:
                return per_token;
            case Objective::time_to_loss:
                return per_token * tokens_[model];
            case Objective::cost:
                return per_token * tokens_[model] * world_;
        }
        return per_token;
    }

  private:
    Objective objective_;
    int world_;
    double tokens_per_step_;
    std::vector<double> tokens_;  // [models] to the base model's loss
};

/// The chosen combinations, at the last stage's fidelity.
/// @param tried  models of the grid → models of the plan
std::vector<Candidate> candidates(const SearchGrid& grid, std::vector<Priced>& run,
                                  const std::vector<std::size_t>& chosen,
                                  const std::vector<std::size_t>& tried, const Scores& scores,
                                  const StepRunner& fine, const Tell& tell) {
    std::vector<Candidate> out;
    for (std::size_t i = 0; i < chosen.size(); ++i) {
        const Point& point = run[chosen[i]].point;
        StepReport& coarse = run[chosen[i]].report;
        Candidate candidate;
        candidate.step = grid.case_of(point);
        candidate.quality = scores.quality[point.model];
        candidate.model = tried[point.model];
        candidate.coarse_time = coarse.step_time;
        candidate.fullest_rank = point.fullest;
        if (fine) {
            candidate.predicted = fine(candidate.step);
            tell(static_cast<double>(i + 1) / static_cast<double>(chosen.size()), "flow level");
        } else {
            candidate.predicted = std::move(coarse);
        }
        for (const Bytes peak : candidate.predicted.peak_memory)
            candidate.fullest_rank = std::max(candidate.fullest_rank, peak);
        candidate.score = scores.of(point.model, candidate.predicted.step_time);
        out.push_back(std::move(candidate));
    }
    std::stable_sort(out.begin(), out.end(),
                     [](const Candidate& a, const Candidate& b) { return a.score < b.score; });
    return out;
}

/// Not dominated in step time, loss range and memory. A loss range is at least as good as another
/// if both its ends are.
std::vector<std::size_t> front_of(const std::vector<Candidate>& best) {
    std::vector<std::vector<double>> points;
    for (const Candidate& candidate : best) {
        std::array<double, 2> loss = {0, 0};
        if (candidate.quality)
            loss = candidate.quality->difference.value_or(
                std::array{candidate.quality->low, candidate.quality->high});
        points.push_back(
            {candidate.predicted.step_time.value, loss[0], loss[1], candidate.fullest_rank.value});
    }
    return not_dominated(points);
}

std::vector<std::string> assumptions_of(const Plan& plan, const StepCase& base,
                                        const QualityLaw* law, std::size_t most) {
    std::vector<std::string> out;
    out.push_back("global batch " + std::to_string(plan.global_batch_size) + " sequences of " +
                  std::to_string(base.schedule.sequence_length) +
                  " tokens, the same for all candidates");
    if (law)
        out.push_back("loss after " + exact_text(plan.training_tokens) + " tokens by " +
                      std::string(law->name) + " (" + std::string(law->source) + ")");
    if (plan.funnel.below_bound > 0)
        out.push_back(
            std::to_string(plan.funnel.below_bound) +
            " combinations were not run although their bound does not exclude them: at most " +
            std::to_string(most) + " closed-form runs a model, most promising first");
    return out;
}

/// Of a plan without candidates: what would do.
std::string nearest_of(const SearchSpace& space, const StepCase& base, const Plan& plan,
                       const Sifted& sifted) {
    std::string out;
    if (sifted.least_need < std::numeric_limits<double>::infinity())
        out = "the leanest combination needs " + to_text(Bytes{sifted.least_need}) + " of " +
              to_text(plan.memory_limit) + " a GPU (" + sifted.least_need_at + ")";
    const std::string more =
        nearest_fit(space, base, plan.models, plan.global_batch_size, plan.memory_limit);
    if (!more.empty()) out += (out.empty() ? "" : "; ") + more;
    return out;
}

}  // namespace

Bytes memory_limit(const ClusterSpec& cluster) { return cluster.gpu.memory; }

std::optional<PlacementReport> placement_for(const Plan& plan, const TraceReader& trace,
                                             int spare_slots) {
    for (const Candidate& candidate : plan.best) {
        const int ranks = candidate.step.layout.expert_parallel_size;
        if (ranks > 1 && fits_trace(candidate.step.model, trace) &&
            trace.header().num_experts % ranks == 0)
            return place_experts(trace, ranks, spare_slots);
    }
    return std::nullopt;
}

std::vector<std::size_t> not_dominated(const std::vector<std::vector<double>>& points) {
    const auto dominates = [](const std::vector<double>& a, const std::vector<double>& b) {
        bool better = false;
        for (std::size_t i = 0; i < a.size(); ++i) {
            if (a[i] > b[i]) return false;
            better = better || a[i] < b[i];
        }
        return better;
    };
    std::vector<std::size_t> out;
    for (std::size_t i = 0; i < points.size(); ++i) {
        const bool dominated = std::any_of(points.begin(), points.end(), [&](const auto& other) {
            return dominates(other, points[i]);
        });
        if (!dominated) out.push_back(i);
    }
    return out;
}

Plan plan(const SearchSpace& space, const StepCase& base, const Runners& runners,
          const SearchOptions& options) {
    // Shares of the whole at which the stages of the funnel begin.
    constexpr double kRuns = 0.3, kLastStage = 0.8;
    const auto stage = [&](double from, double to) -> Tell {
        return [&options, from, to](double done, const std::string& doing) {
            if (options.progress) options.progress(from + (to - from) * done, doing);
        };
    };
    Plan out;
    const QualityLaw* law = law_of(space);
    out.global_batch_size = space.global_batch_size > 0
                                ? space.global_batch_size
                                : base.schedule.micro_batch_size * base.schedule.num_micro_batches *
                                      base.layout.data_parallel_size;
    out.objective = space.objective;
    out.memory_limit = memory_limit(base.cluster);
    out.models = shapes_of(space, base);
    const double active =
        static_cast<double>(count_parameters(base.model).active_without_embeddings);
    out.training_tokens = space.training_tokens > 0 ? space.training_tokens : 20 * active;
    out.quality_law = law ? std::string(law->name) : "";

    SearchGrid grid{
        space, base.schedule, out.global_batch_size, layouts_to_try(space, base, out.models), {}};
    Sifted sifted;
    std::vector<std::size_t> tried;  // [models of the grid] in out.models
    for (std::size_t m = 0; m < out.models.size(); ++m) {
        const auto layouts = static_cast<std::int64_t>(grid.layouts.size());
        if (!out.models[m].refused.empty()) {
            count_refused(sifted.refused, "parity", layouts, out.models[m].refused);
            out.funnel.combinations += layouts;
            continue;
        }
        tried.push_back(m);
        grid.cases.push_back(case_of_model(space, base, out.models[m].model));
    }
    sift_all(grid, out.memory_limit, runners, options.num_threads, stage(0, kRuns), out.funnel,
             sifted);

    const auto keep = static_cast<std::size_t>(std::max(space.num_best, 1));
    ClosedFormRuns coarse = run_closed_form(grid, std::move(sifted.points), keep, runners.coarse,
                                            options.num_threads, stage(kRuns, kLastStage));
    out.funnel.scouted = coarse.scouted;
    out.funnel.below_bound = coarse.below_bound;
    out.funnel.coarse = static_cast<std::int64_t>(coarse.run.size());

    const Scores scores(grid, base, law, out.training_tokens);
    std::vector<double> coarse_scores;
    for (const Priced& priced : coarse.run)
        coarse_scores.push_back(scores.of(priced.point.model, priced.report.step_time));
    const std::vector<std::size_t> chosen = choose(coarse.run, coarse_scores, tried.size(), keep);
    out.best =
        candidates(grid, coarse.run, chosen, tried, scores, runners.fine, stage(kLastStage, 1));
    if (runners.fine) out.funnel.fine = static_cast<std::int64_t>(out.best.size());
    out.front = front_of(out.best);

    for (auto& [rule, entry] : sifted.refused) out.refused.push_back(std::move(entry));
    std::stable_sort(out.refused.begin(), out.refused.end(),
                     [](const Refused& a, const Refused& b) { return a.count > b.count; });
    out.assumptions = assumptions_of(out, base, law, most_runs(space, tried.size()));
    if (out.best.empty()) out.nearest = nearest_of(space, base, out, sifted);
    stage(0, 1)(1, "done");
    return out;
}

}  // namespace moeplan
