#pragma once
/// Quick looks at points, to learn which are worth a closer one.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "planner/search/points.hpp"

namespace moeplan {

/// How much longer than under balanced routing a step takes, learnt from those that ran: by the
/// ranks that share the experts, and where known by the pipeline's depth, since its stages wait for
/// the slowest.
class Correction {
  public:
    double of(const ParallelLayout&) const;
    void learn(const ParallelLayout&, double ratio);
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

/// Points run between two looks at the bound: a fixed number, so that what is run does not depend
/// on the number of threads.
inline constexpr std::size_t kRound = 16;

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
    /// @param done       is told the share that is done
    Scouting(std::vector<Point>& points, const std::vector<ParallelLayout>& layouts,
             const Correction&, std::function<void(Point&)> scout,
             std::function<void(const std::vector<std::size_t>&)> calibrate, int num_threads,
             std::function<void(double)> done);

    /// @param known  good layouts of a model with as many experts; empty: there is none
    /// @return       good layouts of this one
    std::vector<std::size_t> run(const std::vector<std::size_t>& known);

    std::int64_t num_seen() const { return static_cast<std::int64_t>(seen_.size()); }

  private:
    bool unseen(std::size_t i) const { return points_[i].scouted.value > 1e300; }
    double estimate(std::size_t i) const;
    double best_estimate() const;
    void sort();
    void calibrate_unknown();
    void look(const std::vector<std::size_t>& at, double from, double to);
    std::vector<std::size_t> first_looks(const std::vector<std::size_t>& known) const;
    std::vector<std::size_t> neighbours() const;
    std::vector<std::size_t> best_layouts() const;

    std::vector<Point>& points_;
    const std::vector<ParallelLayout>& layouts_;
    const Correction& correction_;
    std::function<void(Point&)> scout_;
    std::function<void(const std::vector<std::size_t>&)> calibrate_;
    int num_threads_;
    std::function<void(double)> done_;
    std::map<std::size_t, std::size_t> first_;  // layout → its point of the least bound
    std::vector<std::size_t> seen_;             // points, best first
};

}  // namespace moeplan
