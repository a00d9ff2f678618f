/// A layout as a file has it: {"tp": 2, "ep": 4}; a size left out is 1.
#include <nlohmann/json.hpp>

#include "model/parallel_layout.hpp"

namespace moeplan {

ParallelLayout layout_from_json(const JsonReader& json) {
    constexpr int kMost = 1 << 20;
    json.refuse_unknown({"tp", "cp", "pp", "dp", "ep", "etp"});
    return {.tensor_parallel_size = json.count_or("tp", 1, 1, kMost),
            .context_parallel_size = json.count_or("cp", 1, 1, kMost),
            .pipeline_parallel_size = json.count_or("pp", 1, 1, kMost),
            .data_parallel_size = json.count_or("dp", 1, 1, kMost),
            .expert_parallel_size = json.count_or("ep", 1, 1, kMost),
            .expert_tensor_parallel_size = json.count_or("etp", 1, 1, kMost)};
}

Json to_json(const ParallelLayout& layout) {
    Json out = Json::object();
    out["tp"] = layout.tensor_parallel_size;
    out["cp"] = layout.context_parallel_size;
    out["pp"] = layout.pipeline_parallel_size;
    out["dp"] = layout.data_parallel_size;
    out["ep"] = layout.expert_parallel_size;
    out["etp"] = layout.expert_tensor_parallel_size;
    return out;
}

}  // namespace moeplan
