#include "simulator/graph/step_loads.hpp"

#include <algorithm>
#include <utility>

#include "simulator/layer_shapes.hpp"
#include "simulator/link_graph.hpp"

namespace moeplan {
namespace {

/// NVLink domains of the first expert group's places; those of the others lie alike.
std::vector<int> place_domains(const StepCase& step) {
    std::vector<int> first;
    for (int place = 0; place < step.layout.expert_parallel_size; ++place)
        first.push_back(place * step.layout.expert_tensor_parallel_size);
    const auto* imported = std::get_if<std::shared_ptr<const LinkGraph>>(&step.cluster.topology);
    const int size = imported ? 0 : gpus_per_domain(step.cluster);
    return domains_in_order(first, [&](int rank) {
        return imported ? (*imported)->domain[static_cast<std::size_t>(rank)] : rank / size;
    });
}

}  // namespace

StepLoads::StepLoads(const StepCase& step, StepGraph& graph)
    : step_(step),
      routing_(step.model, step.routing,
               {graph.width, LayerShapes(step).routed_tokens, step.schedule.sequence_length},
               step.seed) {
    graph.place_domain = place_domains(step);
    const ParallelLayout& layout = step.layout;
    const int micro_batches = micro_batches_drawn();
    // even routing: one set of loads for layers of one shape
    std::vector<std::pair<const MoeFeedForward*, std::int32_t>> shared;
    for (const LayerSpec& layer : step.model.layers) {
        const auto* moe = std::get_if<MoeFeedForward>(&layer.feed_forward);
        moe_layer_.push_back(moe ? static_cast<int>(index_.size()) : -1);
        if (!moe) continue;
        const int moe_layer = moe_layer_.back();
        auto& table = index_.emplace_back();
        const LayerPlacement* placement = step.placement ? &step.placement->of(moe_layer) : nullptr;
        const bool alike = routing_.same_everywhere() && !placement;
        const auto same = std::find_if(shared.begin(), shared.end(),
                                       [&](const auto& one) { return *one.first == *moe; });
        if (alike && same != shared.end()) {
            table.push_back(same->second);
            graph.load_imbalance.push_back(
                load_imbalance(graph.loads[static_cast<std::size_t>(same->second)]));
            continue;
        }
        double imbalance = 0;
        for (int m = 0; m < micro_batches; ++m) {
            graph.loads.push_back(lane_loads(
                routing_.placed_loads(
                    moe_layer, m, layout.expert_parallel_size,
                    layout.expert_parallel_size * layout.expert_tensor_parallel_size,
                    graph.place_domain, placement),
                layout, *moe, LayerShapes(step).routed_tokens * moe->num_moe_heads, graph.width));
            table.push_back(static_cast<std::int32_t>(graph.loads.size() - 1));
            imbalance += load_imbalance(graph.loads.back()) / micro_batches;
        }
        if (alike) shared.emplace_back(moe, table.front());
        graph.load_imbalance.push_back(imbalance);
    }
    graph.assumptions = routing_.assumptions();
}

int StepLoads::micro_batches_drawn() const {
    if (routing_.same_everywhere()) return 1;
    const int all = step_.schedule.num_micro_batches;
    return step_.distinct_micro_batches > 0 ? std::min(all, step_.distinct_micro_batches) : all;
}

std::int32_t StepLoads::of(int moe_layer, int micro_batch) const {
    const auto& table = index_[static_cast<std::size_t>(moe_layer)];
    return table[static_cast<std::size_t>(micro_batch) % table.size()];
}

int StepLoads::distinct_micro_batches() const {
    return index_.empty() ? 0 : static_cast<int>(index_.front().size());
}

}  // namespace moeplan
