#include "planner/search/shapes.hpp"

#include <optional>

namespace moeplan {

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

bool fits_trace(const ModelSpec& model, const TraceReader& trace) {
    const MoeFeedForward* moe = first_moe(model);
    const TraceHeader& header = trace.header();
    return moe && header.num_experts > 0 && moe->num_experts % header.num_experts == 0 &&
           header.num_moe_heads == moe->num_moe_heads;
}

}  // namespace moeplan
