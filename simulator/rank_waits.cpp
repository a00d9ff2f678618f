#include "simulator/rank_waits.hpp"

#include <algorithm>
#include <functional>

#include "simulator/overlap.hpp"

namespace moeplan {

double wait_for_slowest(const Profile& profile, std::vector<double> undisturbed, double priced,
                        int per_column, int num_ranks) {
    std::sort(undisturbed.begin(), undisturbed.end(), std::greater<>());
    const std::size_t columns =
        std::min(undisturbed.size(), static_cast<std::size_t>(std::max(1, num_ranks / per_column)));
    double last = 0;
    for (std::size_t k = 0; k < columns; ++k)
        last = std::max(last, undisturbed[k] * slowest_of(profile, Seconds{undisturbed[k]},
                                                          static_cast<int>(k + 1) * per_column));
    return std::max(0.0, last - priced);
}

double undisturbed_share(const Profile& profile, std::span<const double> seconds) {
    if (!profile.stretches) return 1;
    double all = 0, undisturbed = 0;
    for (const double kernel : seconds) {
        all += kernel;
        undisturbed += kernel / typical_of(profile, Seconds{kernel});
    }
    return all > 0 ? undisturbed / all : 1;
}

std::vector<double> rank_waits(const StepGraph& graph, const StepCase& step,
                               const JobPrices& prices) {
    if (!is_own_trainer(step) || !runs_on_cpu(step) || !step.profile->stretches) return {};
    const auto width = static_cast<std::size_t>(graph.width);
    std::vector<double> waits(graph.ops.size(), 0);
    struct Since {  // the ranks of a lane last met
        std::vector<double> undisturbed;
        double priced = 0;
    };
    const Since met{std::vector<double>(width, 0), 0};
    std::vector<Since> lanes(static_cast<std::size_t>(graph.num_lanes), met);
    std::vector<int> group_size(graph.exchanges.size(), 0);
    // Nothing overlaps on a CPU: the ops of a lane follow one another as they stand. In a run what
    // comes after the last exchange of a step (the update) goes on into the next step, up to its
    // first one.
    for (std::size_t op_of_two = 0; op_of_two < 2 * graph.ops.size(); ++op_of_two) {
        const std::size_t i = op_of_two % graph.ops.size();
        const Op& op = graph.ops[i];
        Since& since = lanes[op.lane];
        if (!op.exchange) {
            const JobPrice& price = prices.jobs[op.demand];
            for (std::size_t r = 0; r < width; ++r)
                since.undisturbed[r] +=
                    price.undisturbed *
                    (price.by_rank >= 0 ? prices.ranks[static_cast<std::size_t>(price.by_rank)][r]
                                        : price.device);
            since.priced += price.device;
            continue;
        }
        int& group = group_size[op.demand];
        if (group == 0)
            group = static_cast<int>(
                exchange_groups(graph, step.layout, graph.exchanges[op.demand]).front().size());
        if (group < 2) continue;
        waits[i] = wait_for_slowest(*step.profile, since.undisturbed, since.priced,
                                    std::max(1, group / graph.width), group);
        since = met;
    }
    return waits;
}

}  // namespace moeplan
