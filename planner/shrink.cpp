#include "planner/shrink.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace moeplan {
namespace {

int to_multiple(double value, int multiple) {
    return std::max(1, static_cast<int>(std::lround(value / multiple))) * multiple;
}

void say(std::vector<std::string>& list, const std::string& what, long long from, long long to) {
    if (from != to) list.push_back(what + " " + std::to_string(from) + " → " + std::to_string(to));
}

/// What the plan splits, on `ranks`: experts first, then layers, then tensors, a factor each while
/// there are ranks; the rest is data parallel. Layers and heads of the shrunk model must divide.
ParallelLayout small_layout(const ParallelLayout& planned, int ranks, int experts, int layers,
                            int heads) {
    ParallelLayout out;
    int left = ranks;
    const auto least_factor = [](int value) {
        for (int f = 2; f * f <= value; ++f)
            if (value % f == 0) return f;
        return value;
    };
    const auto take = [&](bool wanted, int most, int& size) {
        const int factor = least_factor(left);
        if (!wanted || left == 1 || most % factor != 0) return;
        size = factor;
        left /= factor;
    };
    int for_experts = 1;
    take(planned.expert_parallel_size > 1, experts, for_experts);
    take(planned.pipeline_parallel_size > 1, layers, out.pipeline_parallel_size);
    take(planned.tensor_parallel_size > 1, heads, out.tensor_parallel_size);
    out.data_parallel_size = for_experts * left;
    const int in_stage = out.tensor_parallel_size * out.data_parallel_size;
    if (planned.expert_parallel_size > 1) out.expert_parallel_size = std::gcd(experts, in_stage);
    return out;
}

/// Attention of the same kind as near as the trainer has it, in `hidden_size`.
/// @param tp  ranks over which key-value heads are split
GroupedQueryAttention narrow(const Attention& attention, int hidden_size, int tp) {
    constexpr int kHeadSize = 32;
    GroupedQueryAttention out;
    out.head_size = std::min(kHeadSize, hidden_size);
    out.num_attention_heads = std::max(1, hidden_size / out.head_size);
    out.num_kv_heads = out.num_attention_heads;
    if (const auto* grouped = std::get_if<GroupedQueryAttention>(&attention)) {
        const int share =
            std::max(1, grouped->num_attention_heads / std::max(1, grouped->num_kv_heads));
        // The ratio of query to key heads, as far as the few heads that are left can have it.
        out.num_kv_heads = out.num_attention_heads / std::gcd(out.num_attention_heads, share);
    }
    if (out.num_kv_heads % tp != 0) out.num_kv_heads = out.num_attention_heads;
    return out;
}

}  // namespace

Shrunk shrink(const StepCase& planned, const Here& here) {
    Shrunk out;
    StepCase& step = out.step;
    step = planned;
    step.cluster = here.cluster;
    step.profile = here.profile;
    step.disturbances = {};
    const int ranks = std::max(1, here.num_ranks);

    // Width: a multiple of the MoE heads and of the attention's head size.
    const MoeFeedForward* moe = first_moe(planned.model);
    const int heads = moe ? moe->num_moe_heads : 1;
    const int d0 = planned.model.hidden_size;
    int d = std::min(d0, here.largest_hidden_size);
    const int grain = std::lcm(heads, 32);
    d = std::min(std::max(grain, d / grain * grain), std::max(d0, grain));
    const double narrower = static_cast<double>(d) / d0;
    step.model.hidden_size = d;
    say(out.changes, "hidden_size", d0, d);

    // Layers: the kinds in proportion, at least one MoE layer if there was one.
    const int moe_before = num_moe_layers(planned.model);
    const int before = static_cast<int>(planned.model.layers.size());
    const int after = std::min(before, here.most_layers);
    std::vector<LayerSpec> layers;
    int moe_after =
        before > 0 ? static_cast<int>(std::lround(static_cast<double>(after) * moe_before / before))
                   : 0;
    if (moe_before > 0) moe_after = std::max(moe_after, 1);
    if (moe_before < before && after > 1) moe_after = std::min(moe_after, after - 1);
    for (int kind = 0; kind < 2; ++kind) {  // dense first, as models have them
        int wanted = kind == 0 ? after - moe_after : moe_after;
        for (const LayerSpec& layer : planned.model.layers) {
            if (wanted == 0) break;
            if (std::holds_alternative<MoeFeedForward>(layer.feed_forward) != (kind == 1)) continue;
            layers.push_back(layer);
            --wanted;
        }
    }
    say(out.changes, "layers", before, static_cast<long long>(layers.size()));

    const int ep0 = planned.layout.expert_parallel_size,
              experts_left =
                  moe ? std::min(moe->num_experts, std::max(here.most_experts, moe->top_k)) : 1;
    step.layout = small_layout(planned.layout, ranks, experts_left, static_cast<int>(layers.size()),
                               std::max(1, d / std::min(32, d)));
    const int ep = step.layout.expert_parallel_size, tp = step.layout.tensor_parallel_size,
              pp = step.layout.pipeline_parallel_size;
    int experts_before = 0, experts_after = 0, width_before = 0, width_after = 0;
    for (LayerSpec& layer : layers) {
        layer.attention = narrow(layer.attention, d, tp);
        layer.window.reset();
        if (auto* dense = std::get_if<DenseFeedForward>(&layer.feed_forward)) {
            dense->dense_hidden_size = to_multiple(dense->dense_hidden_size * narrower, 8);
            continue;
        }
        auto& experts = std::get<MoeFeedForward>(layer.feed_forward);
        experts_before = experts.num_experts;
        width_before = experts.expert_hidden_size;
        experts.expert_hidden_size = to_multiple(experts.expert_hidden_size * narrower, 8);
        if (experts.shared_expert_hidden_size > 0)
            experts.shared_expert_hidden_size =
                to_multiple(experts.shared_expert_hidden_size * narrower, 8);
        if (experts.num_experts > here.most_experts) {
            const double fewer = static_cast<double>(here.most_experts) / experts.num_experts;
            experts.num_experts = std::max(here.most_experts, experts.top_k);
            if (experts.num_groups > 0) experts.num_groups = experts.top_k_groups = 0;
            if (experts.pool) {
                experts.pool->largest =
                    std::clamp(static_cast<int>(std::lround(experts.pool->largest * fewer)),
                               experts.top_k, experts.num_experts);
                experts.pool->smallest =
                    std::clamp(static_cast<int>(std::lround(experts.pool->smallest * fewer)),
                               experts.top_k, experts.pool->largest);
            }
        }
        experts_after = experts.num_experts;
        width_after = experts.expert_hidden_size;
    }
    step.model.layers = std::move(layers);
    say(out.changes, "num_experts", experts_before, experts_after);
    say(out.changes, "expert_hidden_size", width_before, width_after);
    step.model.num_mtp_layers = 0;
    say(out.changes, "num_mtp_layers", planned.model.num_mtp_layers, 0);
    step.model.vocab_size = std::min(planned.model.vocab_size, here.largest_vocabulary) / tp * tp;
    say(out.changes, "vocab_size", planned.model.vocab_size, step.model.vocab_size);
    step.model.name = planned.model.name + " (shrunk)";

    say(out.changes, "GPUs → ranks", world_size(planned.layout), ranks);
    say(out.changes, "ep", ep0, ep);
    say(out.changes, "dp", planned.layout.data_parallel_size, step.layout.data_parallel_size);
    say(out.changes, "tp", planned.layout.tensor_parallel_size, tp);
    say(out.changes, "pp", planned.layout.pipeline_parallel_size, pp);

    StepSchedule& schedule = step.schedule;
    const StepSchedule& planned_schedule = planned.schedule;
    schedule.sequence_length = std::min(planned_schedule.sequence_length, here.longest_sequence);
    schedule.num_micro_batches =
        std::min(planned_schedule.num_micro_batches, here.most_micro_batches);
    if (pp > 1) schedule.num_micro_batches = std::max(schedule.num_micro_batches, 2 * pp);
    schedule.virtual_pipeline_size = 1;
    schedule.precision = here.precision;
    schedule.main_gradients = NumberFormat::f32;
    schedule.sequence_parallel = false;
    schedule.pipeline = Pipeline::one_f_one_b;
    schedule.stage_layers.clear();
    // Our trainer shards the optimizer over data parallel ranks, nothing more (docs/training.md).
    const bool shards = planned_schedule.sharding != Sharding::none;
    schedule.sharding =
        shards && step.layout.data_parallel_size > 1 ? Sharding::zero1 : Sharding::none;
    schedule.recompute = {};
    schedule.dispatcher = Dispatcher::all_to_all;
    schedule.overlap = {.gradients = false, .parameters = false, .tensor = false, .experts = false};
    schedule.software = {};
    schedule.software.framework = "moeplan";  // what runs here is our own trainer
    const auto changed = [&](const char* what, std::string_view from, std::string_view to,
                             const std::string& why) {
        if (from != to)
            out.changes.push_back(std::string(what) + " " + std::string(from) + " → " +
                                  std::string(to) + (why.empty() ? "" : ": " + why));
    };
    const SoftwareState& software = planned_schedule.software;
    changed("framework", software.framework.empty() ? "unnamed" : software.framework,
            schedule.software.framework, "what runs here is our own trainer, by its own rules");
    changed("zero", name_of(planned_schedule.sharding), name_of(schedule.sharding),
            step.layout.data_parallel_size == 1
                ? "one data parallel rank has nothing to share"
                : "our trainer shares the optimizer's states, not gradients or weights");
    say(out.changes, "seq", planned_schedule.sequence_length, schedule.sequence_length);
    say(out.changes, "micro-batches", planned_schedule.num_micro_batches,
        schedule.num_micro_batches);
    changed("precision", name_of(planned_schedule.precision), name_of(schedule.precision), "");

    // A trace of the planned model does not fit the narrower one; balanced routing is not what an
    // untrained router does, so multinomial is assumed unless the caller knows better.
    if (!std::holds_alternative<SyntheticRouting>(planned.routing))
        step.routing = SyntheticRouting{.kind = "multinomial"};

    out.checked = {
        "kernel times of this machine's profile summed over a step (GEMM, grouped GEMM, "
        "attention, memory-bound kernels) at the shrunk shapes",
        "the order of a step: forward, backward, optimizer"};
    if (heads > 1)
        out.checked.push_back("the cost of splitting tokens into " + std::to_string(heads) +
                              " sub-tokens, head and merge layers included");
    if (ep > 1) out.checked.push_back("dispatch and combine over " + std::to_string(ep) + " ranks");
    if (step.layout.data_parallel_size > 1)
        out.checked.push_back("gradient reduction over " +
                              std::to_string(step.layout.data_parallel_size) + " ranks");
    if (schedule.sharding == Sharding::zero1)
        out.checked.push_back("optimizer states shared by " +
                              std::to_string(step.layout.data_parallel_size) + " ranks (zero1)");
    if (tp > 1) out.checked.push_back("tensor parallel sums over " + std::to_string(tp) + " ranks");
    if (pp > 1)
        out.checked.push_back("a pipeline of " + std::to_string(pp) + " stages and its bubble");

    out.unchecked = {"kernel times of " + planned.cluster.gpu.name,
                     "links and contention of " + planned.cluster.name};
    const auto lost = [&](bool had, const std::string& what) {
        if (had) out.unchecked.push_back(what);
    };
    lost(planned.layout.tensor_parallel_size > 1 && tp == 1, "tensor parallelism");
    lost(planned.layout.pipeline_parallel_size > 1 && pp == 1, "the pipeline and its bubble");
    lost(planned.layout.context_parallel_size > 1, "context parallelism");
    lost(planned.layout.expert_tensor_parallel_size > 1, "expert tensor parallelism");
    lost(shards && schedule.sharding == Sharding::none, "the sharded optimizer");
    lost(planned_schedule.sharding == Sharding::zero2, "sharded gradients (zero2)");
    lost(planned_schedule.sharding == Sharding::zero3, "sharded gradients and weights (zero3)");
    lost(planned_schedule.recompute.full || !planned_schedule.recompute.modules.empty(),
         "recompute");
    lost(ep0 > 1 && ep == 1, "dispatch and combine between ranks");
    for (const LayerSpec& layer : planned.model.layers)
        if (std::holds_alternative<LatentAttention>(layer.attention)) {
            out.unchecked.push_back("latent attention (run with plain heads)");
            break;
        }
    return out;
}

}  // namespace moeplan
