#include "model/stage_layers.hpp"

#include <algorithm>

namespace moeplan {

std::vector<int> virtual_stage_layers(int num_layers, const ParallelLayout& layout,
                                      const StepSchedule& schedule) {
    if (!schedule.stage_layers.empty()) return schedule.stage_layers;
    const int stages = std::max(1, layout.pipeline_parallel_size * schedule.virtual_pipeline_size);
    std::vector<int> out(static_cast<std::size_t>(stages), num_layers / stages);
    const int rest = num_layers % stages;
    // Around the middle: 30 layers over 4 stages are 7, 8, 8, 7.
    const int first = (stages - rest) / 2;
    for (int i = 0; i < rest; ++i) ++out[static_cast<std::size_t>(first + i)];
    return out;
}

std::vector<std::vector<LayerChunk>> stage_chunks(int num_layers, const ParallelLayout& layout,
                                                  const StepSchedule& schedule) {
    const auto pp = static_cast<std::size_t>(std::max(1, layout.pipeline_parallel_size));
    const std::vector<int> counts = virtual_stage_layers(num_layers, layout, schedule);
    std::vector<std::vector<LayerChunk>> out(pp);
    int first = 0;
    for (std::size_t v = 0; v < counts.size(); ++v) {
        const int count = std::clamp(counts[v], 0, num_layers - first);
        out[v % pp].push_back({first, count});
        first += count;
    }
    return out;
}

}  // namespace moeplan
