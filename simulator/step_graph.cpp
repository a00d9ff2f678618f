#include "simulator/step_graph.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <optional>

#include "core/errors.hpp"
#include "core/text.hpp"
#include "model/kernel_work.hpp"
#include "model/op_counts.hpp"
#include "model/stage_layers.hpp"
#include "simulator/layer_passes.hpp"
#include "simulator/link_graph.hpp"
#include "simulator/routing_model.hpp"
#include "simulator/step_order.hpp"

namespace moeplan {

RoutedRows::RoutedRows(std::vector<std::uint32_t> counts) {
    std::uint32_t bits = 0;
    for (const std::uint32_t count : counts) bits |= count;
    if (bits <= std::numeric_limits<std::uint16_t>::max())
        narrow_.assign(counts.begin(), counts.end());
    else
        wide_ = std::move(counts);
}

Seconds& part_of(TimeBreakdown& parts, Part part) {
    switch (part) {
        case Part::compute:
            return parts.compute;
        case Part::host:
            return parts.host;
        case Part::tensor_comm:
            return parts.tensor_comm;
        case Part::context_comm:
            return parts.context_comm;
        case Part::dispatch:
            return parts.dispatch;
        case Part::combine:
            return parts.combine;
        case Part::pipeline_comm:
            return parts.pipeline_comm;
        case Part::data_comm:
            return parts.data_comm;
        case Part::bubble:
            return parts.bubble;
        case Part::optimizer:
            return parts.optimizer;
    }
    return parts.compute;
}

std::vector<std::vector<int>> exchange_groups(const StepGraph& graph, const ParallelLayout& layout,
                                              const ExchangeDemand& demand) {
    // Megatron's order, innermost first: tp, cp, dp, pp for attention; etp, ep, expert-dp, pp for
    // experts.
    const int tp = layout.tensor_parallel_size, cp = layout.context_parallel_size,
              pp = layout.pipeline_parallel_size;
    const int ep = layout.expert_parallel_size, etp = layout.expert_tensor_parallel_size;
    const int ranks = graph.width * graph.replicas, first = demand.stage * ranks;
    std::vector<std::vector<int>> groups;
    // members: `size` ranks, `stride` apart, in blocks of size · stride
    const auto strided = [&](int size, int stride) {
        for (int block = 0; block < ranks; block += size * stride)
            for (int offset = 0; offset < stride; ++offset) {
                auto& group = groups.emplace_back();
                for (int i = 0; i < size; ++i) group.push_back(first + block + offset + i * stride);
            }
    };
    switch (demand.group) {
        case Group::tensor:
            strided(tp, 1);
            break;
        case Group::context:
            strided(cp, tp);
            break;
        case Group::data_context:
            strided(ranks / tp, tp);
            break;
        case Group::expert_tensor:
            strided(etp, 1);
            break;
        case Group::expert:
            strided(ep, etp);
            break;
        case Group::expert_data:
            strided(ranks / (ep * etp), ep * etp);
            break;
        case Group::next_stage:
        case Group::previous_stage: {
            const int other = demand.group == Group::next_stage ? (demand.stage + 1) % pp
                                                                : (demand.stage + pp - 1) % pp;
            for (int i = 0; i < ranks; ++i) groups.push_back({first + i, other * ranks + i});
            break;
        }
        case Group::embedding:
            for (int i = 0; i < ranks; ++i) groups.push_back({i, (pp - 1) * ranks + i});
            break;
        case Group::mirror:
            for (int i = 0; i < ranks; ++i)
                groups.push_back({first + i, (pp - 1 - demand.stage) * ranks + i});
            break;
    }
    return groups;
}

namespace {

/// `power` of each, side by side.
void to_powers(std::vector<double>& values, int n) {
    std::vector<double> out(values.size(), 1);
    for (; n > 0; n >>= 1) {
        if (n & 1)
            for (std::size_t i = 0; i < values.size(); ++i) out[i] *= values[i];
        for (double& x : values) x *= x;
    }
    values = std::move(out);
}

}  // namespace

std::vector<int> domains_in_order(const std::vector<int>& ranks,
                                  const std::function<int(int)>& domain_of) {
    std::vector<int> seen, out;
    for (const int rank : ranks) {
        const int domain = domain_of(rank);
        const auto at = std::find(seen.begin(), seen.end(), domain);
        out.push_back(static_cast<int>(at - seen.begin()));
        if (at == seen.end()) seen.push_back(domain);
    }
    return out;
}

double units_to_domain(const ExpertLoads& loads, std::size_t source, int domain, int num_domains,
                       bool counted, double rows) {
    if (counted && !loads.domain_copies.empty())
        return loads.domain_copies[source * static_cast<std::size_t>(num_domains) +
                                   static_cast<std::size_t>(domain)];
    const double units = static_cast<double>(loads.units),
                 q = units > 0 ? std::min(1.0, rows / (units * loads.top_k)) : 0;
    return units * (1 - power(1 - q, loads.top_k));
}

std::vector<double> all_to_all_bytes(const StepGraph& graph, const ParallelLayout& layout,
                                     const ExchangeDemand& demand, Dispatcher dispatcher,
                                     int group) {
    const int ep = layout.expert_parallel_size, etp = layout.expert_tensor_parallel_size;
    const ExpertLoads& loads = graph.loads[demand.loads];
    const int groups_in_lane = graph.width / ep;  // every replica's loads are the lane's
    const int local = group % groups_in_lane, block = local / etp, offset = local % etp;
    const auto places = static_cast<std::size_t>(ep);
    const double units = static_cast<double>(loads.units);
    const bool once = dispatcher == Dispatcher::deduplicating,
               counted = once && !loads.copies.empty();
    std::vector<double> rows(places * places);  // [sources, places]
    for (std::size_t source = 0; source < places; ++source) {
        const std::size_t w = static_cast<std::size_t>(block * ep * etp + offset) + source * etp;
        // A unit with several experts at one place travels once.
        for (std::size_t place = 0; place < places; ++place)
            rows[source * places + place] =
                counted ? loads.copies[w * places + place] : loads.traffic[w * places + place];
    }
    if (once && !counted && loads.units > 0 && loads.top_k > 1) {
        // From counts alone: k independent choices, each going there with share q, so
        // 1 − (1−q)^k of the units travel.
        std::vector<double> elsewhere(rows.size());
        for (std::size_t i = 0; i < rows.size(); ++i)
            elsewhere[i] = 1 - std::min(1.0, rows[i] / (units * loads.top_k));
        to_powers(elsewhere, loads.top_k);
        for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = units * (1 - elsewhere[i]);
    } else if (dispatcher == Dispatcher::all_gather) {
        std::fill(rows.begin(), rows.end(), units);  // every unit goes everywhere
    }
    for (std::size_t place = 0; place < places; ++place) rows[place * places + place] = 0;
    for (double& bytes : rows) bytes *= demand.payload.value;
    if (demand.to_experts) return rows;
    std::vector<double> back(rows.size());
    for (std::size_t source = 0; source < places; ++source)
        for (std::size_t place = 0; place < places; ++place)
            back[place * places + source] = rows[source * places + place];
    return back;
}

double sm_share(const StepGraph& graph, const ExchangeDemand& demand) {
    if (demand.kind == Collective::send_recv) return 0;
    return demand.kind == Collective::all_to_all ? graph.expert_sm_share
                                                 : graph.collective_sm_share;
}

namespace {

/// Loads of one lane: every shard of an expert sees its rows.
ExpertLoads lane_loads(PlacedLoads placed, const ParallelLayout& layout, const MoeFeedForward& moe,
                       std::int64_t units, int width) {
    const int ep = layout.expert_parallel_size, etp = layout.expert_tensor_parallel_size,
              block = ep * etp;
    ExpertLoads out;
    out.units = units;
    out.top_k = moe.top_k;
    // a placement may leave some slots of a rank empty
    const int blocks = (width + block - 1) / block,
              per_rank = out.experts_per_rank = static_cast<int>(placed.rows.size()) / blocks / ep;
    out.traffic = RoutedRows(std::move(placed.traffic));
    out.copies = std::move(placed.copies);
    out.domain_copies = std::move(placed.domain_copies);
    out.rows.reserve(static_cast<std::size_t>(width) * per_rank);
    for (int rank = 0; rank < width; ++rank) {
        const auto first =
            placed.rows.begin() + rank / block * ep * per_rank + rank % block / etp * per_rank;
        out.rows.insert(out.rows.end(), first, first + per_rank);
    }
    return out;
}

double imbalance_of(const ExpertLoads& loads) {
    const std::size_t width = loads.rows.size() / std::max(1, loads.experts_per_rank);
    double most = 0, sum = 0;
    for (std::size_t w = 0; w < width; ++w) {
        double rows = 0;
        for (int e = 0; e < loads.experts_per_rank; ++e)
            rows += loads.rows[w * loads.experts_per_rank + e];
        most = std::max(most, rows);
        sum += rows;
    }
    return sum > 0 ? most * static_cast<double>(width) / sum : 1;
}

class Builder {
  public:
    explicit Builder(const StepCase& step) : step_(step) {}

    StepGraph build() {
        require();
        geometry();
        graph_.takes_turns = turns();
        graph_.exact_overlap = step_.schedule.overlap.communication_sms > 0 ||
                               step_.schedule.overlap.shared_experts ||
                               schedule_is(Pipeline::dual_pipe);
        routing();
        const auto orders = pipeline_order(step_.schedule.pipeline, stages(), chunks(),
                                           step_.schedule.num_micro_batches, turns());
        const auto layer_chunks =
            stage_chunks(static_cast<int>(step_.model.layers.size()), step_.layout, step_.schedule);
        forward_sends_.assign(
            static_cast<std::size_t>(last_virtual_stage() + 1) * step_.schedule.num_micro_batches,
            kNone);
        backward_sends_ = forward_sends_;
        std::size_t slots = 0;
        for (const auto& order : orders) slots += order.size();
        graph_.ops.reserve(slots * (step_.model.layers.size() / stages() + 1) * 6);
        for (int lane = 0; lane < stages(); ++lane)
            build_lane(lane, orders[lane], layer_chunks[lane]);
        for (const auto& [receiver, send] : receives_) {
            assert(*send != kNone);
            graph_.edges.push_back({*send, receiver});
        }
        await_messages();
        tied_embeddings();
        mirrored_gradients();
        notes();
        return std::move(graph_);
    }

  private:
    static constexpr std::uint32_t kNone = 0xFFFFFFFF;
    /// Of a GPU's SMs: something is always left to compute with.
    static constexpr double kMostTaken = 0.9;
    int stages() const { return step_.layout.pipeline_parallel_size; }
    int chunks() const { return num_chunks(step_.layout, step_.schedule); }
    bool schedule_is(Pipeline pipeline) const {
        return step_.schedule.pipeline == pipeline && stages() > 1;
    }
    bool splits_backward() const {
        return schedule_is(Pipeline::zero_bubble) || schedule_is(Pipeline::zero_bubble_v) ||
               schedule_is(Pipeline::dual_pipe);
    }
    bool turns() const { return takes_turns(step_.layout, step_.schedule) && !runs_on_cpu(step_); }
    int virtual_stage_of(int lane, int chunk) const {
        return virtual_stage(step_.schedule.pipeline, stages(), lane, chunk);
    }
    int last_virtual_stage() const {
        return (schedule_is(Pipeline::dual_pipe) ? 1 : chunks()) * stages() - 1;
    }
    bool has_virtual_stage(int lane, int wanted) const {
        for (int chunk = 0; chunk < chunks(); ++chunk)
            if (virtual_stage_of(lane, chunk) == wanted) return true;
        return false;
    }
    /// Whether a chunk's next layers lie on the stage after (or before) this one.
    bool leads_down(int chunk) const {
        return !(chunk == 1 &&
                 (schedule_is(Pipeline::zero_bubble_v) || schedule_is(Pipeline::dual_pipe)));
    }
    /// The stage where a V turns round needs no message.
    bool turns_round(int lane) const {
        return schedule_is(Pipeline::zero_bubble_v) && lane == stages() - 1;
    }
    /// The first and the last layers of the model on one stage.
    bool ends_meet() const {
        return stages() == 1 || schedule_is(Pipeline::zero_bubble_v) ||
               schedule_is(Pipeline::dual_pipe);
    }

    /// What the arithmetic below divides by. Everything else a layout can get wrong is
    /// `check_layout`'s to say.
    void require() const {
        const ParallelLayout& l = step_.layout;
        const auto refuse = [](const std::string& field, int value, const std::string& expected) {
            throw InputError("layout", field, std::to_string(value),
                             expected + " (`step_findings` lists every rule broken)");
        };
        if (l.tensor_parallel_size < 1 || l.context_parallel_size < 1 ||
            l.pipeline_parallel_size < 1 || l.data_parallel_size < 1 ||
            l.expert_parallel_size < 1 || l.expert_tensor_parallel_size < 1)
            refuse("", 0, "sizes of 1 or more");
        if (world_size(l) > num_gpus(step_.cluster))
            refuse("", world_size(l),
                   "at most the cluster's " + std::to_string(num_gpus(step_.cluster)) + " GPUs");
        if (step_.schedule.num_micro_batches < 1 || step_.schedule.micro_batch_size < 1 ||
            step_.schedule.sequence_length < 1)
            refuse("micro_batch", step_.schedule.num_micro_batches, "batches of 1 or more");
        if (schedule_is(Pipeline::zero_bubble_v) && step_.schedule.virtual_pipeline_size != 2)
            refuse("vpp", step_.schedule.virtual_pipeline_size, "2 chunks a stage for zero_bubble_v");
        if (schedule_is(Pipeline::dual_pipe) &&
            (l.pipeline_parallel_size % 2 != 0 || step_.schedule.virtual_pipeline_size != 1))
            refuse("pp", l.pipeline_parallel_size, "an even number of stages, vpp 1, for dual_pipe");
        if (schedule_is(Pipeline::dual_pipe) &&
            (step_.schedule.num_micro_batches % 2 != 0 ||
             step_.schedule.num_micro_batches < 2 * l.pipeline_parallel_size))
            refuse("micro_batches", step_.schedule.num_micro_batches,
                   "an even number, two a stage or more, for dual_pipe");
        if (step_.schedule.pipeline == Pipeline::interleaved &&
            step_.schedule.num_micro_batches % l.pipeline_parallel_size != 0)
            refuse("micro_batches", step_.schedule.num_micro_batches,
                   "a multiple of the pipeline size, for interleaved chunks");
        if (step_.placement) refuse_placement();
        if (!step_.profile) throw InputError("profile", "", "", "a profile");
        if (step_.model.layers.empty())
            throw InputError("model", "layers", "", "at least one layer");
        const int ranks = world_size(l) / l.pipeline_parallel_size;
        for (const auto& layer : step_.model.layers)
            if (const auto* moe = std::get_if<MoeFeedForward>(&layer.feed_forward)) {
                if (moe->num_experts % l.expert_parallel_size != 0)
                    refuse("ep", l.expert_parallel_size,
                           "a divisor of the " + std::to_string(moe->num_experts) + " experts");
                if (ranks % (l.expert_parallel_size * l.expert_tensor_parallel_size) != 0)
                    refuse(
                        "ep", l.expert_parallel_size,
                        "EP · ETP that divides the " + std::to_string(ranks) + " ranks of a stage");
                if (step_.model.hidden_size % std::max(1, moe->num_moe_heads) != 0)
                    refuse("num_moe_heads", moe->num_moe_heads, "a divisor of the hidden size");
            }
    }

    /// A placement of another model, or for another expert-parallel size.
    void refuse_placement() const {
        const ExpertPlacement& placement = *step_.placement;
        if (placement.num_ranks != step_.layout.expert_parallel_size)
            throw InputError(placement.source, "/num_ranks", std::to_string(placement.num_ranks),
                             "the layout's expert-parallel size (--ep), " +
                                 std::to_string(step_.layout.expert_parallel_size));
        const auto experts = static_cast<int>(placement.layers.front().ranks_of_expert.size());
        for (const auto& layer : step_.model.layers)
            if (const auto* moe = std::get_if<MoeFeedForward>(&layer.feed_forward);
                moe && moe->num_experts != experts)
                throw InputError(placement.source, "/layers/0/ranks_of_expert",
                                 std::to_string(experts) + " experts",
                                 "the model's " + std::to_string(moe->num_experts));
        if (num_moe_layers(step_.model) == 0)
            throw InputError(placement.source, "", step_.model.name, "a model with experts");
    }

    void geometry() {
        const ParallelLayout& l = step_.layout;
        const int stage_ranks =
            l.tensor_parallel_size * l.context_parallel_size * l.data_parallel_size;
        graph_.num_lanes = l.pipeline_parallel_size;
        const bool moe = num_moe_layers(step_.model) > 0;
        graph_.width = std::lcm(l.tensor_parallel_size * l.context_parallel_size,
                                moe ? l.expert_parallel_size * l.expert_tensor_parallel_size : 1);
        assert(stage_ranks % graph_.width == 0);
        graph_.replicas = stage_ranks / graph_.width;
        const SoftwareCosts software = software_costs(step_);
        const auto share = [&](double sms) {
            const int stated = step_.schedule.overlap.communication_sms;
            return step_.cluster.gpu.num_sms > 0
                       ? std::clamp((stated > 0 ? stated : sms) / step_.cluster.gpu.num_sms, 0.0,
                                    kMostTaken)
                       : 0.0;
        };
        graph_.expert_sm_share = share(software.expert_sms);
        graph_.collective_sm_share = share(software.collective_sms);
    }

    void place_domains() {
        std::vector<int> first;  // the first expert group
        for (int place = 0; place < step_.layout.expert_parallel_size; ++place)
            first.push_back(place * step_.layout.expert_tensor_parallel_size);
        const auto* imported =
            std::get_if<std::shared_ptr<const LinkGraph>>(&step_.cluster.topology);
        const int size = imported ? 0 : gpus_per_domain(step_.cluster);
        graph_.place_domain = domains_in_order(first, [&](int rank) {
            return imported ? (*imported)->domain[static_cast<std::size_t>(rank)] : rank / size;
        });
    }

    void routing() {
        const ParallelLayout& l = step_.layout;
        const LayerShapes shapes(step_);
        RoutingDemand demand{graph_.width, shapes.routed_tokens, step_.schedule.sequence_length};
        routing_.emplace(step_.model, step_.routing, demand, step_.seed);
        place_domains();
        std::map<int, int> of_shape;  // even routing: one set of loads for layers of one shape
        std::vector<const MoeFeedForward*> seen;
        int moe_layer = 0;
        for (std::size_t layer = 0; layer < step_.model.layers.size(); ++layer) {
            const auto* moe = std::get_if<MoeFeedForward>(&step_.model.layers[layer].feed_forward);
            moe_index_.push_back(moe ? moe_layer : -1);
            if (!moe) continue;
            const int all = step_.schedule.num_micro_batches;
            const int micro_batches = routing_->same_everywhere() ? 1
                                      : step_.distinct_micro_batches > 0
                                          ? std::min(all, step_.distinct_micro_batches)
                                          : all;
            auto& table = load_index_.emplace_back();
            double imbalance = 0;
            int shared = -1;
            const LayerPlacement* placement =
                step_.placement ? &step_.placement->of(moe_layer) : nullptr;
            const bool alike = routing_->same_everywhere() && !placement;
            if (alike)
                for (std::size_t j = 0; j < seen.size(); ++j)
                    if (*seen[j] == *moe) shared = of_shape[static_cast<int>(j)];
            if (shared < 0)
                for (int m = 0; m < micro_batches; ++m) {
                    graph_.loads.push_back(lane_loads(
                        routing_->placed_loads(
                            moe_layer, m, l.expert_parallel_size,
                            l.expert_parallel_size * l.expert_tensor_parallel_size,
                            graph_.place_domain, placement),
                        l, *moe, shapes.routed_tokens * moe->num_moe_heads, graph_.width));
                    table.push_back(static_cast<std::int32_t>(graph_.loads.size() - 1));
                    imbalance += imbalance_of(graph_.loads.back()) / micro_batches;
                }
            else {
                table.push_back(shared);
                imbalance = imbalance_of(graph_.loads[shared]);
            }
            if (alike && shared < 0) {
                of_shape[static_cast<int>(seen.size())] = table.front();
                seen.push_back(moe);
            }
            graph_.load_imbalance.push_back(imbalance);
            ++moe_layer;
        }
        graph_.assumptions = routing_->assumptions();
    }
    std::int32_t loads_of(int moe_layer, int micro_batch) const {
        const auto& table = load_index_[moe_layer];
        return table[static_cast<std::size_t>(micro_batch) % table.size()];
    }

    // ------------------------------------------------------------------------------------------------
    // one lane

    struct LaneState {
        std::uint32_t last = kNone;                   // of the compute stream
        std::array<std::uint32_t, kNumStreams> tail;  // of each stream
        std::vector<std::uint32_t> wait;              // the next compute op waits for these too
        std::vector<std::uint32_t> gradients;         // exchanges before the optimizer
        std::vector<std::uint32_t> pass_ends;         // for prefetch distances
        std::int32_t under = -1;          // exchange that runs beneath the next pass
        std::vector<std::uint32_t> open;  // exchanges that take SMs and no job has waited for yet
        const std::uint32_t* message = nullptr;  // the next compute op waits for what is sent here
    };

    std::uint32_t job(std::uint32_t work, std::int32_t loads) {
        const auto key = std::make_pair(work, loads);
        const auto [at, fresh] =
            job_ids_.try_emplace(key, static_cast<std::uint32_t>(graph_.jobs.size()));
        if (fresh) graph_.jobs.push_back({work, loads});
        return at->second;
    }
    std::uint32_t exchange_id(const ExchangeDemand& demand) {
        const auto key = std::make_tuple(
            static_cast<int>(demand.kind), static_cast<int>(demand.group),
            static_cast<int>(demand.stage), demand.payload.value, demand.loads, demand.to_experts);
        const auto [at, fresh] =
            exchange_ids_.try_emplace(key, static_cast<std::uint32_t>(graph_.exchanges.size()));
        if (fresh) graph_.exchanges.push_back(demand);
        return at->second;
    }
    std::uint32_t add_op(LaneState& state, Op op, const std::vector<std::uint32_t>& before) {
        const auto id = static_cast<std::uint32_t>(graph_.ops.size());
        graph_.ops.push_back(op);
        auto& tail = state.tail[static_cast<int>(op.stream)];
        for (const std::uint32_t b : before)
            if (b != kNone && b != tail) graph_.edges.push_back({b, id});
        if (tail != kNone) graph_.edges.push_back({tail, id});
        tail = id;
        mark_company(state, id, before);
        return id;
    }
    /// Marks jobs and exchanges of a lane that may run at the same time. Some that are marked never
    /// meet, which only costs the walk some events.
    void mark_company(LaneState& state, std::uint32_t id, const std::vector<std::uint32_t>& before) {
        if (!graph_.exact_overlap) return;
        Op& op = graph_.ops[id];
        if (!op.exchange) {
            // what it waits for is over, and what went before that on the same stream
            for (const std::uint32_t b : before)
                if (b != kNone && graph_.ops[b].exchange)
                    std::erase_if(state.open, [&](std::uint32_t x) {
                        return x <= b && graph_.ops[x].stream == graph_.ops[b].stream;
                    });
            op.beside = !state.open.empty();
            for (const std::uint32_t x : state.open) graph_.ops[x].beside = true;
            return;
        }
        if (!(sm_share(graph_, graph_.exchanges[op.demand]) > 0)) return;
        state.open.push_back(id);
        // jobs since what it waits for: it may start while they run
        std::uint32_t since = graph_.slots.empty() ? id : graph_.slots.back().front();
        for (const std::uint32_t b : before)
            if (b != kNone) since = std::max(since, b + 1);
        for (std::uint32_t i = since; i < id; ++i)
            if (!graph_.ops[i].exchange) graph_.ops[i].beside = op.beside = true;
    }

    std::uint32_t add_exchange(LaneState& state, const ExchangeDemand& demand, Stream stream,
                               Part part, Phase phase, int layer, int micro_batch,
                               const std::vector<std::uint32_t>& before) {
        Op op;
        op.lane = demand.stage;
        op.layer = static_cast<std::uint16_t>(layer);
        op.micro_batch = static_cast<std::uint16_t>(micro_batch);
        op.phase = phase;
        op.stream = stream;
        op.part = part;
        op.exchange = true;
        op.demand = exchange_id(demand);
        return add_op(state, op, before);
    }

    /// A pass at work on a lane: its items one after another, each with its own waits.
    struct Running {
        const LayerPass* pass = nullptr;
        int layer = 0, moe_layer = -1, micro_batch = 0;
        std::uint32_t entry = kNone;     // what came before the pass
        std::vector<std::uint32_t> ids;  // of the items so far
        bool done() const { return ids.size() == pass->items.size(); }
    };
    Running begin(const LaneState& state, const LayerPass& pass, int layer, int moe_layer,
                  int micro_batch) {
        Running run{&pass, layer, moe_layer, micro_batch, state.last, {}};
        run.ids.reserve(pass.items.size());
        return run;
    }
    void add_item(LaneState& state, int lane, Running& run) {
        const PassItem& item = run.pass->items[run.ids.size()];
        std::vector<std::uint32_t> before;
        for (const int b : item.after) before.push_back(b < 0 ? run.entry : run.ids[b]);
        if (!item.exchange && !state.wait.empty()) {
            before.insert(before.end(), state.wait.begin(), state.wait.end());
            state.wait.clear();
        }
        const std::int32_t loads =
            run.moe_layer >= 0 && item.routed ? loads_of(run.moe_layer, run.micro_batch) : -1;
        if (item.exchange) {
            ExchangeDemand demand = item.demand;
            demand.stage = static_cast<std::uint16_t>(lane);
            demand.loads = loads;
            run.ids.push_back(add_exchange(state, demand, item.stream, item.part, item.phase,
                                           run.layer, run.micro_batch, before));
        } else {
            Op op;
            op.lane = static_cast<std::uint16_t>(lane);
            op.layer = static_cast<std::uint16_t>(run.layer);
            op.micro_batch = static_cast<std::uint16_t>(run.micro_batch);
            op.phase = item.phase;
            op.part = graph_.works[item.work].part;
            op.demand = job(item.work, loads);
            if (!graph_.exact_overlap)
                op.under = item.under >= 0
                               ? static_cast<std::int32_t>(graph_.ops[run.ids[item.under]].demand)
                               : state.under;
            if (item.under < 0) state.under = -1;
            run.ids.push_back(add_op(state, op, before));
            receive(state, run.ids.back());
        }
    }
    /// The first kernel of a slot waits for what was sent, whenever the sender's ops are made.
    void receive(LaneState& state, std::uint32_t op) {
        if (state.message) receives_.emplace_back(op, state.message);
        state.message = nullptr;
    }
    /// The next chunk lies on the same stage: what ends here is its message.
    void hand_over(LaneState& state, std::uint32_t& sent) {
        sent = state.message ? *state.message : state.last;  // a chunk without layers passes it on
        state.message = nullptr;
    }
    void end(LaneState& state, const Running& run) {
        if (!run.ids.empty()) {
            // What follows the pass waits for its last item, and for any of its exchanges that
            // nothing in it waited for.
            state.last = run.ids.back();
            if (run.pass->items.back().exchange) state.wait.push_back(run.ids.back());
        }
        state.pass_ends.push_back(state.last);
    }
    void instantiate(LaneState& state, int lane, const LayerPass& pass, int layer, int moe_layer,
                     int micro_batch) {
        Running run = begin(state, pass, layer, moe_layer, micro_batch);
        while (!run.done()) add_item(state, lane, run);
        end(state, run);
    }

    /// What a slot does, step by step: passes of layers, and what lies between them.
    struct Step {
        const LayerPass* pass = nullptr;
        int layer = 0, moe_layer = -1;
        std::function<void(LaneState&)> other;  // where there is no pass
    };
    struct Program {
        int micro_batch = 0;
        const std::uint32_t* message = nullptr;
        std::vector<Step> steps;
    };
    void run(LaneState& state, int lane, const Program& program) {
        state.message = program.message;
        for (const Step& step : program.steps)
            if (step.pass)
                instantiate(state, lane, *step.pass, step.layer, step.moe_layer,
                            program.micro_batch);
            else
                step.other(state);
    }
    /// Two programs in turns: one goes on until its tokens travel, then the other does.
    void take_turns(LaneState& state, int lane, const Program& one, const Program& other) {
        struct Track {
            const Program* program;
            std::size_t step = 0;
            std::optional<Running> running;
            std::uint32_t last;
            std::vector<std::uint32_t> wait;
            const std::uint32_t* message;
        };
        std::array<Track, 2> tracks = {
            Track{&one, 0, {}, state.last, std::move(state.wait), one.message},
            Track{&other, 0, {}, state.last, {}, other.message}};
        state.wait.clear();
        const auto done = [](const Track& track) {
            return track.step == track.program->steps.size();
        };
        for (int turn = 0; !done(tracks[0]) || !done(tracks[1]); turn = 1 - turn) {
            Track& track = tracks[turn];
            std::swap(state.last, track.last);
            std::swap(state.wait, track.wait);
            std::swap(state.message, track.message);
            for (bool travels = false; !travels && !done(track);) {
                const Step& step = track.program->steps[track.step];
                if (!step.pass) {
                    step.other(state);
                    ++track.step;
                    continue;
                }
                if (!track.running)
                    track.running = begin(state, *step.pass, step.layer, step.moe_layer,
                                          track.program->micro_batch);
                if (!track.running->done()) {
                    add_item(state, lane, *track.running);
                    const Op& op = graph_.ops[track.running->ids.back()];
                    travels = op.exchange && op.stream == Stream::expert;
                }
                if (track.running->done()) {
                    end(state, *track.running);
                    track.running.reset();
                    ++track.step;
                }
            }
            std::swap(state.last, track.last);
            std::swap(state.wait, track.wait);
            std::swap(state.message, track.message);
        }
        state.last = tracks[1].last;
        for (const Track& track : tracks)
            state.wait.insert(state.wait.end(), track.wait.begin(), track.wait.end());
    }

    struct Templates {  // of one kind of layer on one lane
        LayerPass forward, backward, backward_input, backward_weight;
    };
    const Templates& templates(const LayerSpec& layer) {
        for (const auto& [spec, made] : templates_)
            if (spec == layer) return *made;
        auto made = std::make_unique<Templates>();
        LayerPasses passes(step_, graph_.works);
        made->forward = passes.forward(layer);
        made->backward = passes.backward(layer, BackwardPart::both);
        if (splits_backward()) {
            made->backward_input = passes.backward(layer, BackwardPart::input);
            made->backward_weight = passes.backward(layer, BackwardPart::weight);
        }
        templates_.emplace_back(layer, std::move(made));
        return *templates_.back().second;
    }

    void build_lane(int lane, const std::vector<Slot>& order,
                    const std::vector<LayerChunk>& layer_chunks) {
        LaneState state;
        state.tail.fill(kNone);
        LayerPasses passes(step_, graph_.works);
        parameter_gathers_.assign(step_.model.layers.size() + 2, {});
        if (!embedding_forward_) {
            embedding_forward_ = passes.embedding(true);
            embedding_backward_ = passes.embedding(false);
            head_forward_ = passes.head(true, BackwardPart::both);
            head_backward_ = passes.head(false, BackwardPart::both);
            if (splits_backward()) {
                head_backward_input_ = passes.head(false, BackwardPart::input);
                head_backward_weight_ = passes.head(false, BackwardPart::weight);
            }
        }
        auto& slots = graph_.slots.emplace_back();
        slots.reserve(order.size() + 1);
        slots.push_back(static_cast<std::uint32_t>(graph_.ops.size()));
        start_parameter_gathers(state, lane, layer_chunks);
        std::vector<int> weights_left(layer_chunks.size(), 0);
        for (const Slot& slot : order) weights_left[slot.chunk] += slot.pass == Pass::forward;
        for (std::size_t i = 0; i < order.size(); ++i) {
            if (i > 0) slots.push_back(static_cast<std::uint32_t>(graph_.ops.size()));
            const Program program = program_of(lane, order[i], layer_chunks, passes, weights_left);
            if (!order[i].with_next || runs_on_cpu(step_)) {
                run(state, lane, program);
                continue;
            }
            ++i;
            take_turns(state, lane, program,
                       program_of(lane, order[i], layer_chunks, passes, weights_left));
            // the second slot of the two has no ops of its own
            slots.push_back(static_cast<std::uint32_t>(graph_.ops.size()));
        }
        slots.push_back(static_cast<std::uint32_t>(graph_.ops.size()));
        finish_lane(state, lane, layer_chunks, passes);
    }

    /// @param weights_left  [chunks] passes that still add to the chunk's gradients
    Program program_of(int lane, const Slot& slot, const std::vector<LayerChunk>& layer_chunks,
                       LayerPasses& passes, std::vector<int>& weights_left) {
        Program out;
        out.micro_batch = slot.micro_batch;
        const LayerChunk& chunk = layer_chunks[slot.chunk];
        const int here = virtual_stage_of(lane, slot.chunk), last = last_virtual_stage(),
                  last_layer = static_cast<int>(step_.model.layers.size()) - 1;
        const bool down = leads_down(slot.chunk);
        const auto key = [&](int stage) {
            return static_cast<std::size_t>(stage) * step_.schedule.num_micro_batches +
                   slot.micro_batch;
        };
        const auto pass = [&](const LayerPass& layer_pass, int layer, int moe_layer) {
            out.steps.push_back({&layer_pass, layer, moe_layer, {}});
        };
        const auto then = [&](std::function<void(LaneState&)> other) {
            out.steps.push_back({nullptr, 0, -1, std::move(other)});
        };
        const auto parameters = [&](int layer) {
            then([this, lane, layer, slot](LaneState& state) {
                wait_for_parameters(state, lane, layer, slot);
            });
        };
        const auto message = [&](bool to_next, Phase phase, std::uint32_t& sent) {
            then([this, lane, to_next, phase, slot, &sent](LaneState& state) {
                send(state, lane, to_next ? Group::next_stage : Group::previous_stage, phase, slot,
                     sent);
            });
        };
        if (slot.pass == Pass::forward) {
            if (here > 0) out.message = &forward_sends_[key(here - 1)];
            if (here == 0) {
                parameters(kEmbedding);
                pass(*embedding_forward_, 0, -1);
            }
            for (int l = chunk.first; l < chunk.first + chunk.count; ++l) {
                parameters(l);
                pass(templates(step_.model.layers[l]).forward, l, moe_index_[l]);
            }
            if (here == last) {
                parameters(kHead);
                for (int extra = 0; extra < step_.model.num_mtp_layers; ++extra)
                    mtp(out, passes, slot);
                pass(*head_forward_, last_layer, -1);
            } else if (turns_round(lane) && down) {
                then([this, at = key(here)](LaneState& state) {
                    hand_over(state, forward_sends_[at]);
                });
            } else {
                message(down, Phase::forward, forward_sends_[key(here)]);
            }
            return out;
        }
        const bool input = slot.pass != Pass::backward_weight,
                   weight = slot.pass != Pass::backward_input;
        const bool last_time = weight && --weights_left[slot.chunk] == 0;
        const auto gradients = [&](int layer) {
            if (!weight) return;
            then([this, lane, layer, slot, last_time](LaneState& state) {
                synchronise_gradients(state, lane, layer, slot, last_time);
            });
        };
        if (input && here < last) out.message = &backward_sends_[key(here + 1)];
        if (here == last) {
            pass(slot.pass == Pass::backward ? *head_backward_
                 : input                     ? *head_backward_input_
                                             : *head_backward_weight_,
                 last_layer, -1);
            for (int extra = 0; extra < step_.model.num_mtp_layers; ++extra) mtp(out, passes, slot);
            gradients(kHead);
        }
        for (int l = chunk.first + chunk.count - 1; l >= chunk.first; --l) {
            const Templates& made = templates(step_.model.layers[l]);
            if (input) parameters(l);
            pass(slot.pass == Pass::backward ? made.backward
                 : input                     ? made.backward_input
                                             : made.backward_weight,
                 l, moe_index_[l]);
            gradients(l);
        }
        if (here == 0 && weight) {
            pass(*embedding_backward_, 0, -1);
            gradients(kEmbedding);
        }
        if (input && here > 0) {
            if (turns_round(lane) && !down)
                then([this, at = key(here)](LaneState& state) {
                    hand_over(state, backward_sends_[at]);
                });
            else
                message(!down, Phase::backward, backward_sends_[key(here)]);
        }
        return out;
    }

    /// A multi-token-prediction module is one more layer of the last kind with its own projection
    /// and loss.
    void mtp(Program& program, LayerPasses& passes, const Slot& slot) {
        const int last = static_cast<int>(step_.model.layers.size()) - 1;
        const Templates& made = templates(step_.model.layers[last]);
        const auto pass = [&](const LayerPass& layer_pass, int moe_layer) {
            program.steps.push_back({&layer_pass, last, moe_layer, {}});
        };
        if (slot.pass == Pass::forward) {
            if (!mtp_forward_) mtp_forward_ = passes.mtp_projection(true, BackwardPart::both);
            pass(*mtp_forward_, -1);
            pass(made.forward, moe_index_[last]);
            pass(*head_forward_, -1);
            return;
        }
        const BackwardPart part = slot.pass == Pass::backward_input    ? BackwardPart::input
                                  : slot.pass == Pass::backward_weight ? BackwardPart::weight
                                                                       : BackwardPart::both;
        pass(part == BackwardPart::both    ? *head_backward_
             : part == BackwardPart::input ? *head_backward_input_
                                           : *head_backward_weight_,
             -1);
        pass(part == BackwardPart::both    ? made.backward
             : part == BackwardPart::input ? made.backward_input
                                           : made.backward_weight,
             moe_index_[last]);
        auto& projection = mtp_backward_[static_cast<int>(part)];
        if (!projection) projection = passes.mtp_projection(false, part);
        pass(*projection, -1);
    }

    void send(LaneState& state, int lane, Group group, Phase phase, const Slot& slot,
              std::uint32_t& sent) {
        const LayerShapes shapes(step_);
        ExchangeDemand demand;
        demand.kind = Collective::send_recv;
        demand.group = group;
        demand.stage = static_cast<std::uint16_t>(lane);
        const auto tokens = static_cast<double>(
            costs().scatters_messages ? shapes.routed_tokens : shapes.split_tokens);
        demand.payload = Bytes{tokens * step_.model.hidden_size * shapes.element.value};
        sent = add_exchange(
            state, demand,
            group == Group::next_stage ? Stream::forward_send : Stream::backward_send,
            Part::pipeline_comm, phase, 0, slot.micro_batch, {state.last});
        receive(state, sent);  // a chunk without layers passes on what it got
    }

    // -------------------------------------------------------------------------------------- data
    // parallelism

    static constexpr int kEmbedding = -1, kHead = -2;
    std::size_t slot_of(int layer) const {
        return layer == kEmbedding ? step_.model.layers.size()
               : layer == kHead    ? step_.model.layers.size() + 1
                                   : static_cast<std::size_t>(layer);
    }

    /// Parameters of a rank: those whose replicas are the data-parallel ranks, and experts, whose
    /// replicas are fewer.
    struct Held {
        double dense = 0, expert = 0;
        double copied = 0;  ///< of `expert`: what other ranks of the expert group hold too
        Held& operator+=(const Held& other) {
            dense += other.dense;
            expert += other.expert;
            copied += other.copied;
            return *this;
        }
    };
    Held held(int layer) const {
        const ParallelLayout& l = step_.layout;
        const double tp = l.tensor_parallel_size;
        if (layer == kEmbedding)
            return {static_cast<double>(step_.model.vocab_size) * step_.model.hidden_size / tp, 0};
        if (layer == kHead) {
            const bool own = !step_.model.tied_embeddings || !ends_meet();
            Held head{
                (own ? static_cast<double>(step_.model.vocab_size) * step_.model.hidden_size / tp
                     : 0) +
                    step_.model.hidden_size,
                0};
            for (int extra = 0; extra < step_.model.num_mtp_layers; ++extra) {
                const Held one = held(static_cast<int>(step_.model.layers.size()) - 1);
                head += one;
                head.dense += 2.0 * step_.model.hidden_size * step_.model.hidden_size;
            }
            return head;
        }
        const LayerSpec& spec = step_.model.layers[layer];
        const LayerParameters parameters = layer_parameters(step_.model, spec);
        Held out;
        out.dense =
            static_cast<double>(parameters.attention + parameters.dense +
                                parameters.shared_experts) /
                tp +
            static_cast<double>(parameters.router + parameters.mh_projections + parameters.norms);
        if (const auto* moe = std::get_if<MoeFeedForward>(&spec.feed_forward)) {
            const double one = static_cast<double>(parameters.one_expert) /
                               l.expert_tensor_parallel_size;
            out.expert = one * moe->num_experts / l.expert_parallel_size;
            if (step_.placement) {
                const LayerPlacement& here = step_.placement->of(moe_index_[layer]);
                out.expert = one * slots_per_rank(here, l.expert_parallel_size);
                out.copied = one * copied_per_rank(here, l.expert_parallel_size);
            }
        }
        return out;
    }
    int replicas_of(Group group) const {
        const int ranks = graph_.width * graph_.replicas;
        return group == Group::data_context ? ranks / step_.layout.tensor_parallel_size
                                            : ranks / (step_.layout.expert_parallel_size *
                                                       step_.layout.expert_tensor_parallel_size);
    }
    std::uint32_t data_exchange(LaneState& state, int lane, Collective kind, Group group,
                                double bytes, Phase phase, int layer, int micro_batch,
                                const std::vector<std::uint32_t>& before) {
        ExchangeDemand demand;
        demand.kind = kind;
        demand.group = group;
        demand.stage = static_cast<std::uint16_t>(lane);
        demand.payload = Bytes{bytes};
        const Stream stream = kind == Collective::all_gather && !runs_on_cpu(step_)
                                  ? Stream::parameters
                                  : Stream::data;
        return add_exchange(state, demand, stream, Part::data_comm, phase, std::max(0, layer),
                            micro_batch, before);
    }
    double gradient_bytes() {
        const SoftwareCosts& software = costs();
        const double stated = shards_parameters() && software.sharded_gradient_bytes > 0
                                  ? software.sharded_gradient_bytes
                                  : software.gradient_bytes;
        return stated > 0 ? stated : size_of(step_.schedule.main_gradients).value;
    }
    double parameter_bytes() const { return step_.schedule.precision == Precision::fp32 ? 4 : 2; }

    /// The gradients of one layer after its last backward (or, ZeRO-2/3, after each):
    /// reduce-scatter where the optimizer is sharded, else all-reduce.
    void synchronise_gradients(LaneState& state, int lane, int layer, const Slot& slot,
                               bool last_time) {
        const bool each_time = step_.schedule.sharding >= Sharding::zero2;
        if (!last_time && !each_time) return;
        const Held parameters = held(layer);
        if (!effective_overlap(step_).gradients && !each_time) {
            waiting_ += parameters;
            return;
        }
        reduce(state, lane, parameters, layer, slot.micro_batch);
    }
    void reduce(LaneState& state, int lane, const Held& parameters, int layer, int micro_batch) {
        const Collective kind = step_.schedule.sharding == Sharding::none
                                    ? Collective::all_reduce
                                    : Collective::reduce_scatter;
        const double size = gradient_bytes();
        if (parameters.copied > 0)  // copies of an expert add up before they are sharded
            state.gradients.push_back(data_exchange(
                state, lane, Collective::all_reduce, Group::expert, parameters.copied * size,
                Phase::backward, layer, micro_batch, {state.last}));
        for (const auto& [group, count] : {std::pair{Group::data_context, parameters.dense},
                                           std::pair{Group::expert_data, parameters.expert}}) {
            if (count <= 0 || replicas_of(group) < 2) continue;
            const auto id = data_exchange(state, lane, kind, group, count * size, Phase::backward,
                                          layer, micro_batch, {state.last});
            state.gradients.push_back(id);
            state.under = static_cast<std::int32_t>(graph_.ops[id].demand);
        }
    }

    /// Of the step's software, found once.
    const SoftwareCosts& costs() {
        if (!costs_) costs_ = software_costs(step_);
        return *costs_;
    }
    bool shards_parameters() const { return step_.schedule.sharding == Sharding::zero3; }
    std::vector<std::uint32_t> gather(LaneState& state, int lane, int layer, int micro_batch,
                                      Phase phase, const std::vector<std::uint32_t>& before) {
        std::vector<std::uint32_t> ids;
        const Held parameters = held(layer);
        for (const auto& [group, count] : {std::pair{Group::data_context, parameters.dense},
                                           std::pair{Group::expert_data, parameters.expert}})
            if (count > 0 && replicas_of(group) > 1)
                ids.push_back(data_exchange(state, lane, Collective::all_gather, group,
                                            count * parameter_bytes(), phase, layer, micro_batch,
                                            before));
        return ids;
    }
    /// ZeRO-1/2 with overlap: the parameters that the last step updated arrive while the first
    /// micro-batch runs forward.
    void start_parameter_gathers(LaneState& state, int lane,
                                 const std::vector<LayerChunk>& layer_chunks) {
        const Sharding sharding = step_.schedule.sharding;
        if (sharding == Sharding::none || shards_parameters() ||
            !effective_overlap(step_).parameters)
            return;
        if (has_virtual_stage(lane, 0))
            parameter_gathers_[slot_of(kEmbedding)] =
                gather(state, lane, kEmbedding, 0, Phase::forward, {});
        for (const auto& chunk : layer_chunks)
            for (int l = chunk.first; l < chunk.first + chunk.count; ++l)
                parameter_gathers_[slot_of(l)] = gather(state, lane, l, 0, Phase::forward, {});
        if (has_virtual_stage(lane, last_virtual_stage()))
            parameter_gathers_[slot_of(kHead)] = gather(state, lane, kHead, 0, Phase::forward, {});
    }
    void wait_for_parameters(LaneState& state, int lane, int layer, const Slot& slot) {
        if (shards_parameters()) {
            // prefetched one layer ahead: asked for when the pass before the last one ended
            const std::uint32_t since =
                state.pass_ends.size() >= 2 ? state.pass_ends[state.pass_ends.size() - 2] : kNone;
            const auto ids = gather(
                state, lane, layer, slot.micro_batch,
                slot.pass == Pass::forward ? Phase::forward : Phase::backward,
                effective_overlap(step_).parameters ? std::vector{since} : std::vector{state.last});
            state.wait.insert(state.wait.end(), ids.begin(), ids.end());
            return;
        }
        auto& ids = parameter_gathers_[slot_of(layer)];
        state.wait.insert(state.wait.end(), ids.begin(), ids.end());
        ids.clear();
    }

    Held held_by(int lane, const std::vector<LayerChunk>& layer_chunks) const {
        Held all;
        const auto add = [&](int layer) { all += held(layer); };
        if (has_virtual_stage(lane, 0)) add(kEmbedding);
        for (const auto& chunk : layer_chunks)
            for (int l = chunk.first; l < chunk.first + chunk.count; ++l) add(l);
        if (has_virtual_stage(lane, last_virtual_stage())) add(kHead);
        return all;
    }

    /// Our own trainer exchanges one tensor after another where nothing overlaps.
    bool tensor_by_tensor() const { return is_own_trainer(step_) && runs_on_cpu(step_); }
    using Tensors = std::vector<std::pair<Group, double>>;
    /// Parameters of a layer as our own trainer keeps them, those below a matrix in one lump: they
    /// sum up to `held`.
    void add_tensors(int layer, Tensors& out) const {
        const Held all = held(layer);
        double lump = all.dense;
        const auto matrix = [&](double rows, double columns, double split) {
            out.emplace_back(Group::data_context, rows * columns / split);
            lump -= out.back().second;
        };
        const double hidden = step_.model.hidden_size, tp = step_.layout.tensor_parallel_size;
        if (layer < 0) {
            if (all.dense >= hidden * step_.model.vocab_size / tp)
                matrix(hidden, step_.model.vocab_size, tp);
        } else {
            const LayerSpec& spec = step_.model.layers[layer];
            if (const auto* a = std::get_if<GroupedQueryAttention>(&spec.attention)) {
                for (const int heads : {a->num_attention_heads, a->num_attention_heads,
                                        a->num_kv_heads, a->num_kv_heads})
                    matrix(hidden, static_cast<double>(heads) * a->head_size, tp);
            }
            const auto gated = [](Activation activation) {
                return activation == Activation::swiglu ? 2.0 : 1.0;
            };
            if (const auto* dense = std::get_if<DenseFeedForward>(&spec.feed_forward)) {
                matrix(hidden, gated(dense->activation) * dense->dense_hidden_size, tp);
                matrix(hidden, dense->dense_hidden_size, tp);
            } else {
                const auto& moe = std::get<MoeFeedForward>(spec.feed_forward);
                const double gates = gated(moe.activation);
                out.emplace_back(Group::expert_data, all.expert * gates / (gates + 1));
                out.emplace_back(Group::expert_data, all.expert / (gates + 1));
                if (moe.num_moe_heads > 1)
                    for (int projection = 0; projection < 2; ++projection)
                        matrix(hidden, hidden, 1);
            }
        }
        if (lump > 0) out.emplace_back(Group::data_context, lump);
    }
    /// Of a lane, as far as there are replicas to exchange with.
    Tensors tensors_of(int lane, const std::vector<LayerChunk>& layer_chunks) const {
        Tensors out;
        if (has_virtual_stage(lane, 0)) add_tensors(kEmbedding, out);
        for (const auto& chunk : layer_chunks)
            for (int l = chunk.first; l < chunk.first + chunk.count; ++l) add_tensors(l, out);
        if (has_virtual_stage(lane, last_virtual_stage())) add_tensors(kHead, out);
        std::erase_if(out, [&](const auto& tensor) {
            return !(tensor.second > 0) || replicas_of(tensor.first) < 2;
        });
        return out;
    }

    void finish_lane(LaneState& state, int lane, const std::vector<LayerChunk>& layer_chunks,
                     LayerPasses& passes) {
        const Sharding sharding = step_.schedule.sharding;
        if (waiting_.dense > 0 || waiting_.expert > 0 || waiting_.copied > 0) {
            if (tensor_by_tensor() && waiting_.copied == 0)
                for (const auto& [group, count] : tensors_of(lane, layer_chunks))
                    state.gradients.push_back(
                        data_exchange(state, lane,
                                      sharding == Sharding::none ? Collective::all_reduce
                                                                 : Collective::reduce_scatter,
                                      group, count * gradient_bytes(), Phase::backward, 0,
                                      step_.schedule.num_micro_batches - 1, {state.last}));
            else
                reduce(state, lane, waiting_, 0, step_.schedule.num_micro_batches - 1);
            waiting_ = {};
        }
        const Held all = held_by(lane, layer_chunks);
        const double owned = sharding == Sharding::none
                                 ? all.dense + all.expert
                                 : all.dense / replicas_of(Group::data_context) +
                                       all.expert / replicas_of(Group::expert_data);
        state.under = -1;
        const LayerPass pass = passes.optimizer(owned, all.dense + all.expert);
        state.wait.insert(state.wait.end(), state.gradients.begin(), state.gradients.end());
        instantiate(state, lane, pass, 0, -1, 0);
        optimizer_start_.push_back(0);
        for (std::size_t i = graph_.ops.size(); i-- > 0;)
            if (graph_.ops[i].lane == lane && graph_.ops[i].part == Part::optimizer)
                optimizer_start_.back() = static_cast<std::uint32_t>(i);
            else
                break;
        if (sharding != Sharding::none && !shards_parameters() &&
            !effective_overlap(step_).parameters)
            for (const auto& [group, count] :
                 tensor_by_tensor()
                     ? tensors_of(lane, layer_chunks)
                     : Tensors{{Group::data_context, all.dense}, {Group::expert_data, all.expert}})
                if (count > 0 && replicas_of(group) > 1)
                    data_exchange(state, lane, Collective::all_gather, group,
                                  count * parameter_bytes(), Phase::optimizer, 0, 0, {state.last});
    }

    /// Megatron's pipeline without chunks waits on the host for every message between stages, so no
    /// pass is launched while the one before it runs.
    void await_messages() {
        if (stages() < 2 || chunks() > 1 || runs_on_cpu(step_) ||
            !costs().waits_for_messages)
            return;
        for (const auto& slots : graph_.slots)
            for (std::size_t s = 0; s + 1 < slots.size(); ++s)
                for (std::uint32_t i = slots[s]; i < slots[s + 1]; ++i)
                    if (!graph_.ops[i].exchange) {
                        graph_.ops[i].awaited = true;
                        break;
                    }
    }

    /// An exchange of two stages that waits for all that their optimizers wait for, and that both
    /// wait for.
    void meet_before_optimizers(int one, int other, ExchangeDemand demand, Part part) {
        Op op;
        op.lane = static_cast<std::uint16_t>(one);
        op.phase = Phase::backward;
        op.stream = Stream::data;
        op.part = part;
        op.exchange = true;
        demand.stage = static_cast<std::uint16_t>(one);
        op.demand = exchange_id(demand);
        const auto id = static_cast<std::uint32_t>(graph_.ops.size());
        const std::uint32_t first = optimizer_start_[one], last = optimizer_start_[other];
        const std::size_t edges = graph_.edges.size();
        graph_.ops.push_back(op);
        for (std::size_t i = 0; i < edges; ++i)
            if (graph_.edges[i].after == first || graph_.edges[i].after == last)
                graph_.edges.push_back({graph_.edges[i].before, id});
        graph_.edges.push_back({id, first});
        graph_.edges.push_back({id, last});
    }

    /// First and last stage hold the same matrix: their gradients meet before the optimizer of
    /// both.
    void tied_embeddings() {
        if (!step_.model.tied_embeddings || ends_meet()) return;
        ExchangeDemand demand;
        demand.kind = Collective::all_reduce;
        demand.group = Group::embedding;
        demand.payload =
            Bytes{held(kEmbedding).dense * size_of(step_.schedule.main_gradients).value};
        meet_before_optimizers(0, stages() - 1, demand, Part::pipeline_comm);
    }

    /// DualPipe: a stage and the one across hold copies of the same layers, so the shards of their
    /// gradients are added up before both update theirs.
    void mirrored_gradients() {
        if (!schedule_is(Pipeline::dual_pipe)) return;
        const auto layer_chunks =
            stage_chunks(static_cast<int>(step_.model.layers.size()), step_.layout, step_.schedule);
        const bool sharded = step_.schedule.sharding != Sharding::none;
        for (int lane = 0; lane < stages() / 2; ++lane) {
            const Held all = held_by(lane, layer_chunks[lane]);
            ExchangeDemand demand;
            demand.kind = Collective::all_reduce;
            demand.group = Group::mirror;
            demand.payload = Bytes{(all.dense / (sharded ? replicas_of(Group::data_context) : 1) +
                                    all.expert / (sharded ? replicas_of(Group::expert_data) : 1)) *
                                   gradient_bytes()};
            meet_before_optimizers(lane, stages() - 1 - lane, demand, Part::data_comm);
        }
    }

    void notes() {
        if (runs_on_cpu(step_))
            graph_.assumptions.push_back(
                "on a CPU kernels run one after another and nothing overlaps with communication");
        if (runs_on_cpu(step_) && is_own_trainer(step_) && world_size(step_.layout) > 1)
            graph_.assumptions.push_back(
                step_.profile->stretches
                    ? "at every exchange ranks wait for the slowest of them, as the profile "
                      "measured "
                      "it on ranks of equal work; in the times of the exchanges"
                    : "ranks of equal work reach an exchange together: the profile has not "
                      "measured "
                      "how unsteadily they compute");
        if (step_.distinct_micro_batches > 0 && !load_index_.empty() &&
            static_cast<int>(load_index_.front().size()) < step_.schedule.num_micro_batches &&
            !routing_->same_everywhere())
            graph_.folded.push_back(
                "routings of " + std::to_string(load_index_.front().size()) +
                " micro-batches stand for those of all " +
                std::to_string(step_.schedule.num_micro_batches) + ", in turn");
        if (graph_.replicas > 1)
            graph_.folded.push_back(
                std::to_string(graph_.replicas) +
                " data-parallel replicas of each stage were simulated as one of " +
                std::to_string(graph_.width) + (graph_.width == 1 ? " rank" : " ranks") +
                "; their traffic was not folded");
        if (step_.schedule.dispatcher == Dispatcher::deduplicating &&
            step_.layout.expert_parallel_size > 1)
            graph_.assumptions.push_back(
                routing_->knows_tokens() && !step_.placement
                    ? "copies that the dispatcher saves are counted from the recorded tokens"
                    : "copies that the dispatcher saves are estimated from counts, as if a "
                      "token's choices were independent");
        if (step_.model.num_mtp_layers > 0)
            graph_.assumptions.push_back(
                "a multi-token-prediction module is priced as one more layer of the last kind with "
                "a projection and a loss");
        if (step_.layout.context_parallel_size > 1)
            graph_.assumptions.push_back(
                "context parallelism shares the causal attention evenly and gathers keys and "
                "values beside it");
        if (step_.placement && !moe_index_.empty()) {
            const auto layers = static_cast<int>(step_.placement->layers.size());
            graph_.assumptions.push_back(
                "experts lie as " + step_.placement->source + " says" +
                (layers < num_moe_layers(step_.model)
                     ? ", whose " + std::to_string(layers) + " MoE layers repeat in order"
                     : "") +
                "; a source splits its rows for an expert evenly among the copies, whose gradients "
                "are added up among all ranks of the expert group");
        }
        const Overlap overlap = effective_overlap(step_);
        if (turns() && step_.layout.expert_parallel_size > 1)
            graph_.assumptions.push_back(
                "the forward of one micro-batch and the backward of another take turns on a stage: "
                "each computes while the other's tokens travel");
        else if (overlap.experts && step_.layout.expert_parallel_size > 1)
            graph_.assumptions.push_back(
                "expert overlap hides the all-to-all behind the shared experts, or a stated share of "
                "it behind another micro-batch; with --communication-sms micro-batches take turns "
                "where the schedule pairs them (1f1b, interleaved), and what their kernels do not "
                "cover is waited for");
        if (std::any_of(graph_.ops.begin(), graph_.ops.end(),
                        [](const Op& op) { return op.exchange && op.beside; }))
            graph_.assumptions.push_back(
                "while they last, exchanges beside kernels take " +
                percent_text(graph_.expert_sm_share) + " (experts) and " +
                percent_text(graph_.collective_sm_share) +
                " (other collectives) of the SMs, and the memory bandwidth of the bytes they move");
        if (schedule_is(Pipeline::dual_pipe))
            graph_.assumptions.push_back(
                "the two copies of a layer add up their gradients before both update them");
    }
    static std::string percent_text(double share) {
        return exact_text(std::round(share * 1000) / 10) + " %";
    }

    const StepCase& step_;
    std::optional<SoftwareCosts> costs_;
    StepGraph graph_;
    std::optional<RoutingModel> routing_;
    std::vector<int> moe_index_;                         // [layers] its MoE layer, or −1
    std::vector<std::vector<std::int32_t>> load_index_;  // [moe layers][micro-batches or 1]
    std::map<std::pair<std::uint32_t, std::int32_t>, std::uint32_t> job_ids_;
    std::map<std::tuple<int, int, int, double, std::int32_t, bool>, std::uint32_t> exchange_ids_;
    std::vector<std::pair<LayerSpec, std::unique_ptr<Templates>>> templates_;
    std::optional<LayerPass> embedding_forward_, embedding_backward_, head_forward_, head_backward_,
        head_backward_input_, head_backward_weight_, mtp_forward_;
    std::array<std::optional<LayerPass>, 3> mtp_backward_;
    std::vector<std::uint32_t> forward_sends_, backward_sends_;  // [virtual stage, micro-batch]
    std::vector<std::pair<std::uint32_t, const std::uint32_t*>> receives_;
    std::vector<std::vector<std::uint32_t>> parameter_gathers_;  // [layers + 2]
    std::vector<std::uint32_t> optimizer_start_;                 // [lanes]
    Held waiting_;
};

}  // namespace

StepGraph build_step_graph(const StepCase& step) { return Builder(step).build(); }

}  // namespace moeplan
