#include "simulator/graph/data_parallel.hpp"

#include <algorithm>

#include "simulator/overlap.hpp"

namespace moeplan {

DataParallel::DataParallel(const StepCase& step, const SoftwareCosts& software,
                           const StageParameters& parameters, LaneWriter& writer)
    : step_(step), software_(software), parameters_(parameters), writer_(writer) {}

// ---------------------------------------------------------------------------------------------
// exchanges of a lane

/// Our own trainer exchanges one tensor after another where nothing overlaps.
bool DataParallel::tensor_by_tensor() const { return is_own_trainer(step_) && runs_on_cpu(step_); }

double DataParallel::gradient_bytes() const {
    const double stated = shards_parameters() && software_.sharded_gradient_bytes > 0
                              ? software_.sharded_gradient_bytes
                              : software_.gradient_bytes;
    return stated > 0 ? stated : size_of(step_.schedule.main_gradients).value;
}

double DataParallel::parameter_bytes() const {
    return step_.schedule.precision == Precision::fp32 ? 4 : 2;
}

Collective DataParallel::reduction() const {
    return shards_optimizer() ? Collective::reduce_scatter : Collective::all_reduce;
}

std::uint32_t DataParallel::exchange(LaneState& state, Collective kind, Group group, double bytes,
                                     Phase phase, int layer, int micro_batch,
                                     const std::vector<std::uint32_t>& before) {
    ExchangeDemand demand;
    demand.kind = kind;
    demand.group = group;
    demand.payload = Bytes{bytes};
    const Stream stream =
        kind == Collective::all_gather && !runs_on_cpu(step_) ? Stream::parameters : Stream::data;
    return writer_.exchange(state, demand, stream, Part::data_comm, phase, std::max(0, layer),
                            micro_batch, before);
}

// ---------------------------------------------------------------------------------------------
// gradients

void DataParallel::synchronise_gradients(LaneState& state, int layer, const Slot& slot,
                                         bool last_time) {
    const bool each_time = step_.schedule.sharding >= Sharding::zero2;
    if (!last_time && !each_time) return;
    const HeldParameters held = parameters_.of_layer(layer);
    if (!effective_overlap(step_).gradients && !each_time) {
        waiting_ += held;
        return;
    }
    reduce(state, held, layer, slot.micro_batch);
}

void DataParallel::reduce(LaneState& state, const HeldParameters& held, int layer,
                          int micro_batch) {
    const double size = gradient_bytes();
    if (held.copied > 0)  // copies of an expert add up before they are sharded
        state.gradients.push_back(exchange(state, Collective::all_reduce, Group::expert,
                                           held.copied * size, Phase::backward, layer, micro_batch,
                                           {state.last}));
    for (const auto& [group, count] : by_group(held)) {
        if (count <= 0 || parameters_.replicas_of(group) < 2) continue;
        const auto id = exchange(state, reduction(), group, count * size, Phase::backward, layer,
                                 micro_batch, {state.last});
        state.gradients.push_back(id);
        state.under = static_cast<std::int32_t>(writer_.graph().ops[id].demand);
    }
}

void DataParallel::reduce_waiting(LaneState& state) {
    if (!(waiting_.dense > 0 || waiting_.expert > 0 || waiting_.copied > 0)) return;
    const int last = step_.schedule.num_micro_batches - 1;
    if (tensor_by_tensor() && waiting_.copied == 0)
        for (const auto& [group, count] : parameters_.tensors_of_lane(state.lane))
            state.gradients.push_back(exchange(state, reduction(), group, count * gradient_bytes(),
                                               Phase::backward, 0, last, {state.last}));
    else
        reduce(state, waiting_, 0, last);
    waiting_ = {};
}

// ---------------------------------------------------------------------------------------------
// parameters

std::vector<std::uint32_t>& DataParallel::gathers_of(int layer) {
    const std::size_t layers = step_.model.layers.size();
    return gathers_[layer == kEmbedding ? layers
                    : layer == kHead    ? layers + 1
                                        : static_cast<std::size_t>(layer)];
}

std::vector<std::uint32_t> DataParallel::gather(LaneState& state, int layer, int micro_batch,
                                                Phase phase,
                                                const std::vector<std::uint32_t>& before) {
    std::vector<std::uint32_t> ids;
    for (const auto& [group, count] : by_group(parameters_.of_layer(layer)))
        if (count > 0 && parameters_.replicas_of(group) > 1)
            ids.push_back(exchange(state, Collective::all_gather, group, count * parameter_bytes(),
                                   phase, layer, micro_batch, before));
    return ids;
}

void DataParallel::start_lane(LaneState& state) {
    gathers_.assign(step_.model.layers.size() + 2, {});
    if (!shards_optimizer() || shards_parameters() || !effective_overlap(step_).parameters) return;
    for (const int layer : parameters_.layers_of(state.lane))
        gathers_of(layer) = gather(state, layer, 0, Phase::forward, {});
}

void DataParallel::wait_for_parameters(LaneState& state, int layer, const Slot& slot) {
    if (shards_parameters()) {
        // prefetched one layer ahead: asked for when the pass before the last one ended
        const std::uint32_t since =
            state.pass_ends.size() >= 2 ? state.pass_ends[state.pass_ends.size() - 2] : kNoOp;
        const auto ids = gather(
            state, layer, slot.micro_batch,
            slot.pass == Pass::forward ? Phase::forward : Phase::backward,
            effective_overlap(step_).parameters ? std::vector{since} : std::vector{state.last});
        state.wait.insert(state.wait.end(), ids.begin(), ids.end());
        return;
    }
    auto& ids = gathers_of(layer);
    state.wait.insert(state.wait.end(), ids.begin(), ids.end());
    ids.clear();
}

void DataParallel::gather_updated(LaneState& state) {
    if (!shards_optimizer() || shards_parameters() || effective_overlap(step_).parameters) return;
    std::vector<GroupParameters> updated;
    if (tensor_by_tensor()) {
        updated = parameters_.tensors_of_lane(state.lane);
    } else {
        const auto groups = by_group(parameters_.of_lane(state.lane));
        updated.assign(groups.begin(), groups.end());
    }
    for (const auto& [group, count] : updated)
        if (count > 0 && parameters_.replicas_of(group) > 1)
            exchange(state, Collective::all_gather, group, count * parameter_bytes(),
                     Phase::optimizer, 0, 0, {state.last});
}

// ---------------------------------------------------------------------------------------------
// optimizer

void DataParallel::finish_lane(LaneState& state, const StagePasses& passes) {
    reduce_waiting(state);
    const HeldParameters all = parameters_.of_lane(state.lane);
    const double owned = shards_optimizer()
                             ? all.dense / parameters_.replicas_of(Group::data_context) +
                                   all.expert / parameters_.replicas_of(Group::expert_data)
                             : all.dense + all.expert;
    state.under = -1;
    const LayerPass pass = passes.optimizer(owned, all.dense + all.expert);
    state.wait.insert(state.wait.end(), state.gradients.begin(), state.gradients.end());
    writer_.write(state, pass, 0, -1, 0);
    const std::vector<Op>& ops = writer_.graph().ops;
    auto& start = optimizer_start_.emplace_back(0);
    for (std::size_t i = ops.size(); i-- > 0;) {
        if (ops[i].lane != state.lane || ops[i].part != Part::optimizer) break;
        start = static_cast<std::uint32_t>(i);
    }
    gather_updated(state);
}

}  // namespace moeplan
