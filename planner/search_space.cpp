#include "planner/search_space.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/text.hpp"
#include "traces/fit.hpp"

namespace moeplan {
namespace {

std::vector<int> divisors(int n) {
    std::vector<int> out;
    for (int i = 1; i <= n; ++i)
        if (n % i == 0) out.push_back(i);
    return out;
}

bool agrees(const std::vector<int>& fixed, int value) {
    return fixed.empty() || std::find(fixed.begin(), fixed.end(), value) != fixed.end();
}

/// Memory head-room for the busiest expert rank where routing is not balanced: micro-batches of
/// trained routers had 1.2 … 1.6 at 8 … 16 ranks (docs/planning.md).
constexpr double kHotRank = 1.5;

/// Mean over layers of E·ρ, the figure that carries over between models of one kind; the first
/// tenth of a run predicts nothing.
double recorded_concentration(const TraceReader& trace) {
    const TraceFit fit = fit_trace(trace, trace.header().num_steps / 10);
    double out = 0;
    for (const LayerFit& layer : fit.layers)
        out += layer.over_dispersion * fit.num_experts / static_cast<double>(fit.layers.size());
    return out;
}

}  // namespace

int scale_up_domain(const ClusterSpec& cluster) {
    if (const auto* fabric = std::get_if<Fabric>(&cluster.topology))
        if (const auto* nvswitch = std::get_if<NvSwitch>(&fabric->scale_up))
            return std::max(nvswitch->gpus_per_domain, 1);
    return std::max(cluster.gpus_per_node, 1);
}

std::vector<ParallelLayout> layouts_of(int num_gpus, int domain, int num_layers, int max_experts,
                                       const FixedSizes& fixed) {
    std::vector<ParallelLayout> out;
    for (const int tp : divisors(num_gpus)) {
        if (!agrees(fixed.tp, tp) || (tp > domain && fixed.tp.empty())) continue;
        for (const int pp : divisors(num_gpus / tp)) {
            if (!agrees(fixed.pp, pp) || (pp > num_layers && fixed.pp.empty())) continue;
            for (const int cp : divisors(num_gpus / tp / pp)) {
                const int dp = num_gpus / tp / pp / cp;
                if (!agrees(fixed.cp, cp) || !agrees(fixed.dp, dp)) continue;
                const int ranks = tp * cp * dp;
                for (const int ep : divisors(ranks)) {
                    if (!agrees(fixed.ep, ep) || (ep > max_experts && fixed.ep.empty())) continue;
                    for (const int etp : divisors(ranks / ep)) {
                        if (!agrees(fixed.etp, etp) || (etp > domain && fixed.etp.empty()))
                            continue;
                        out.push_back({.tensor_parallel_size = tp,
                                       .context_parallel_size = cp,
                                       .pipeline_parallel_size = pp,
                                       .data_parallel_size = dp,
                                       .expert_parallel_size = ep,
                                       .expert_tensor_parallel_size = etp});
                    }
                }
            }
        }
    }
    return out;
}

std::vector<StepSchedule> schedules_of(const SearchSpace& space, const StepSchedule& base,
                                       const ParallelLayout& layout, int global_batch_size,
                                       std::int64_t* refused) {
    const int pp = layout.pipeline_parallel_size, dp = layout.data_parallel_size;
    std::vector<StepSchedule> out;
    const auto add = [&](StepSchedule schedule) {
        const long long whole = static_cast<long long>(schedule.micro_batch_size) * dp;
        if (whole <= 0 || global_batch_size % whole != 0) {
            if (refused) ++*refused;
            return;
        }
        schedule.num_micro_batches = static_cast<int>(global_batch_size / whole);
        out.push_back(std::move(schedule));
    };
    if (!space.schedules.empty()) {
        for (const StepSchedule& schedule : space.schedules) add(schedule);
        return out;
    }
    std::vector<Recompute> recomputes = space.recomputes;
    if (recomputes.empty())
        recomputes = {{},
                      {.full = false, .modules = {"core_attn", "layernorm", "moe_act"}},
                      {.full = true, .modules = {}}};
    for (const int micro_batch : space.micro_batch_sizes)
        for (const int vpp : space.virtual_pipeline_sizes) {
            if (vpp > 1 && pp == 1) continue;  // nothing to interleave
            // a schedule asked for by name is kept, with the chunks that it has
            const bool named = base.pipeline != Pipeline::one_f_one_b &&
                               base.pipeline != Pipeline::interleaved;
            if (named && pp > 1 && vpp != (base.pipeline == Pipeline::zero_bubble_v ? 2 : 1))
                continue;
            for (const Recompute& recompute : recomputes) {
                std::vector<Sharding> shardings = space.shardings;
                if (shardings.empty()) {
                    shardings = {Sharding::zero1};
                    if (pp == 1) shardings.push_back(Sharding::zero3);
                }
                for (const Sharding sharding : shardings) {
                    StepSchedule schedule = base;
                    schedule.micro_batch_size = micro_batch;
                    schedule.virtual_pipeline_size = vpp;
                    if (!named || pp == 1)
                        schedule.pipeline = vpp > 1   ? Pipeline::interleaved
                                            : named   ? base.pipeline
                                                      : Pipeline::one_f_one_b;
                    // Megatron asks for sequence parallelism with experts under TP; it never costs.
                    schedule.sequence_parallel =
                        base.sequence_parallel || layout.tensor_parallel_size > 1;
                    schedule.recompute = recompute;
                    schedule.sharding = sharding;
                    add(schedule);
                    // torchtitan runs ZB-V too; Megatron-LM and DeepSpeed do not
                    if (vpp == 2 && !named && schedule.software.framework == "torchtitan") {
                        schedule.pipeline = Pipeline::zero_bubble_v;
                        add(std::move(schedule));
                    }
                }
            }
        }
    return out;
}

std::vector<std::string> apply_defaults(SearchSpace& space, const StepCase& base) {
    std::vector<std::string> out;
    if (space.global_batch_size <= 0) {
        // What large MoE models are trained with: 2^22 tokens a step (OLMoE, EMO; Mixtral
        // unpublished).
        constexpr int kTokens = 1 << 22;
        const int sequence = std::max(1, base.schedule.sequence_length);
        space.global_batch_size = std::max(1, kTokens / sequence);
        out.push_back("global batch not given: " + std::to_string(space.global_batch_size) + " × " +
                      std::to_string(sequence) + " tokens taken (--global-batch)");
    }
    if (const auto* trace = std::get_if<std::shared_ptr<const TraceReader>>(&base.routing)) {
        if (space.routing_elsewhere == SyntheticRouting{})
            space.routing_elsewhere = {.kind = "document_pools",
                                       .exponent = 0,
                                       .document_concentration = recorded_concentration(**trace)};
        out.push_back(
            "models that the trace does not fit: " + space.routing_elsewhere.kind + " with E·ρ " +
            exact_text(std::round(1000 * space.routing_elsewhere.document_concentration) / 1000));
        space.hot_rank_load = kHotRank;
    } else if (std::get<SyntheticRouting>(base.routing).kind != "balanced") {
        space.hot_rank_load = kHotRank;
    }
    if (space.hot_rank_load > 1)
        out.push_back("memory: the busiest expert rank takes " + exact_text(space.hot_rank_load) +
                      " times the mean (--hot-rank-load)");
    return out;
}

template <>
const EnumNames<Objective>& enum_names<Objective>() {
    static const EnumNames<Objective> names = {{Objective::throughput, "throughput"},
                                               {Objective::time_to_loss, "time_to_loss"},
                                               {Objective::cost, "cost"},
                                               {Objective::time_to_loss, "time-to-loss"}};
    return names;
}

}  // namespace moeplan
