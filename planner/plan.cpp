#include "planner/plan.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <tuple>

#include "core/errors.hpp"
#include "core/quantity_text.hpp"
#include "core/text.hpp"
#include "model/check.hpp"
#include "model/op_counts.hpp"
#include "planner/parallel_for.hpp"
#include "planner/scout.hpp"

namespace moeplan {
namespace {

/// One legal combination that fits, kept small: there may be millions. Its case is made when it is
/// run.
struct Point {
    std::size_t model = 0, layout = 0, schedule = 0;  ///< the schedule: index into schedules_of
    Seconds bound, scouted = {std::numeric_limits<double>::infinity()};  ///< balanced routing
    bool priced = false;
    Bytes fullest;
};

/// A combination that the closed form priced.
struct Priced {
    Point point;
    StepReport report;
};

/// What became of the combinations of one model and one layout.
struct Outcome {
    std::map<std::string, Refused> refused;
    std::vector<Point> points;
    std::int64_t combinations = 0, legal = 0;
    double least_need = std::numeric_limits<double>::infinity();  ///< of those that do not fit
    std::string least_need_at;
};

void count_refused(std::map<std::string, Refused>& refused, const std::string& rule,
                   std::int64_t count, const std::string& example,
                   const std::vector<std::string>& nearest = {}) {
    Refused& entry = refused[rule];
    if (entry.count == 0) {
        entry.rule = rule;
        entry.example = example;
        entry.nearest = nearest;
    }
    entry.count += count;
}

/// Every broken rule of a layout once.
std::vector<Finding> broken_rules(const ModelSpec& model, const ParallelLayout& layout,
                                  const StepSchedule& schedule, int world) {
    std::vector<Finding> out;
    std::set<std::string> seen;
    for (Finding& finding : check_layout(model, layout, schedule, world))
        if (finding.severity == Severity::broken && seen.insert(finding.rule).second)
            out.push_back(std::move(finding));
    return out;
}

Bytes fullest_rank(const StepCase& step, double hot_rank_load) {
    Bytes most{};
    for (const StageMemory& stage :
         memory_by_stage(step.model, step.layout, step.schedule, hot_rank_load))
        most = std::max(most, stage.total());
    return most;
}

std::string words_of(const ParallelLayout& l, const StepSchedule& s) {
    return "tp " + std::to_string(l.tensor_parallel_size) + " cp " +
           std::to_string(l.context_parallel_size) + " pp " +
           std::to_string(l.pipeline_parallel_size) + " dp " +
           std::to_string(l.data_parallel_size) + " ep " + std::to_string(l.expert_parallel_size) +
           " etp " + std::to_string(l.expert_tensor_parallel_size) + ", micro-batch " +
           std::to_string(s.micro_batch_size) +
           (s.recompute.full              ? ", full recompute"
            : s.recompute.modules.empty() ? ""
                                          : ", selective recompute") +
           ", " + std::string(name_of(s.sharding));
}

/// Legality, memory and bound of all schedules of one model and layout.
Outcome sift(const SearchSpace& space, StepCase& step, std::size_t model, std::size_t layout,
             int global_batch, Bytes limit, const std::function<Seconds(const StepCase&)>& bound) {
    Outcome out;
    std::int64_t undivided = 0;
    const std::vector<StepSchedule> schedules =
        schedules_of(space, step.schedule, step.layout, global_batch, &undivided);
    out.combinations = static_cast<std::int64_t>(schedules.size()) + undivided;
    if (undivided > 0)
        count_refused(out.refused, "global_batch", undivided,
                      "global batch " + std::to_string(global_batch) +
                          " is no multiple of micro-batch × dp " +
                          std::to_string(step.layout.data_parallel_size));
    if (schedules.empty()) return out;

    // What the plainest schedule breaks by its layout alone, all others break too: a rule that
    // names neither pipeline interleaving nor recompute cannot be mended by either.
    const int world = num_gpus(step.cluster);
    const std::vector<Finding> plain =
        broken_rules(step.model, step.layout, schedules.front(), world);
    const bool all_broken = !plain.empty() && space.schedules.empty();
    if (all_broken) {
        for (const Finding& finding : plain)
            count_refused(out.refused, finding.rule, static_cast<std::int64_t>(schedules.size()),
                          finding.detail, finding.nearest);
        return out;
    }
    for (const StepSchedule& schedule : schedules) {
        const std::vector<Finding> broken =
            &schedule == &schedules.front()
                ? plain
                : broken_rules(step.model, step.layout, schedule, world);
        for (const Finding& finding : broken)
            count_refused(out.refused, finding.rule, 1, finding.detail, finding.nearest);
        if (!broken.empty()) continue;
        ++out.legal;
        step.schedule = schedule;
        const Bytes fullest = fullest_rank(step, space.hot_rank_load);
        if (fullest > limit) {
            const std::string at = words_of(step.layout, schedule);
            count_refused(out.refused, "memory", 1,
                          at + ": " + to_text(fullest) + " of " + to_text(limit));
            if (fullest.value < out.least_need) {
                out.least_need = fullest.value;
                out.least_need_at = at;
            }
            continue;
        }
        Point point;
        point.model = model;
        point.layout = layout;
        point.schedule = static_cast<std::size_t>(&schedule - schedules.data());
        point.fullest = fullest;
        if (bound) point.bound = bound(step);
        out.points.push_back(std::move(point));
    }
    return out;
}

/// The smallest cluster of the same nodes on which something fits, in words.
std::string nearest_fit(const SearchSpace& space, const StepCase& base,
                        const std::vector<ResizedModel>& models, int global_batch, Bytes limit) {
    const ModelSpec* model = nullptr;
    for (const ResizedModel& resized : models)
        if (resized.refused.empty()) {
            model = &resized.model;
            break;
        }
    if (model == nullptr) return {};
    StepCase step = base;
    step.model = *model;
    SearchSpace plain = space;
    plain.schedules.clear();
    plain.micro_batch_sizes = {1};
    plain.virtual_pipeline_sizes = {1};
    plain.recomputes = {{.full = true, .modules = {}}};
    plain.fixed = {};
    const MoeFeedForward* moe = first_moe(step.model);
    for (int factor = 1; factor <= 64; factor *= 2) {
        step.cluster.num_nodes = base.cluster.num_nodes * factor;
        const int world = num_gpus(step.cluster);
        const int batch = std::max(global_batch, world);
        // Of those that fit, the one that splits the model least; ties by memory.
        std::pair<int, double> best = {std::numeric_limits<int>::max(), 0};
        std::string where;
        for (const ParallelLayout& layout :
             layouts_of(world, scale_up_domain(step.cluster),
                        static_cast<int>(step.model.layers.size()), moe ? moe->num_experts : 1)) {
            const int splits = layout.tensor_parallel_size * layout.context_parallel_size *
                               layout.pipeline_parallel_size * layout.expert_tensor_parallel_size;
            if (splits > best.first) continue;
            step.layout = layout;
            for (const StepSchedule& schedule : schedules_of(plain, base.schedule, layout, batch)) {
                if (!broken_rules(step.model, layout, schedule, world).empty()) continue;
                step.schedule = schedule;
                const Bytes need = fullest_rank(step, space.hot_rank_load);
                if (need > limit || std::pair{splits, need.value} >= best) continue;
                best = {splits, need.value};
                where = words_of(layout, schedule);
            }
        }
        if (!where.empty())
            return (factor == 1 ? "this cluster with other sizes than were fixed: "
                                : std::to_string(step.cluster.num_nodes) + " such nodes (" +
                                      std::to_string(world) + " GPUs): ") +
                   where + " needs " + to_text(Bytes{best.second}) + " of " + to_text(limit) +
                   " a GPU" +
                   (batch != global_batch ? ", global batch " + std::to_string(batch) : "");
    }
    return "not even " + std::to_string(base.cluster.num_nodes * 64) +
           " such nodes with full recompute";
}

std::vector<ResizedModel> shapes_of(const SearchSpace& space, const StepCase& base) {
    std::vector<ResizedModel> out;
    ResizeRule rule = space.rounding;
    rule.parity = space.parity;
    const MoeFeedForward* moe = first_moe(base.model);
    if (moe == nullptr) {
        out.push_back(resize(base.model, {}, rule, base.schedule.sequence_length));
        return out;
    }
    const MoeShape own = moe_shape(*moe);
    const auto or_own = [](const std::vector<int>& asked, int value) {
        return asked.empty() ? std::vector<int>{value} : asked;
    };
    std::vector<std::optional<DocumentPool>> pools = {own.pool};
    if (!space.pools.empty()) {
        pools.clear();
        for (const DocumentPool& pool : space.pools) {
            if (pool.largest == 0)
                pools.push_back(std::nullopt);  // asked for without pools
            else
                pools.push_back(pool);
        }
    }
    for (const int heads : or_own(space.num_moe_heads, own.num_moe_heads))
        for (const int experts : or_own(space.num_experts, own.num_experts))
            for (const int top_k : or_own(space.top_k, own.top_k))
                for (const auto& pool : pools)
                    out.push_back(resize(base.model, {heads, experts, top_k, pool}, rule,
                                         base.schedule.sequence_length));
    return out;
}

/// Whether a recorded trace can stand for a model's routing: as it is, or with each of its experts
/// split into several.
bool fits_trace(const ModelSpec& model, const TraceReader& trace) {
    const MoeFeedForward* moe = first_moe(model);
    const TraceHeader& header = trace.header();
    return moe && header.num_experts > 0 && moe->num_experts % header.num_experts == 0 &&
           header.num_moe_heads == moe->num_moe_heads;
}

constexpr std::size_t kRound = 16;           ///< closed-form runs between two looks at the bound
constexpr std::size_t kScoutedLayouts = 10;  ///< layouts whose every schedule is looked at
constexpr std::size_t kClimbing = 6;         ///< best layouts whose neighbours are looked at next
constexpr int kClimbs = 16;                  ///< rounds of that, at most

constexpr double kMargin = 1.05;  ///< a look is an estimate: bounds just above it are kept

/// Whether one layout comes from the other by a single move: a factor from one size to another, or
/// another size of the experts' groups.
bool are_neighbours(const ParallelLayout& a, const ParallelLayout& b) {
    const int attention = (a.tensor_parallel_size != b.tensor_parallel_size) +
                          (a.context_parallel_size != b.context_parallel_size) +
                          (a.pipeline_parallel_size != b.pipeline_parallel_size) +
                          (a.data_parallel_size != b.data_parallel_size);
    const int experts = (a.expert_parallel_size != b.expert_parallel_size) +
                        (a.expert_tensor_parallel_size != b.expert_tensor_parallel_size);
    return (attention <= 2 && experts == 0) || (attention == 0 && experts <= 2);
}

/// How much longer than under balanced routing a step takes, learnt from those that ran: by the
/// ranks that share the experts, and where known by the pipeline's depth, since its stages wait for
/// the slowest.
class Correction {
  public:
    double of(const ParallelLayout& layout) const {
        if (const auto found =
                by_both_.find({layout.expert_parallel_size, layout.pipeline_parallel_size});
            found != by_both_.end())
            return found->second.mean();
        if (const auto found = by_ranks_.find(layout.expert_parallel_size);
            found != by_ranks_.end())
            return found->second.mean();
        return 1;
    }
    void learn(const ParallelLayout& layout, double ratio) {
        by_both_[{layout.expert_parallel_size, layout.pipeline_parallel_size}].add(ratio);
        by_ranks_[layout.expert_parallel_size].add(ratio);
    }
    bool knows(int ranks) const { return by_ranks_.contains(ranks); }

  private:
    struct Mean {
        double sum = 0;
        int count = 0;
        void add(double value) {
            sum += value;
            ++count;
        }
        double mean() const { return sum / count; }
    };
    std::map<std::pair<int, int>, Mean> by_both_;
    std::map<int, Mean> by_ranks_;
};

/// Looks around among points, in the order of what is worth a look: one schedule of the plain
/// layouts, or of those that were good for a model alike; then climbs from the best to their
/// neighbours until none is better; then every schedule of the best layouts. What a bound says is
/// slower than the best seen is left out.
class Scouting {
  public:
    /// @param points   in the order of their bound
    /// @param layouts    what Point::layout counts
    /// @param scout      sets Point::scouted
    /// @param calibrate  runs points for what the correction does not know; may be empty
    Scouting(std::vector<Point>& points, const std::vector<ParallelLayout>& layouts,
             const Correction& correction, std::function<void(Point&)> scout,
             std::function<void(const std::vector<std::size_t>&)> calibrate, int num_threads,
             std::function<void(double)> done)
        : points_(points),
          layouts_(layouts),
          correction_(correction),
          scout_(std::move(scout)),
          calibrate_(std::move(calibrate)),
          num_threads_(num_threads),
          done_(std::move(done)) {
        for (std::size_t i = 0; i < points.size(); ++i) first_.emplace(points[i].layout, i);
    }

    /// @param known  good layouts of a model with as many experts; empty: there is none
    /// @return       good layouts of this one
    std::vector<std::size_t> run(const std::vector<std::size_t>& known) {
        std::vector<std::size_t> begin;
        for (const std::size_t layout : known)
            if (const auto found = first_.find(layout); found != first_.end())
                begin.push_back(found->second);
        const int climbs = begin.empty() ? kClimbs : 1;
        if (begin.empty())
            for (const auto& [layout, point] : first_)
                if (layouts_[layout].context_parallel_size == 1 &&
                    layouts_[layout].expert_tensor_parallel_size == 1)
                    begin.push_back(point);
        if (begin.empty())
            for (const auto& [layout, point] : first_) begin.push_back(point);
        // The best bounds first: what they show leaves others out.
        std::stable_sort(begin.begin(), begin.end());
        look(begin, 0, 0.3);
        if (calibrate_) {
            // The best of each number of ranks that share the experts.
            std::vector<std::size_t> unknown;
            std::set<int> ranks;
            for (const std::size_t i : seen_) {
                const int ep = layouts_[points_[i].layout].expert_parallel_size;
                if (!correction_.knows(ep) && ranks.insert(ep).second) unknown.push_back(i);
            }
            calibrate_(unknown);
            sort();
        }
        for (int climb = 0; climb < climbs; ++climb) {
            const std::vector<std::size_t> next = neighbours();
            if (next.empty()) break;
            look(next, 0.3, 0.6);
        }
        const std::vector<std::size_t> best = best_layouts();
        std::vector<std::size_t> rest;
        for (std::size_t i = 0; i < points_.size(); ++i)
            if (unseen(i) && std::find(best.begin(), best.end(), points_[i].layout) != best.end())
                rest.push_back(i);
        look(rest, 0.6, 1);
        return best_layouts();
    }

    std::int64_t num_seen() const { return static_cast<std::int64_t>(seen_.size()); }

  private:
    bool unseen(std::size_t i) const { return points_[i].scouted.value > 1e300; }
    double estimate(std::size_t i) const {
        return points_[i].scouted.value * correction_.of(layouts_[points_[i].layout]);
    }
    double best_estimate() const {
        return seen_.empty() ? std::numeric_limits<double>::infinity() : estimate(seen_.front());
    }
    void sort() {
        std::stable_sort(seen_.begin(), seen_.end(),
                         [&](std::size_t a, std::size_t b) { return estimate(a) < estimate(b); });
    }

    void look(const std::vector<std::size_t>& at, double from, double to) {
        for (std::size_t begin = 0; begin < at.size(); begin += kRound) {
            const double best = best_estimate();
            std::vector<std::size_t> round;
            for (std::size_t i = begin; i < std::min(at.size(), begin + kRound); ++i)
                if (points_[at[i]].bound.value < best * kMargin) round.push_back(at[i]);
            parallel_for(round.size(), num_threads_,
                         [&](std::size_t i) { scout_(points_[round[i]]); });
            seen_.insert(seen_.end(), round.begin(), round.end());
            sort();
            done_(from + (to - from) * static_cast<double>(begin) / static_cast<double>(at.size()));
        }
    }

    /// Layouts one move away from the best seen, one point each.
    std::vector<std::size_t> neighbours() const {
        std::vector<std::size_t> out;
        for (const auto& [layout, point] : first_) {
            if (!unseen(point)) continue;
            for (std::size_t i = 0; i < std::min(seen_.size(), kClimbing); ++i)
                if (are_neighbours(layouts_[layout], layouts_[points_[seen_[i]].layout])) {
                    // What the bound left out stays out.
                    if (points_[point].bound.value < best_estimate() * kMargin)
                        out.push_back(point);
                    break;
                }
        }
        std::stable_sort(out.begin(), out.end());
        return out;
    }

    std::vector<std::size_t> best_layouts() const {
        std::vector<std::size_t> out;
        for (const std::size_t i : seen_) {
            if (out.size() >= kScoutedLayouts) break;
            if (std::find(out.begin(), out.end(), points_[i].layout) == out.end())
                out.push_back(points_[i].layout);
        }
        return out;
    }

    std::vector<Point>& points_;
    const std::vector<ParallelLayout>& layouts_;
    const Correction& correction_;
    std::function<void(Point&)> scout_;
    std::function<void(const std::vector<std::size_t>&)> calibrate_;
    int num_threads_;
    std::function<void(double)> done_;
    std::map<std::size_t, std::size_t> first_;  ///< layout → its point of the least bound
    std::vector<std::size_t> seen_;             ///< points, best first
};

/// Candidates for the last stage: the best of each model first, then those that no other dominates
/// in time and memory, then the next best.
std::vector<std::size_t> choose(const std::vector<Priced>& run, const std::vector<double>& score,
                                std::size_t num_models, std::size_t most) {
    std::vector<std::size_t> order(run.size());
    for (std::size_t i = 0; i < run.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return score[a] < score[b]; });
    std::vector<std::size_t> chosen;
    std::vector<bool> taken(run.size(), false), seen(num_models, false);
    const auto take = [&](std::size_t i) {
        if (chosen.size() >= most || taken[i]) return;
        taken[i] = true;
        chosen.push_back(i);
    };
    for (const std::size_t i : order)
        if (!seen[run[i].point.model]) {
            seen[run[i].point.model] = true;
            take(i);
        }
    std::vector<std::vector<double>> points;
    for (const Priced& priced : run)
        points.push_back({priced.report.step_time.value, priced.point.fullest.value});
    std::vector<bool> lean(run.size(), false);
    for (const std::size_t i : not_dominated(points)) lean[i] = true;
    const std::size_t room = chosen.size() + (most - chosen.size()) / 2;
    for (const std::size_t i : order)
        if (lean[i] && chosen.size() < room) take(i);
    for (const std::size_t i : order) take(i);
    return chosen;
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
    Plan out;
    const auto tell = [&](double done, std::string_view doing) {
        if (options.progress) options.progress(done, doing);
    };
    const QualityLaw* law = nullptr;
    if (!space.quality_law.empty()) {
        law = find_quality_law(space.quality_law);
        if (law == nullptr) {
            std::vector<std::string> names;
            for (const QualityLaw& one : quality_laws()) names.emplace_back(one.name);
            throw InputError("--law", "", space.quality_law, join(names, ", "));
        }
    }
    const int world = num_gpus(base.cluster);
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

    // Every combination: legality, memory, bound.
    int most_experts = 1;
    for (const ResizedModel& model : out.models)
        if (const MoeFeedForward* moe = first_moe(model.model))
            most_experts = std::max(most_experts, moe->num_experts);
    const std::vector<ParallelLayout> layouts =
        !space.layouts.empty()
            ? space.layouts
            : layouts_of(world, scale_up_domain(base.cluster),
                         static_cast<int>(base.model.layers.size()), most_experts, space.fixed);

    std::map<std::string, Refused> refused;
    std::vector<std::size_t> tried;
    std::vector<StepCase> cases;  // one a model: what varies inside is set by the tasks' copies
    for (std::size_t m = 0; m < out.models.size(); ++m) {
        if (!out.models[m].refused.empty()) {
            count_refused(refused, "parity", static_cast<std::int64_t>(layouts.size()),
                          out.models[m].refused);
            out.funnel.combinations += static_cast<std::int64_t>(layouts.size());
            continue;
        }
        StepCase step = base;
        step.model = out.models[m].model;
        if (const auto* trace = std::get_if<std::shared_ptr<const TraceReader>>(&base.routing))
            if (*trace && !fits_trace(step.model, **trace)) step.routing = space.routing_elsewhere;
        tried.push_back(m);
        cases.push_back(std::move(step));
    }

    std::vector<Outcome> outcomes(tried.size() * layouts.size());
    parallel_for(
        outcomes.size(), options.num_threads,
        [&](std::size_t task) {
            const std::size_t m = task / layouts.size(), l = task % layouts.size();
            StepCase step = cases[m];
            step.layout = layouts[l];
            outcomes[task] =
                sift(space, step, m, l, out.global_batch_size, out.memory_limit, runners.bound);
        },
        [&](std::size_t done) {
            if (done % 256 == 0)
                tell(0.3 * static_cast<double>(done) / static_cast<double>(outcomes.size()),
                     "legality, memory, bounds");
        });

    std::vector<std::vector<Point>> waiting(tried.size());
    double least_need = std::numeric_limits<double>::infinity();
    std::string least_need_at;
    for (Outcome& outcome : outcomes) {
        out.funnel.combinations += outcome.combinations;
        out.funnel.legal += outcome.legal;
        out.funnel.fit += static_cast<std::int64_t>(outcome.points.size());
        for (const auto& [rule, entry] : outcome.refused)
            count_refused(refused, rule, entry.count, entry.example, entry.nearest);
        if (outcome.least_need < least_need) {
            least_need = outcome.least_need;
            least_need_at = outcome.least_need_at;
        }
        for (Point& point : outcome.points) waiting[point.model].push_back(std::move(point));
    }
    outcomes.clear();

    const auto case_of = [&](const Point& point) {
        StepCase step = cases[point.model];
        step.layout = layouts[point.layout];
        step.schedule =
            schedules_of(space, base.schedule, step.layout, out.global_batch_size)[point.schedule];
        return step;
    };

    // The closed form, most promising first, but for what the bound excludes.
    std::vector<Priced> run;
    const std::size_t keep = static_cast<std::size_t>(std::max(space.num_best, 1));
    // Without a number asked for: enough for one model to be sure of, few for each of many.
    const std::size_t most =
        space.max_coarse > 0
            ? static_cast<std::size_t>(space.max_coarse)
            : std::max<std::size_t>(8, 64 / std::max<std::size_t>(tried.size(), 1));
    std::map<int, std::vector<std::size_t>> good_layouts;  ///< by number of experts
    std::map<int, Correction> corrections;                 ///< likewise
    for (std::size_t m = 0; m < waiting.size(); ++m) {
        const auto share = [&](double done) {
            return 0.3 +
                   0.5 * (static_cast<double>(m) + done) / static_cast<double>(waiting.size());
        };
        std::vector<Point>& points = waiting[m];
        std::stable_sort(points.begin(), points.end(),
                         [](const Point& a, const Point& b) { return a.bound < b.bound; });
        const MoeFeedForward* moe = first_moe(cases[m].model);
        Correction& correction = corrections[moe ? moe->num_experts : 0];
        std::vector<double> times;  // ascending: those that ran
        const auto excluded = [&](const Point& point) {
            return times.size() >= keep && point.bound.value >= times[keep - 1];
        };
        const auto price = [&](const std::vector<std::size_t>& at) {
            std::vector<Priced> round;
            for (const std::size_t i : at) {
                points[i].priced = true;
                round.push_back({points[i], {}});
            }
            parallel_for(round.size(), options.num_threads, [&](std::size_t i) {
                round[i].report = runners.coarse(case_of(round[i].point));
            });
            for (Priced& priced : round) {
                const double time = priced.report.step_time.value;
                if (priced.point.scouted.value < 1e300)
                    correction.learn(layouts[priced.point.layout],
                                     time / priced.point.scouted.value);
                times.push_back(time);
                run.push_back(std::move(priced));
            }
            std::sort(times.begin(), times.end());
        };
        if (points.size() > most) {
            const auto* synthetic = std::get_if<SyntheticRouting>(&cases[m].routing);
            const bool balanced = synthetic && synthetic->kind == "balanced";
            Scouting scouting(
                points, layouts, correction,
                [&](Point& point) { point.scouted = scout_step(case_of(point), runners.coarse); },
                balanced ? std::function<void(const std::vector<std::size_t>&)>{} : price,
                options.num_threads,
                [&](double done) {
                    tell(share(0.6 * done), "looking around: " + out.models[tried[m]].model.name);
                });
            auto& known = good_layouts[moe ? moe->num_experts : 0];
            known = scouting.run(known);
            out.funnel.scouted += scouting.num_seen();
        }
        // What runs teaches what to run next; those not looked at come last, by their bound.
        std::vector<std::size_t> open;
        for (std::size_t i = 0; i < points.size(); ++i)
            if (!points[i].priced) open.push_back(i);
        std::size_t ran = 0;
        while (!open.empty() && ran < most) {
            std::stable_sort(open.begin(), open.end(), [&](std::size_t a, std::size_t b) {
                const double x = points[a].scouted.value * correction.of(layouts[points[a].layout]);
                const double y = points[b].scouted.value * correction.of(layouts[points[b].layout]);
                return x < y;
            });
            // A round of fixed size: what is run must not depend on the number of threads.
            const std::size_t room =
                std::min({kRound, most - ran, std::max<std::size_t>(4, most / 4)});
            std::vector<std::size_t> round, later;
            for (const std::size_t i : open) {
                if (excluded(points[i])) continue;
                (round.size() < room ? round : later).push_back(i);
            }
            price(round);
            ran += round.size();
            open = std::move(later);
            tell(share(0.6 +
                       0.4 * std::min(1.0, static_cast<double>(ran) / static_cast<double>(most))),
                 "closed form: " + out.models[tried[m]].model.name);
        }
        for (const std::size_t i : open)
            if (!excluded(points[i])) ++out.funnel.below_bound;
    }
    out.funnel.coarse = static_cast<std::int64_t>(run.size());

    // Loss and objective of each model.
    const QualityCase own = quality_case(base.model, out.training_tokens);
    std::vector<std::optional<QualityEstimate>> quality(tried.size());
    std::vector<double> tokens(tried.size(), out.training_tokens);
    for (std::size_t m = 0; m < tried.size(); ++m) {
        if (law == nullptr) continue;
        const QualityCase model = quality_case(cases[m].model, out.training_tokens);
        quality[m] = law->estimate(model, own);
        if (space.objective != Objective::throughput)
            tokens[m] = tokens_to_base_loss(*law, model, own).central;
    }
    const double tokens_per_step =
        static_cast<double>(out.global_batch_size) * base.schedule.sequence_length;
    const auto score = [&](std::size_t m, Seconds step_time) {
        const double per_token = step_time.value / tokens_per_step;
        switch (space.objective) {
            case Objective::throughput:
                return per_token;
            case Objective::time_to_loss:
                return per_token * tokens[m];
            case Objective::cost:
                return per_token * tokens[m] * world;
        }
        return per_token;
    };

    std::vector<double> coarse_scores;
    for (const Priced& priced : run)
        coarse_scores.push_back(score(priced.point.model, priced.report.step_time));
    const std::vector<std::size_t> chosen = choose(run, coarse_scores, tried.size(), keep);
    for (std::size_t i = 0; i < chosen.size(); ++i) {
        const Point& point = run[chosen[i]].point;
        StepReport& coarse = run[chosen[i]].report;
        Candidate candidate;
        candidate.step = case_of(point);
        candidate.quality = quality[point.model];
        candidate.model = tried[point.model];
        candidate.coarse_time = coarse.step_time;
        candidate.fullest_rank = point.fullest;
        if (runners.fine) {
            candidate.predicted = runners.fine(candidate.step);
            ++out.funnel.fine;
            tell(0.8 + 0.2 * static_cast<double>(i + 1) / static_cast<double>(chosen.size()),
                 "flow level");
        } else {
            candidate.predicted = std::move(coarse);
        }
        for (const Bytes peak : candidate.predicted.peak_memory)
            candidate.fullest_rank = std::max(candidate.fullest_rank, peak);
        candidate.score = score(point.model, candidate.predicted.step_time);
        out.best.push_back(std::move(candidate));
    }
    std::stable_sort(out.best.begin(), out.best.end(),
                     [](const Candidate& a, const Candidate& b) { return a.score < b.score; });

    // A loss range is at least as good as another if both its ends are.
    std::vector<std::vector<double>> points;
    for (const Candidate& candidate : out.best) {
        std::array<double, 2> loss = {0, 0};
        if (candidate.quality)
            loss = candidate.quality->difference.value_or(
                std::array{candidate.quality->low, candidate.quality->high});
        points.push_back(
            {candidate.predicted.step_time.value, loss[0], loss[1], candidate.fullest_rank.value});
    }
    out.front = not_dominated(points);

    for (auto& [rule, entry] : refused) out.refused.push_back(std::move(entry));
    std::stable_sort(out.refused.begin(), out.refused.end(),
                     [](const Refused& a, const Refused& b) { return a.count > b.count; });

    out.assumptions.push_back("global batch " + std::to_string(out.global_batch_size) +
                              " sequences of " + std::to_string(base.schedule.sequence_length) +
                              " tokens, the same for all candidates");
    if (law)
        out.assumptions.push_back("loss after " + exact_text(out.training_tokens) + " tokens by " +
                                  std::string(law->name) + " (" + std::string(law->source) + ")");
    if (out.funnel.below_bound > 0)
        out.assumptions.push_back(
            std::to_string(out.funnel.below_bound) +
            " combinations were not run although their bound does not exclude them: at most " +
            std::to_string(most) + " closed-form runs a model, most promising first");
    if (out.best.empty()) {
        if (least_need < std::numeric_limits<double>::infinity())
            out.nearest = "the leanest combination needs " + to_text(Bytes{least_need}) + " of " +
                          to_text(out.memory_limit) + " a GPU (" + least_need_at + ")";
        const std::string more =
            nearest_fit(space, base, out.models, out.global_batch_size, out.memory_limit);
        if (!more.empty()) out.nearest += (out.nearest.empty() ? "" : "; ") + more;
    }
    tell(1, "done");
    return out;
}

}  // namespace moeplan
