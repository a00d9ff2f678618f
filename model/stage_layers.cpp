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

int num_chunks(const ParallelLayout& layout, const StepSchedule& schedule) {
    if (schedule.pipeline == Pipeline::dual_pipe && layout.pipeline_parallel_size > 1) return 2;
    return std::max(1, schedule.virtual_pipeline_size);
}

bool takes_turns(const ParallelLayout& layout, const StepSchedule& schedule) {
    const bool pipeline = layout.pipeline_parallel_size > 1;
    if (pipeline && schedule.pipeline == Pipeline::dual_pipe) return true;
    const bool one_each = !pipeline || schedule.pipeline == Pipeline::one_f_one_b ||
                          schedule.pipeline == Pipeline::interleaved;
    return schedule.overlap.experts && schedule.overlap.communication_sms > 0 &&
           layout.expert_parallel_size > 1 && one_each &&
           schedule.num_micro_batches > 1;
}

int virtual_stage(Pipeline pipeline, int num_stages, int stage, int chunk) {
    if (num_stages > 1 && chunk == 1) {
        if (pipeline == Pipeline::zero_bubble_v) return 2 * num_stages - 1 - stage;
        if (pipeline == Pipeline::dual_pipe) return num_stages - 1 - stage;
    }
    return chunk * num_stages + stage;
}

std::vector<std::vector<LayerChunk>> stage_chunks(int num_layers, const ParallelLayout& layout,
                                                  const StepSchedule& schedule) {
    const auto pp = static_cast<std::size_t>(std::max(1, layout.pipeline_parallel_size));
    const std::vector<int> counts = virtual_stage_layers(num_layers, layout, schedule);
    std::vector<LayerChunk> in_order;  // [virtual stages]
    int first = 0;
    for (const int wanted : counts) {
        const int count = std::clamp(wanted, 0, num_layers - first);
        in_order.push_back({first, count});
        first += count;
    }
    std::vector<std::vector<LayerChunk>> out(pp);
    for (std::size_t stage = 0; stage < pp; ++stage)
        for (int chunk = 0; chunk < num_chunks(layout, schedule); ++chunk) {
            const auto v = static_cast<std::size_t>(virtual_stage(
                schedule.pipeline, static_cast<int>(pp), static_cast<int>(stage), chunk));
            // a list of another length is for check_layout to refuse
            if (v < in_order.size()) out[stage].push_back(in_order[v]);
        }
    return out;
}

}  // namespace moeplan
