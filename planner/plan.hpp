#pragma once
/// Which layouts are worth running: a funnel from every combination to a few candidates.
///
/// legality → memory → lower bound for all → `coarse` for what the bound leaves → `fine` for the
/// best few. The runners are handed in: the planner does not know which network model answers.

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/progress.hpp"
#include "planner/placement/placement.hpp"
#include "planner/quality/quality_law.hpp"
#include "planner/resize.hpp"
#include "planner/search_space.hpp"
#include "simulator/step.hpp"

namespace moeplan {

struct Candidate {
    StepCase step;
    StepReport predicted;  ///< at the plan's last fidelity, the same for all
    std::optional<QualityEstimate> quality;
    std::size_t model = 0;  ///< index into Plan::models
    Seconds coarse_time;    ///< what the closed form said
    Bytes fullest_rank;     ///< memory of the fullest rank
    double score = 0;       ///< what the objective orders by; less is better
};

/// A combination may break several rules and is then counted under each.
struct Refused {
    std::string rule;
    std::int64_t count = 0;
    std::string example;               ///< what the rule said of the first
    std::vector<std::string> nearest;  ///< what would have done there
};

/// Combinations left after each stage.
struct Funnel {
    std::int64_t combinations = 0, legal = 0, fit = 0, scouted = 0, coarse = 0, fine = 0;
    std::int64_t below_bound = 0;  ///< not run, although their bound does not exclude them
};

struct Plan {
    std::vector<Candidate> best;     ///< best first, by the objective
    std::vector<std::size_t> front;  ///< not dominated in step time, loss range and memory
    std::vector<Refused> refused;    ///< most frequent first
    Funnel funnel;
    std::vector<ResizedModel> models;  ///< every shape that was tried
    Objective objective = Objective::throughput;
    int global_batch_size = 0;
    double training_tokens = 0;
    std::string quality_law;
    Bytes memory_limit;
    std::vector<std::string> assumptions;
    std::optional<PlacementReport>
        placement;        ///< with a trace that fits: what placing experts gains
    std::string nearest;  ///< if nothing fits: the nearest that would
};

struct Runners {
    std::function<Seconds(const StepCase&)>
        bound;                ///< empty: no bound, everything goes to `coarse`
    StepRunner coarse, fine;  ///< `fine` empty: the plan rests on `coarse`
};

struct SearchOptions {
    int num_threads = 0;  ///< of bound and coarse; 0: as many as there are
    Progress progress;
};

/// The same bytes for any number of threads.
/// @param base  model, cluster, profile, routing and schedule to vary; its layout is not used
/// @throws InputError  for an unknown law or an impossible global batch
Plan plan(const SearchSpace&, const StepCase& base, const Runners&, const SearchOptions& = {});

/// Indexes of the points that no other dominates, ascending. One point dominates another if it is
/// at least as good in every coordinate and better in one; less is better.
/// @param points  [num_points][num_coordinates]
std::vector<std::size_t> not_dominated(const std::vector<std::vector<double>>& points);

/// What placing the trace's experts by popularity would gain for the best candidate that the trace
/// fits and that spreads experts over ranks; empty if there is none.
std::optional<PlacementReport> placement_for(const Plan&, const TraceReader&, int spare_slots);

/// Usable memory of one GPU.
Bytes memory_limit(const ClusterSpec&);

/// @name JSON (schemas/plan.schema.json)
/// @{
Json to_json(const Plan&, const StepCase& base);
/// What `validate` and `export` need of a plan file.
struct StoredPlan {
    std::string file;
    std::vector<StepCase> candidates;  ///< without profile; routing synthetic
    std::vector<StepReport> predicted;
    std::vector<std::size_t> front;
    std::string profile;  ///< shipped name, if it was one
    std::string digest;   ///< of the file
};
StoredPlan plan_from_json(const JsonReader&);  ///< @throws InputError
/// @}

}  // namespace moeplan
