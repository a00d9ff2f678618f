#include "planner/search/scouting.hpp"

#include <algorithm>
#include <limits>
#include <set>

#include "planner/parallel_for.hpp"

namespace moeplan {
namespace {

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

}  // namespace

double Correction::of(const ParallelLayout& layout) const {
    if (const auto found =
            by_both_.find({layout.expert_parallel_size, layout.pipeline_parallel_size});
        found != by_both_.end())
        return found->second.mean();
    if (const auto found = by_ranks_.find(layout.expert_parallel_size); found != by_ranks_.end())
        return found->second.mean();
    return 1;
}
void Correction::learn(const ParallelLayout& layout, double ratio) {
    by_both_[{layout.expert_parallel_size, layout.pipeline_parallel_size}].add(ratio);
    by_ranks_[layout.expert_parallel_size].add(ratio);
}
Scouting::Scouting(std::vector<Point>& points, const std::vector<ParallelLayout>& layouts,
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

double Scouting::estimate(std::size_t i) const {
    return points_[i].scouted.value * correction_.of(layouts_[points_[i].layout]);
}
double Scouting::best_estimate() const {
    return seen_.empty() ? std::numeric_limits<double>::infinity() : estimate(seen_.front());
}
void Scouting::sort() {
    std::stable_sort(seen_.begin(), seen_.end(),
                     [&](std::size_t a, std::size_t b) { return estimate(a) < estimate(b); });
}

void Scouting::look(const std::vector<std::size_t>& at, double from, double to) {
    for (std::size_t begin = 0; begin < at.size(); begin += kRound) {
        const double best = best_estimate();
        std::vector<std::size_t> round;
        for (std::size_t i = begin; i < std::min(at.size(), begin + kRound); ++i)
            if (points_[at[i]].bound.value < best * kMargin) round.push_back(at[i]);
        parallel_for(round.size(), num_threads_, [&](std::size_t i) { scout_(points_[round[i]]); });
        seen_.insert(seen_.end(), round.begin(), round.end());
        sort();
        done_(from + (to - from) * static_cast<double>(begin) / static_cast<double>(at.size()));
    }
}

/// Layouts one move away from the best seen, one point each.
std::vector<std::size_t> Scouting::neighbours() const {
    std::vector<std::size_t> out;
    for (const auto& [layout, point] : first_) {
        if (!unseen(point)) continue;
        for (std::size_t i = 0; i < std::min(seen_.size(), kClimbing); ++i)
            if (are_neighbours(layouts_[layout], layouts_[points_[seen_[i]].layout])) {
                // What the bound left out stays out.
                if (points_[point].bound.value < best_estimate() * kMargin) out.push_back(point);
                break;
            }
    }
    std::stable_sort(out.begin(), out.end());
    return out;
}

std::vector<std::size_t> Scouting::best_layouts() const {
    std::vector<std::size_t> out;
    for (const std::size_t i : seen_) {
        if (out.size() >= kScoutedLayouts) break;
        if (std::find(out.begin(), out.end(), points_[i].layout) == out.end())
            out.push_back(points_[i].layout);
    }
    return out;
}

std::vector<std::size_t> Scouting::first_looks(const std::vector<std::size_t>& known) const {
    std::vector<std::size_t> begin;
    for (const std::size_t layout : known)
        if (const auto found = first_.find(layout); found != first_.end())
            begin.push_back(found->second);
    if (begin.empty())
        for (const auto& [layout, point] : first_)
            if (layouts_[layout].context_parallel_size == 1 &&
                layouts_[layout].expert_tensor_parallel_size == 1)
                begin.push_back(point);
    if (begin.empty())
        for (const auto& [layout, point] : first_) begin.push_back(point);
    // The best bounds first: what they show leaves others out.
    std::stable_sort(begin.begin(), begin.end());
    return begin;
}

/// Runs the best of each number of ranks that share the experts.
void Scouting::calibrate_unknown() {
    std::vector<std::size_t> unknown;
    std::set<int> ranks;
    for (const std::size_t i : seen_) {
        const int ep = layouts_[points_[i].layout].expert_parallel_size;
        if (!correction_.knows(ep) && ranks.insert(ep).second) unknown.push_back(i);
    }
    calibrate_(unknown);
    sort();
}

std::vector<std::size_t> Scouting::run(const std::vector<std::size_t>& known) {
    const bool guided = std::any_of(known.begin(), known.end(),
                                    [&](std::size_t layout) { return first_.contains(layout); });
    const int climbs = guided ? 1 : kClimbs;
    look(first_looks(known), 0, 0.3);
    if (calibrate_) calibrate_unknown();
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

}  // namespace moeplan
