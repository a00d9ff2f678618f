#include "simulator/passes/moe_pass.hpp"

#include <algorithm>

#include "model/stage_layers.hpp"
#include "simulator/overlap.hpp"
#include "simulator/passes/shared_experts.hpp"
#include "simulator/passes/tensor_parallel.hpp"

namespace moeplan {
namespace {

/// Of an index in the maps between tokens and rows.
constexpr double kIndexBytes = 4;
/// Of a router's logit: it computes in fp32.
constexpr double kLogitBytes = 4;

/// Frameworks' routers in fp32 (logits up-cast, soft-max, top-k, scattered back, balance loss) move
/// so many times what one pass over the logits does, forward and backward: 40 and 60 bytes an
/// expert in place of 12.
constexpr double kRouterForward = 40.0 / 12, kRouterBackward = 60.0 / 12;

/// Shapes of one rank's part of the layer.
struct MoeSizes {
    MoeSizes(const PassBuilder& pass, const MoeFeedForward& moe)
        : hidden(pass.step.model.hidden_size),
          heads(std::max(1, moe.num_moe_heads)),
          sub_token(hidden / heads),
          tokens(pass.shapes.routed_tokens),
          units(tokens * heads),
          rows(units * moe.top_k),
          inner(std::max<std::int64_t>(
              1, moe.expert_hidden_size / pass.step.layout.expert_tensor_parallel_size)),
          row_bytes(static_cast<double>(sub_token) * pass.shapes.element.value) {}
    std::int64_t hidden, heads;
    std::int64_t sub_token;  ///< width of a routed unit
    std::int64_t tokens;     ///< that this rank routes
    std::int64_t units;      ///< sub-tokens of them
    std::int64_t rows;       ///< a unit for each of its experts
    std::int64_t inner;      ///< width of an expert, of one expert-tensor-parallel rank
    double row_bytes;        ///< that travel to an expert and back
};

/// How rows reach their experts in this step.
struct ExpertWay {
    bool behind_shared = false, behind_micro_batch = false;  ///< what hides the exchange
    bool permutes_first = true;  ///< else rows are ordered by expert where they arrive
    bool sorts = false;          ///< chunks by source → by expert, after the exchange
    bool maps_rows = false;      ///< the maps from tokens to rows are priced
    double router_forward = 1, router_backward = 1, activation = 1;  ///< factors of bytes
};

ExpertWay expert_way(const PassBuilder& pass, const MoeFeedForward& moe) {
    const StepCase& step = pass.step;
    const SoftwareCosts& software = pass.software;
    const int ep = step.layout.expert_parallel_size;
    ExpertWay way;
    const Overlap overlap = effective_overlap(step);
    // Where micro-batches take turns (graph/lane_writer.hpp), that hides the exchanges.
    const bool stated_share = overlap.experts && !takes_turns(step.layout, step.schedule);
    way.behind_shared = (overlap.shared_experts || stated_share) && ep > 1 &&
                        moe.num_shared_experts > 0 && !shards_shared_experts(step, moe);
    // Megatron's combined forward and backward of two micro-batches: one computes while the other
    // exchanges.
    way.behind_micro_batch = stated_share && ep > 1 && !way.behind_shared && !software.counted &&
                             step.schedule.num_micro_batches > 1;
    way.permutes_first =
        ep == 1 || software.counted || step.schedule.dispatcher != Dispatcher::deduplicating;
    way.sorts = ep > 1 && way.permutes_first && software.sorts_chunks &&
                (moe.num_experts > ep || software.counted);
    way.maps_rows =
        is_own_trainer(step) && has_curve(*step.profile, "permutation_map", Precision::fp32);
    way.activation =
        software.elementwise_bytes *
        (moe.bias && num_gates(moe.activation) > 1 ? software.biased_activation_bytes : 1);
    way.router_forward = software.counted ? 1 : kRouterForward * software.router_bytes;
    way.router_backward = software.counted ? 1 : kRouterBackward * software.router_bytes;
    return way;
}

/// Dispatch or combine: rows travel, as far as no other micro-batch hides it in the open.
/// @param to_experts  dispatch and the gradients of combine, else the way back
void expert_exchange(PassBuilder& pass, const ExpertWay& way, double row_bytes, Part part,
                     bool to_experts) {
    const double hidden =
        way.behind_micro_batch ? std::min(1.0, pass.software.overlapped_share) : 0;
    if (hidden < 1)
        pass.exchange(Collective::all_to_all, Group::expert, row_bytes * (1 - hidden),
                      Stream::expert, part, true, to_experts);
    if (hidden > 0)
        pass.hidden(Collective::all_to_all, Group::expert, row_bytes * hidden, Stream::expert, part,
                    to_experts);
}

/// Rows on their way to experts, with the shared experts' kernels beside them.
template <class SharedExperts>
void exchange_behind(PassBuilder& pass, double row_bytes, Part part, SharedExperts shared_experts) {
    pass.beside(Collective::all_to_all, Group::expert, row_bytes, Stream::expert, part, true);
    pass.mark_routed();
    shared_experts();
    pass.join();
}

/// Expert tensor parallelism: every rank of the group gets all rows, and adds up the results.
void expert_tensor_exchange(PassBuilder& pass, const MoeSizes& sizes, Collective kind) {
    const int etp = pass.step.layout.expert_tensor_parallel_size;
    if (etp == 1) return;
    pass.exchange(kind, Group::expert_tensor,
                  static_cast<double>(sizes.rows) * etp * static_cast<double>(sizes.sub_token) *
                      pass.shapes.element.value,
                  Stream::tensor, Part::tensor_comm);
}

/// Norm, head projection and router; X-MoE's router reduces the width first.
void router_forward(PassBuilder& pass, const MoeFeedForward& moe, const MoeSizes& sizes,
                    const ExpertWay& way) {
    pass.name("router");
    pass.in(Module::router, true);
    pass.elementwise("rms_norm_forward", pass.shapes.split_tokens, sizes.hidden);
    if (sizes.heads > 1)
        pass.gemm(sizes.tokens, sizes.hidden, sizes.hidden);  // the split itself is a view
    if (moe.router_size > 0) {
        pass.gemm(sizes.units, moe.router_size, sizes.sub_token, false);
        pass.gemm(sizes.units, moe.num_experts, moe.router_size, false);
    } else {
        pass.gemm(sizes.units, moe.num_experts, sizes.sub_token, false);
    }
    pass.streamed("router_forward", sizes.units, moe.num_experts, kLogitBytes, way.router_forward);
    if (!moe.pool) return;
    pass.streamed("document_pool", sizes.units, moe.num_experts, kLogitBytes);
    if (is_own_trainer(pass.step))  // probabilities before the mask
        pass.streamed("router_forward", sizes.units, moe.num_experts, kLogitBytes);
}

void router_backward(PassBuilder& pass, const MoeFeedForward& moe, const MoeSizes& sizes,
                     const ExpertWay& way, BackwardPart which) {
    const bool input = which != BackwardPart::weight;
    pass.in(Module::router, false, share_of(which));
    if (input && moe.pool && !is_own_trainer(pass.step))
        pass.streamed("document_pool", sizes.units, moe.num_experts, kLogitBytes);
    if (input)
        pass.streamed("router_backward", sizes.units, moe.num_experts, kLogitBytes,
                      way.router_backward);
    if (moe.router_size > 0) {
        pass.gemm_backward(sizes.units, moe.num_experts, moe.router_size, which, false);
        pass.gemm_backward(sizes.units, moe.router_size, sizes.sub_token, which, false);
    } else {
        pass.gemm_backward(sizes.units, moe.num_experts, sizes.sub_token, which, false);
    }
    if (sizes.heads > 1) pass.gemm_backward(sizes.tokens, sizes.hidden, sizes.hidden, which);
}

/// Rows of the local experts, ordered by expert, through their networks.
void experts_forward(PassBuilder& pass, const MoeFeedForward& moe, const MoeSizes& sizes,
                     const ExpertWay& way) {
    const std::int64_t sub = sizes.sub_token;
    pass.name("experts");
    pass.in(Module::dispatch, true);
    if (way.maps_rows && pass.step.layout.expert_parallel_size > 1)  // of the rows that came
        pass.streamed_rows("permutation_map", 1, kIndexBytes / pass.shapes.element.value);
    if (way.sorts) pass.streamed_rows("permute_forward", sub);
    if (!way.permutes_first)
        pass.streamed_rows("permute_forward", sub, pass.software.permute_bytes);
    pass.in(Module::experts, true);
    pass.grouped(num_gates(moe.activation) * sizes.inner, sub);
    pass.streamed_rows(activation_kernel(moe.activation, true), sizes.inner, way.activation);
    if (moe.sub_norm) pass.streamed_rows("rms_norm_forward", sizes.inner);
    pass.grouped(sub, sizes.inner);
    pass.in(Module::dispatch, true);
    if (way.sorts) pass.streamed_rows("permute_forward", sub);
    if (!way.permutes_first)
        pass.streamed_rows("unpermute_forward", sub, pass.software.permute_bytes);
}

void experts_backward(PassBuilder& pass, const MoeFeedForward& moe, const MoeSizes& sizes,
                      const ExpertWay& way, BackwardPart which) {
    const std::int64_t sub = sizes.sub_token;
    const bool input = which != BackwardPart::weight;
    const double launched = share_of(which);
    const Recompute& recompute = pass.step.schedule.recompute;
    pass.name("experts backward");
    pass.in(Module::dispatch, false, launched);
    if (input && way.sorts) pass.streamed_rows("permute_backward", sub);
    if (input && !way.permutes_first)
        pass.streamed_rows("unpermute_backward", sub, pass.software.permute_bytes);
    pass.in(Module::experts, false, launched);
    if (input && recompute.modules.contains("moe_act") && !recompute.full)
        pass.streamed_rows(activation_kernel(moe.activation, true), sizes.inner, way.activation);
    pass.grouped_backward(sub, sizes.inner, which);
    if (input && moe.sub_norm) pass.streamed_rows("rms_norm_backward", sizes.inner);
    if (input)
        pass.streamed_rows(activation_kernel(moe.activation, false), sizes.inner, way.activation);
    pass.grouped_backward(num_gates(moe.activation) * sizes.inner, sub, which);
    pass.in(Module::dispatch, false, launched);
    if (input && way.sorts) pass.streamed_rows("permute_backward", sub);
    if (input && !way.permutes_first)
        pass.streamed_rows("permute_backward", sub, pass.software.permute_bytes);
}

}  // namespace

void moe_forward(PassBuilder& pass, const MoeFeedForward& moe, Phase phase) {
    pass.phase = phase;
    const MoeSizes sizes(pass, moe);
    const ExpertWay way = expert_way(pass, moe);
    const int ep = pass.step.layout.expert_parallel_size;
    pass.local_experts(static_cast<double>(moe.num_experts) / ep);
    router_forward(pass, moe, sizes, way);
    if (!way.behind_shared) shared_experts_forward(pass, moe);
    pass.name("router");
    pass.in(Module::preprocess, true);
    if (!pass.software.counted)  // the map
        pass.streamed("router_forward", sizes.units, moe.num_experts, 1);
    if (way.maps_rows) pass.streamed("permutation_map", sizes.rows, 1, kIndexBytes);
    pass.in(Module::dispatch, true);
    if (way.permutes_first)
        pass.streamed("permute_forward", sizes.rows, sizes.sub_token, 0,
                      pass.software.permute_bytes);
    // token counts, for the host to size what follows
    if (pass.software.sync == CountSync::before_dispatch) pass.sync();
    if (ep > 1) {
        pass.cut();
        if (way.behind_shared)
            exchange_behind(pass, sizes.row_bytes, Part::dispatch, [&] {
                pass.name("shared experts");
                shared_experts_forward(pass, moe);
            });
        else
            expert_exchange(pass, way, sizes.row_bytes, Part::dispatch, true);
    }
    expert_tensor_exchange(pass, sizes, Collective::all_gather);
    if (ep > 1 && pass.software.sync == CountSync::after_dispatch) pass.sync_first();
    experts_forward(pass, moe, sizes, way);
    expert_tensor_exchange(pass, sizes, Collective::reduce_scatter);
    if (ep > 1) expert_exchange(pass, way, sizes.row_bytes, Part::combine, false);
    pass.name("combine");
    if (way.permutes_first)
        pass.streamed("unpermute_forward", sizes.rows, sizes.sub_token, 0,
                      pass.software.permute_bytes);
    if (sizes.heads > 1) pass.gemm(sizes.tokens, sizes.hidden, sizes.hidden);  // merge projection
    pass.elementwise("residual_add", pass.shapes.split_tokens, sizes.hidden);
}

void moe_backward(PassBuilder& pass, const MoeFeedForward& moe, BackwardPart which) {
    pass.phase = Phase::backward;
    const MoeSizes sizes(pass, moe);
    const int ep = pass.step.layout.expert_parallel_size;
    const bool input = which != BackwardPart::weight;
    ExpertWay way = expert_way(pass, moe);
    if (which != BackwardPart::both) way.behind_shared = way.behind_micro_batch = false;
    pass.local_experts(static_cast<double>(moe.num_experts) / ep);
    const Recompute& recompute = pass.step.schedule.recompute;
    if (input && recompute.modules.contains("moe") && !recompute.full)
        moe_forward(pass, moe, Phase::recompute);
    pass.phase = Phase::backward;
    pass.name("combine backward");
    pass.in(Module::dispatch, false, share_of(which));
    if (sizes.heads > 1) pass.gemm_backward(sizes.tokens, sizes.hidden, sizes.hidden, which);
    if (input && way.permutes_first)
        pass.streamed("unpermute_backward", sizes.rows, sizes.sub_token, 0,
                      pass.software.permute_bytes);
    if (input && ep > 1) {
        if (way.behind_shared)
            exchange_behind(pass, sizes.row_bytes, Part::combine, [&] {
                pass.name("shared experts backward");
                shared_experts_backward(pass, moe, which);
            });
        else
            expert_exchange(pass, way, sizes.row_bytes, Part::combine, true);
    }
    if (input) expert_tensor_exchange(pass, sizes, Collective::all_gather);
    experts_backward(pass, moe, sizes, way, which);
    if (input) expert_tensor_exchange(pass, sizes, Collective::reduce_scatter);
    if (input && ep > 1) expert_exchange(pass, way, sizes.row_bytes, Part::dispatch, false);
    pass.name("router backward");
    if (input && way.permutes_first)
        pass.streamed("permute_backward", sizes.rows, sizes.sub_token, 0,
                      pass.software.permute_bytes);
    if (!way.behind_shared) {
        shared_experts_backward(pass, moe, which);
        pass.name("router backward");
    }
    router_backward(pass, moe, sizes, way, which);
    if (input) norm_backward(pass);
}

}  // namespace moeplan
