#include "planner/search/sift.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "core/quantity_text.hpp"

namespace moeplan {
namespace {

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

}  // namespace

void count_refused(std::map<std::string, Refused>& refused, const std::string& rule,
                   std::int64_t count, const std::string& example,
                   const std::vector<std::string>& nearest) {
    Refused& entry = refused[rule];
    if (entry.count == 0) {
        entry.rule = rule;
        entry.example = example;
        entry.nearest = nearest;
    }
    entry.count += count;
}

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

}  // namespace moeplan
