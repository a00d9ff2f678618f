#include <nlohmann/json.hpp>

#include "model/train.hpp"

namespace moeplan {

Json to_json(const StepRecord& r) {
    Json out;
    out["step"] = r.step;
    out["loss"] = r.loss;
    out["balance_loss"] = r.balance_loss;
    out["z_loss"] = r.z_loss;
    out["gradient_norm"] = r.gradient_norm;
    out["learning_rate"] = r.learning_rate;
    out["tokens"] = r.tokens;
    out["tokens_per_second"] = r.tokens_per_second;
    out["step_time_s"] = r.times.total.value;
    out["times"] = {
        {"forward_s", r.times.forward.value},     {"backward_s", r.times.backward.value},
        {"dispatch_s", r.times.dispatch.value},   {"combine_s", r.times.combine.value},
        {"tensor_s", r.times.tensor.value},       {"pipeline_s", r.times.pipeline.value},
        {"gradients_s", r.times.gradients.value}, {"optimizer_s", r.times.optimizer.value},
        {"other_s", r.times.other.value}};
    out["gate_sum"] = r.gate_sum;
    out["expert_imbalance"] = r.expert_imbalance;
    out["rank_imbalance"] = r.rank_imbalance;
    out["dropped_choices"] = r.dropped_choices;
    out["dropped_tokens"] = r.dropped_tokens;
    if (r.machine_pace) out["machine_pace_s"] = r.machine_pace->value;
    if (r.held_out_loss) out["held_out_loss"] = *r.held_out_loss;
    return out;
}

}  // namespace moeplan
