#include "simulator/layer_passes.hpp"

#include <algorithm>
#include <cassert>

#include "model/kernel_work.hpp"

namespace moeplan {

bool runs_on_cpu(const StepCase& step) { return step.profile && step.profile->host_overlap <= 0; }
Overlap effective_overlap(const StepCase& step) {
    if (!runs_on_cpu(step)) return step.schedule.overlap;
    Overlap none = step.schedule.overlap;
    none.gradients = none.parameters = none.tensor = none.experts = false;
    return none;
}

LayerShapes::LayerShapes(const StepCase& step) {
    const auto& schedule = step.schedule;
    const std::int64_t tp = step.layout.tensor_parallel_size,
                       cp = step.layout.context_parallel_size;
    sequences = schedule.micro_batch_size;
    tokens = std::max<std::int64_t>(1, sequences * schedule.sequence_length / cp);
    routed_tokens = std::max<std::int64_t>(1, tokens / tp);
    split_tokens = schedule.sequence_parallel ? routed_tokens : tokens;
    // activations stay in two bytes under every narrower recipe
    element = Bytes{schedule.precision == Precision::fp32 ? 4.0 : 2.0};
}

/// Our own trainer (model/layers) projects queries, keys and values apart, adds residual gradients
/// inside the norms' kernels, copies a token into its sub-tokens and zeroes gradients before every
/// step.
bool is_own_trainer(const StepCase& step) { return step.schedule.software.framework == "moeplan"; }

LayerLaunches layer_launches(const StepCase& step, bool forward) {
    // Counts of PyTorch training stacks (docs/accuracy.md): a dense layer 22/40, tensor parallelism
    // 6/8 more, an MoE layer 120/200 more with an all-to-all dispatcher; fp8 recipes × 1.3; padded
    // token-drop × 0.4; CUDA graphs × 0.3 dense, × 0.75 MoE.
    const auto& schedule = step.schedule;
    LayerLaunches launches;
    if (schedule.software.framework == "moeplan") {
        launches.counted = true;
        return launches;
    }
    launches.dense = forward ? 22 : 40;
    launches.moe = forward ? 120 : 200;
    if (step.layout.tensor_parallel_size > 1) launches.dense += forward ? 6 : 8;
    if (schedule.precision == Precision::fp8 || schedule.precision == Precision::mxfp8 ||
        schedule.precision == Precision::nvfp4)
        launches.dense *= 1.3, launches.moe *= 1.3;
    if (const auto* synthetic = std::get_if<SyntheticRouting>(&step.routing);
        synthetic && synthetic->kind == "token_drop")
        launches.moe *= 0.4;
    const std::string& scope = schedule.software.graph_scope;
    if (scope == "full")
        launches.dense = launches.moe = 1;
    else if (!scope.empty() && scope != "none")
        launches.dense *= 0.3, launches.moe *= 0.75;
    return launches;
}

/// Collects kernels until an exchange cuts them.
class LayerPasses::Pass {
  public:
    Pass(const StepCase& step, const LayerShapes& shapes, std::vector<Work>& works)
        : step_(step), shapes_(shapes), works_(works) {}

    Phase phase = Phase::forward;
    Part part = Part::compute;

    void name(std::string what) {
        if (open_.what.empty()) open_.what = std::move(what);
    }
    void sync() { ++open_.syncs; }
    void launches(double count) { launches_ += count; }

    void add(KernelCall call, bool routed = false) {
        open_.calls.push_back(std::move(call));
        routed_ = routed_ || routed;
    }
    /// [m, k] × [k, n]; an empty product is left out
    void gemm(std::int64_t m, std::int64_t n, std::int64_t k, bool narrow = true) {
        if (m <= 0 || n <= 0 || k <= 0) return;
        if (narrow && casts())  // inputs are cast: read two bytes, write one, and its transpose
            add({"copy", Streamed{Bytes{5.0 * static_cast<double>(m) * static_cast<double>(k)}}});
        add({"gemm", Gemm{m, n, k}, 1, narrow});
    }
    void gemm_backward(std::int64_t m, std::int64_t n, std::int64_t k, BackwardPart which,
                       bool narrow = true) {
        if (m <= 0 || n <= 0 || k <= 0) return;
        if (narrow && casts() && which != BackwardPart::weight)
            add({"copy", Streamed{Bytes{5.0 * static_cast<double>(m) * static_cast<double>(n)}}});
        if (which != BackwardPart::weight) add({"gemm_input_gradient", Gemm{m, n, k}, 1, narrow});
        if (which != BackwardPart::input) add({"gemm_weight_gradient", Gemm{m, n, k}, 1, narrow});
    }
    void streamed(std::string_view kernel, std::int64_t rows, std::int64_t width,
                  double element = 0) {
        if (rows <= 0 || width <= 0) return;
        add({kernel,
             Streamed{streamed_bytes(kernel, static_cast<double>(rows) * static_cast<double>(width),
                                     Bytes{element > 0 ? element : shapes_.element.value}),
                      width}});
    }
    /// per row that the rank's experts received
    void grouped(std::int64_t n, std::int64_t k) {
        add({"grouped_gemm", GroupedGemm{{}, n, k}, 1, true, true}, true);
    }
    void grouped_backward(std::int64_t n, std::int64_t k, BackwardPart which) {
        if (which != BackwardPart::weight)
            add({"grouped_gemm_input_gradient", GroupedGemm{{}, n, k}, 1, true, true}, true);
        if (which != BackwardPart::input)
            add({"grouped_gemm_weight_gradient", GroupedGemm{{}, n, k}, 1, true, true}, true);
    }
    void streamed_rows(std::string_view kernel, std::int64_t width) {
        if (width > 0)
            add({kernel,
                 Streamed{streamed_bytes(kernel, static_cast<double>(width), shapes_.element),
                          width},
                 1, false, true},
                true);
    }
    bool casts() const {
        const Precision p = step_.schedule.precision;
        return p == Precision::fp8 || p == Precision::mxfp8 || p == Precision::nvfp4;
    }

    /// Ends the open work. @return its item, or the last item if nothing was open
    int cut() {
        if (open_.calls.empty() && open_.syncs == 0) return last_;
        PassItem item;
        open_.part = part;
        item.work = static_cast<std::uint32_t>(works_.size());
        item.part = part;
        item.phase = phase;
        item.routed = routed_;
        item.after = next_;
        item.under = under_;
        works_.push_back(std::move(open_));
        open_ = {};
        routed_ = false;
        under_ = -1;
        made_.push_back(item.work);
        return push(item);
    }
    /// An exchange that the following kernels wait for.
    int exchange(Collective kind, Group group, double bytes, Stream stream, Part of,
                 bool routed = false, bool to_experts = true) {
        cut();
        return push(exchange_item(kind, group, bytes, stream, of, routed, to_experts));
    }
    /// An exchange that runs beside the following kernels until join(). Without overlap it is
    /// waited for at once.
    void beside(Collective kind, Group group, double bytes, Stream stream, Part of, bool overlap) {
        if (!overlap) {
            exchange(kind, group, bytes, stream, of);
            return;
        }
        cut();
        const auto before = next_;
        const int id = push(exchange_item(kind, group, bytes, stream, of, false, true));
        next_ = before;
        under_ = id;
        open_exchanges_.push_back(id);
    }
    /// The exchange just begun depends on where the tokens went.
    void mark_routed() { pass_.items.back().routed = true; }
    void join() {
        if (open_exchanges_.empty()) return;
        cut();
        for (const int id : open_exchanges_) next_.push_back(id);
        open_exchanges_.clear();
    }

    LayerPass finish(const LayerLaunches& limits) {
        cut();
        for (const int id : open_exchanges_) next_.push_back(id);
        std::size_t calls = 0;
        for (const auto id : made_) calls += works_[id].calls.size();
        for (const auto id : made_)
            works_[id].launches = limits.counted || calls == 0
                                      ? static_cast<double>(works_[id].calls.size())
                                      : launches_ * static_cast<double>(works_[id].calls.size()) /
                                            static_cast<double>(calls);
        return std::move(pass_);
    }

  private:
    PassItem exchange_item(Collective kind, Group group, double bytes, Stream stream, Part of,
                           bool routed, bool to_experts) {
        PassItem item;
        item.exchange = true;
        item.demand.kind = kind;
        item.demand.group = group;
        item.demand.payload = Bytes{bytes};
        item.demand.to_experts = to_experts;
        item.stream = stream;
        item.part = of;
        item.phase = phase;
        item.routed = routed;
        item.after = next_;
        return item;
    }
    int push(PassItem item) {
        pass_.items.push_back(std::move(item));
        last_ = static_cast<int>(pass_.items.size()) - 1;
        next_ = {last_};
        return last_;
    }

    const StepCase& step_;
    const LayerShapes& shapes_;
    std::vector<Work>& works_;
    LayerPass pass_;
    Work open_;
    bool routed_ = false;
    int last_ = -1, under_ = -1;
    double launches_ = 0;
    std::vector<int> next_ = {-1}, open_exchanges_;
    std::vector<std::uint32_t> made_;
};

namespace {

std::string activation_kernel(Activation activation, bool forward) {
    const std::string name = activation == Activation::swiglu ? "swiglu"
                             : activation == Activation::gelu ? "gelu"
                                                              : "relu";
    return name + (forward ? "_forward" : "_backward");
}
/// Names in streamed_kernels() live as long as the program: calls keep views of them.
std::string_view stored(const std::string& name) {
    for (const auto& row : streamed_kernels())
        if (row.name == name) return row.name;
    assert(!"no such streamed kernel");
    return {};
}
std::string_view activation_name(Activation activation, bool forward) {
    return stored(activation_kernel(activation, forward));
}
std::int64_t gates(Activation activation) { return activation == Activation::swiglu ? 2 : 1; }

/// Products of an attention layer, sharded over heads.
struct AttentionSizes {
    std::int64_t query_heads = 0, kv_heads = 0, head = 0, rope_items = 0, norm_items = 0,
                 output_width = 0;
    std::vector<std::pair<std::int64_t, std::int64_t>>
        inputs;                    ///< (n, k) of the products before the core
    std::int64_t latent_norm = 0;  ///< RMSNorm width on the compressed vectors, not sharded
    double kv_width = 0;           ///< of keys and values that context parallelism gathers
};
/// @param fused  one product makes queries, keys and values
AttentionSizes sizes_of(const Attention& attention, std::int64_t hidden, std::int64_t tp,
                        bool fused) {
    AttentionSizes out;
    if (const auto* gqa = std::get_if<GroupedQueryAttention>(&attention)) {
        out.query_heads = std::max<std::int64_t>(1, gqa->num_attention_heads / tp);
        out.kv_heads = std::max<std::int64_t>(1, gqa->num_kv_heads / tp);
        out.head = gqa->head_size;
        if (fused)
            out.inputs = {{(out.query_heads + 2 * out.kv_heads) * gqa->head_size, hidden}};
        else
            out.inputs = {{out.query_heads * gqa->head_size, hidden},
                          {out.kv_heads * gqa->head_size, hidden},
                          {out.kv_heads * gqa->head_size, hidden}};
        out.rope_items = (out.query_heads + out.kv_heads) * gqa->head_size;
        if (gqa->qk_norm) out.norm_items = out.rope_items;
        out.output_width = out.query_heads * gqa->head_size;
        out.kv_width = 2.0 * static_cast<double>(out.kv_heads * gqa->head_size);
        return out;
    }
    const auto& mla = std::get<LatentAttention>(attention);
    out.query_heads = out.kv_heads = std::max<std::int64_t>(1, mla.num_attention_heads / tp);
    const std::int64_t query = mla.nope_size + mla.rope_size;
    out.head = (query + mla.value_size) /
               2;  // the core multiplies s × query and s × value: their mean has the same work
    if (mla.q_lora_rank > 0) {
        out.inputs = {{mla.q_lora_rank, hidden}, {out.query_heads * query, mla.q_lora_rank}};
        out.latent_norm += mla.q_lora_rank;
    } else {
        out.inputs = {{out.query_heads * query, hidden}};
    }
    out.inputs.push_back({mla.kv_lora_rank + mla.rope_size, hidden});
    out.inputs.push_back({out.query_heads * (mla.nope_size + mla.value_size), mla.kv_lora_rank});
    out.latent_norm += mla.kv_lora_rank;
    out.rope_items = out.query_heads * mla.rope_size + mla.rope_size;
    out.output_width = out.query_heads * mla.value_size;
    out.kv_width = static_cast<double>(mla.kv_lora_rank + mla.rope_size);
    return out;
}

}  // namespace

// -------------------------------------------------------------------------------------------------------
// attention

void LayerPasses::attention_forward(Pass& pass, const LayerSpec& layer, Phase phase) {
    pass.phase = phase;
    const double d = step_.model.hidden_size, el = shapes_.element.value;
    const std::int64_t tp = step_.layout.tensor_parallel_size,
                       cp = step_.layout.context_parallel_size, T = shapes_.tokens;
    const AttentionSizes a =
        sizes_of(layer.attention, step_.model.hidden_size, tp, !is_own_trainer(step_));
    const bool gathers = step_.schedule.sequence_parallel && tp > 1;
    pass.name("attention");
    pass.streamed("rms_norm_forward", shapes_.split_tokens, step_.model.hidden_size);
    if (gathers)
        pass.beside(Collective::all_gather, Group::tensor, static_cast<double>(T) * d * el,
                    Stream::tensor, Part::tensor_comm, effective_overlap(step_).tensor);
    pass.name("attention");
    for (const auto& [n, k] : a.inputs) pass.gemm(T, n, k);
    pass.join();
    pass.name("attention");
    pass.streamed("rms_norm_forward", T * a.norm_items / std::max<std::int64_t>(1, a.head), a.head);
    pass.streamed("rms_norm_forward", T, a.latent_norm);
    pass.streamed("rope_forward", T * a.rope_items / std::max<std::int64_t>(1, a.head), a.head);
    if (cp > 1)
        pass.beside(Collective::all_gather, Group::context,
                    static_cast<double>(T * cp) * a.kv_width * el, Stream::context,
                    Part::context_comm, true);
    pass.name("attention");
    pass.add({"attention_forward",
              AttentionShape{shapes_.sequences, step_.schedule.sequence_length, a.query_heads,
                             a.kv_heads, a.head, layer.window},
              1.0 / static_cast<double>(cp)});
    if (cp > 1) pass.join();
    pass.name("attention");
    const auto output = [&] { pass.gemm(T, step_.model.hidden_size, a.output_width); };
    output();
    if (tp > 1)
        pass.exchange(gathers ? Collective::reduce_scatter : Collective::all_reduce, Group::tensor,
                      static_cast<double>(T) * d * el, Stream::tensor, Part::tensor_comm);
    pass.streamed("residual_add", shapes_.split_tokens, step_.model.hidden_size);
}

void LayerPasses::attention_backward(Pass& pass, const LayerSpec& layer, BackwardPart which) {
    pass.phase = Phase::backward;
    const double d = step_.model.hidden_size, el = shapes_.element.value;
    const std::int64_t tp = step_.layout.tensor_parallel_size,
                       cp = step_.layout.context_parallel_size, T = shapes_.tokens;
    const AttentionSizes a =
        sizes_of(layer.attention, step_.model.hidden_size, tp, !is_own_trainer(step_));
    const bool gathers = step_.schedule.sequence_parallel && tp > 1;
    const bool input = which != BackwardPart::weight;
    pass.name("attention backward");
    if (gathers && input)
        pass.exchange(Collective::all_gather, Group::tensor, static_cast<double>(T) * d * el,
                      Stream::tensor, Part::tensor_comm);
    pass.name("attention backward");
    pass.gemm_backward(T, step_.model.hidden_size, a.output_width, which);
    if (input) {
        if (!step_.schedule.recompute.full &&
            step_.schedule.recompute.modules.contains("core_attn")) {
            pass.phase = Phase::recompute;
            pass.add({"attention_forward",
                      AttentionShape{shapes_.sequences, step_.schedule.sequence_length,
                                     a.query_heads, a.kv_heads, a.head, layer.window},
                      1.0 / static_cast<double>(cp)});
            pass.phase = Phase::backward;
        }
        if (cp > 1)
            pass.beside(Collective::reduce_scatter, Group::context,
                        static_cast<double>(T * cp) * a.kv_width * el * 2, Stream::context,
                        Part::context_comm, true);
        pass.name("attention backward");
        pass.add({"attention_backward",
                  AttentionShape{shapes_.sequences, step_.schedule.sequence_length, a.query_heads,
                                 a.kv_heads, a.head, layer.window},
                  1.0 / static_cast<double>(cp)});
        if (cp > 1) pass.join();
        pass.name("attention backward");
        pass.streamed("rope_backward", T * a.rope_items / std::max<std::int64_t>(1, a.head),
                      a.head);
        pass.streamed("rms_norm_backward", T * a.norm_items / std::max<std::int64_t>(1, a.head),
                      a.head);
        pass.streamed("rms_norm_backward", T, a.latent_norm);
    }
    // the gathered input is needed again for the weights' gradients: it travels beside the input's
    // gradient
    if (gathers && which != BackwardPart::input)
        pass.beside(Collective::all_gather, Group::tensor, static_cast<double>(T) * d * el,
                    Stream::tensor, Part::tensor_comm, true);
    pass.name("attention backward");
    for (const auto& [n, k] : a.inputs) pass.gemm_backward(T, n, k, which);
    pass.join();
    if (!input) return;
    if (tp > 1)
        pass.exchange(gathers ? Collective::reduce_scatter : Collective::all_reduce, Group::tensor,
                      static_cast<double>(T) * d * el, Stream::tensor, Part::tensor_comm);
    pass.name("attention backward");
    if (step_.schedule.recompute.modules.contains("layernorm"))
        pass.streamed("rms_norm_forward", 2 * shapes_.split_tokens, step_.model.hidden_size);
    pass.streamed("rms_norm_backward", shapes_.split_tokens, step_.model.hidden_size);
    if (!is_own_trainer(step_))
        pass.streamed("residual_add", shapes_.split_tokens, step_.model.hidden_size);
}

// -------------------------------------------------------------------------------------------------
// dense feed-forward

void LayerPasses::dense_forward(Pass& pass, const DenseFeedForward& ffn, Phase phase) {
    pass.phase = phase;
    const double d = step_.model.hidden_size, el = shapes_.element.value;
    const std::int64_t tp = step_.layout.tensor_parallel_size, T = shapes_.tokens,
                       hidden = step_.model.hidden_size;
    const std::int64_t f = std::max<std::int64_t>(1, ffn.dense_hidden_size / tp);
    const bool gathers = step_.schedule.sequence_parallel && tp > 1;
    pass.streamed("rms_norm_forward", shapes_.split_tokens, step_.model.hidden_size);
    if (gathers)
        pass.beside(Collective::all_gather, Group::tensor, static_cast<double>(T) * d * el,
                    Stream::tensor, Part::tensor_comm, effective_overlap(step_).tensor);
    pass.name("feed-forward");
    pass.gemm(T, gates(ffn.activation) * f, hidden);
    pass.join();
    pass.name("feed-forward");
    pass.streamed(activation_name(ffn.activation, true), T, f);
    pass.gemm(T, hidden, f);
    if (tp > 1)
        pass.exchange(gathers ? Collective::reduce_scatter : Collective::all_reduce, Group::tensor,
                      static_cast<double>(T) * d * el, Stream::tensor, Part::tensor_comm);
    pass.name("feed-forward");
    pass.streamed("residual_add", shapes_.split_tokens, step_.model.hidden_size);
}

void LayerPasses::dense_backward(Pass& pass, const DenseFeedForward& ffn, BackwardPart which) {
    pass.phase = Phase::backward;
    const double d = step_.model.hidden_size, el = shapes_.element.value;
    const std::int64_t tp = step_.layout.tensor_parallel_size, T = shapes_.tokens,
                       hidden = step_.model.hidden_size;
    const std::int64_t f = std::max<std::int64_t>(1, ffn.dense_hidden_size / tp);
    const bool gathers = step_.schedule.sequence_parallel && tp > 1,
               input = which != BackwardPart::weight;
    const auto& modules = step_.schedule.recompute.modules;
    pass.name("feed-forward backward");
    if (gathers && input)
        pass.exchange(Collective::all_gather, Group::tensor, static_cast<double>(T) * d * el,
                      Stream::tensor, Part::tensor_comm);
    pass.name("feed-forward backward");
    if (input && modules.contains("mlp") && !step_.schedule.recompute.full) {
        pass.gemm(T, gates(ffn.activation) * f, hidden);
        pass.streamed(activation_name(ffn.activation, true), T, f);
    }
    pass.gemm_backward(T, hidden, f, which);
    if (input) pass.streamed(activation_name(ffn.activation, false), T, f);
    if (gathers && which != BackwardPart::input)
        pass.beside(Collective::all_gather, Group::tensor, static_cast<double>(T) * d * el,
                    Stream::tensor, Part::tensor_comm, true);
    pass.name("feed-forward backward");
    pass.gemm_backward(T, gates(ffn.activation) * f, hidden, which);
    pass.join();
    if (!input) return;
    if (tp > 1)
        pass.exchange(gathers ? Collective::reduce_scatter : Collective::all_reduce, Group::tensor,
                      static_cast<double>(T) * d * el, Stream::tensor, Part::tensor_comm);
    pass.name("feed-forward backward");
    pass.streamed("rms_norm_backward", shapes_.split_tokens, step_.model.hidden_size);
    if (!is_own_trainer(step_))
        pass.streamed("residual_add", shapes_.split_tokens, step_.model.hidden_size);
}

// ------------------------------------------------------------------------------------------------
// mixture of experts

void LayerPasses::shared_forward(Pass& pass, const MoeFeedForward& moe) {
    const std::int64_t width =
        static_cast<std::int64_t>(moe.num_shared_experts) * moe.shared_expert_hidden_size;
    if (width <= 0) return;
    const std::int64_t tp = step_.layout.tensor_parallel_size, T = shapes_.tokens,
                       hidden = step_.model.hidden_size, f = std::max<std::int64_t>(1, width / tp);
    pass.gemm(T, gates(moe.activation) * f, hidden);
    pass.streamed(activation_name(moe.activation, true), T, f);
    pass.gemm(T, hidden, f);
    pass.streamed("residual_add", T, hidden);
}
void LayerPasses::shared_backward(Pass& pass, const MoeFeedForward& moe, BackwardPart which) {
    const std::int64_t width =
        static_cast<std::int64_t>(moe.num_shared_experts) * moe.shared_expert_hidden_size;
    if (width <= 0) return;
    const std::int64_t tp = step_.layout.tensor_parallel_size, T = shapes_.tokens,
                       hidden = step_.model.hidden_size, f = std::max<std::int64_t>(1, width / tp);
    if (which != BackwardPart::weight &&
        step_.schedule.recompute.modules.contains("shared_experts") &&
        !step_.schedule.recompute.full)
        shared_forward(pass, moe);
    pass.gemm_backward(T, hidden, f, which);
    if (which != BackwardPart::weight) pass.streamed(activation_name(moe.activation, false), T, f);
    pass.gemm_backward(T, gates(moe.activation) * f, hidden, which);
}

void LayerPasses::moe_forward(Pass& pass, const MoeFeedForward& moe, Phase phase) {
    pass.phase = phase;
    const double d = step_.model.hidden_size, el = shapes_.element.value;
    const std::int64_t hidden = step_.model.hidden_size, heads = std::max(1, moe.num_moe_heads),
                       sub = hidden / heads;
    const std::int64_t tokens = shapes_.routed_tokens, units = tokens * heads,
                       rows = units * moe.top_k;
    const int tp = step_.layout.tensor_parallel_size, ep = step_.layout.expert_parallel_size,
              etp = step_.layout.expert_tensor_parallel_size;
    const std::int64_t f = std::max<std::int64_t>(1, moe.expert_hidden_size / etp);
    const bool shared_sharded = tp > 1 && moe.num_shared_experts > 0;
    pass.name("router");
    pass.streamed("rms_norm_forward", shapes_.split_tokens, step_.model.hidden_size);
    if (heads > 1)
        pass.gemm(tokens, hidden, hidden);  // head projection; the split is a view
    else if (is_own_trainer(step_))
        pass.streamed("copy", tokens, hidden);
    if (moe.router_size > 0) {
        pass.gemm(units, moe.router_size, sub, false);
        pass.gemm(units, moe.num_experts, moe.router_size, false);
    } else {
        pass.gemm(units, moe.num_experts, sub, false);
    }
    pass.streamed("router_forward", units, moe.num_experts, 4);  // router in fp32
    if (moe.pool) {
        pass.streamed("document_pool", units, moe.num_experts, 4);
        if (is_own_trainer(step_))
            pass.streamed("router_forward", units, moe.num_experts,
                          4);  // probabilities before the mask
    }
    const bool hide =
        effective_overlap(step_).experts && ep > 1 && moe.num_shared_experts > 0 && !shared_sharded;
    if (!hide) {
        if (shared_sharded && step_.schedule.sequence_parallel)
            pass.exchange(Collective::all_gather, Group::tensor,
                          static_cast<double>(shapes_.tokens) * d * el, Stream::tensor,
                          Part::tensor_comm);
        shared_forward(pass, moe);
        if (shared_sharded)
            pass.exchange(step_.schedule.sequence_parallel ? Collective::reduce_scatter
                                                           : Collective::all_reduce,
                          Group::tensor, static_cast<double>(shapes_.tokens) * d * el,
                          Stream::tensor, Part::tensor_comm);
    }
    pass.streamed("permute_forward", rows, sub);
    pass.sync();  // token counts, for the host to size what follows
    if (ep > 1) {
        pass.cut();
        if (hide) {
            pass.beside(Collective::all_to_all, Group::expert, static_cast<double>(sub) * el,
                        Stream::expert, Part::dispatch, true);
            pass.mark_routed();
            pass.name("shared experts");
            shared_forward(pass, moe);
            pass.join();
        } else {
            pass.exchange(Collective::all_to_all, Group::expert, static_cast<double>(sub) * el,
                          Stream::expert, Part::dispatch, true, true);
        }
    }
    if (etp > 1)
        pass.exchange(Collective::all_gather, Group::expert_tensor,
                      static_cast<double>(rows) * etp * sub * el, Stream::tensor,
                      Part::tensor_comm);
    pass.name("experts");
    if (ep > 1 && (moe.num_experts > ep || is_own_trainer(step_)))
        pass.streamed_rows("permute_forward", sub);  // chunks by source → by expert
    pass.grouped(gates(moe.activation) * f, sub);
    pass.streamed_rows(activation_name(moe.activation, true), f);
    if (moe.sub_norm) pass.streamed_rows("rms_norm_forward", f);
    pass.grouped(sub, f);
    if (ep > 1 && (moe.num_experts > ep || is_own_trainer(step_)))
        pass.streamed_rows("permute_forward", sub);
    if (etp > 1)
        pass.exchange(Collective::reduce_scatter, Group::expert_tensor,
                      static_cast<double>(rows) * etp * sub * el, Stream::tensor,
                      Part::tensor_comm);
    if (ep > 1)
        pass.exchange(Collective::all_to_all, Group::expert, static_cast<double>(sub) * el,
                      Stream::expert, Part::combine, true, false);
    pass.name("combine");
    pass.streamed("unpermute_forward", rows, sub);
    if (heads > 1) pass.gemm(tokens, hidden, hidden);  // merge projection
    pass.streamed("residual_add", shapes_.split_tokens, step_.model.hidden_size);
}

void LayerPasses::moe_backward(Pass& pass, const MoeFeedForward& moe, BackwardPart which) {
    pass.phase = Phase::backward;
    const double d = step_.model.hidden_size, el = shapes_.element.value;
    const std::int64_t hidden = step_.model.hidden_size, heads = std::max(1, moe.num_moe_heads),
                       sub = hidden / heads;
    const std::int64_t tokens = shapes_.routed_tokens, units = tokens * heads,
                       rows = units * moe.top_k;
    const int tp = step_.layout.tensor_parallel_size, ep = step_.layout.expert_parallel_size,
              etp = step_.layout.expert_tensor_parallel_size;
    const std::int64_t f = std::max<std::int64_t>(1, moe.expert_hidden_size / etp);
    const bool input = which != BackwardPart::weight;
    const bool shared_sharded = tp > 1 && moe.num_shared_experts > 0;
    const bool hide = effective_overlap(step_).experts && ep > 1 && moe.num_shared_experts > 0 &&
                      !shared_sharded && which == BackwardPart::both;
    const auto& modules = step_.schedule.recompute.modules;
    if (input && modules.contains("moe") && !step_.schedule.recompute.full)
        moe_forward(pass, moe, Phase::recompute);
    pass.phase = Phase::backward;
    pass.name("combine backward");
    if (heads > 1)
        pass.gemm_backward(tokens, hidden, hidden, which);
    else if (input && is_own_trainer(step_))
        pass.streamed("copy", tokens, hidden);
    if (input) pass.streamed("unpermute_backward", rows, sub);
    if (input && ep > 1) {
        if (hide) {
            pass.beside(Collective::all_to_all, Group::expert, static_cast<double>(sub) * el,
                        Stream::expert, Part::combine, true);
            pass.mark_routed();
            pass.name("shared experts backward");
            shared_backward(pass, moe, which);
            pass.join();
        } else {
            pass.exchange(Collective::all_to_all, Group::expert, static_cast<double>(sub) * el,
                          Stream::expert, Part::combine, true, true);
        }
    }
    if (etp > 1 && input)
        pass.exchange(Collective::all_gather, Group::expert_tensor,
                      static_cast<double>(rows) * etp * sub * el, Stream::tensor,
                      Part::tensor_comm);
    pass.name("experts backward");
    const bool sorts = ep > 1 && (moe.num_experts > ep || is_own_trainer(step_));
    if (input && sorts) pass.streamed_rows("permute_backward", sub);
    if (input && modules.contains("moe_act") && !step_.schedule.recompute.full)
        pass.streamed_rows(activation_name(moe.activation, true), f);
    pass.grouped_backward(sub, f, which);
    if (input && moe.sub_norm) pass.streamed_rows("rms_norm_backward", f);
    if (input) pass.streamed_rows(activation_name(moe.activation, false), f);
    pass.grouped_backward(gates(moe.activation) * f, sub, which);
    if (input && sorts) pass.streamed_rows("permute_backward", sub);
    if (etp > 1 && input)
        pass.exchange(Collective::reduce_scatter, Group::expert_tensor,
                      static_cast<double>(rows) * etp * sub * el, Stream::tensor,
                      Part::tensor_comm);
    if (input && ep > 1)
        pass.exchange(Collective::all_to_all, Group::expert, static_cast<double>(sub) * el,
                      Stream::expert, Part::dispatch, true, false);
    pass.name("router backward");
    if (input) pass.streamed("permute_backward", rows, sub);
    if (!hide) {
        const auto whole = static_cast<double>(shapes_.tokens) * d * el;
        if (shared_sharded && input && step_.schedule.sequence_parallel)
            pass.exchange(Collective::all_gather, Group::tensor, whole, Stream::tensor,
                          Part::tensor_comm);
        shared_backward(pass, moe, which);
        if (shared_sharded && input)
            pass.exchange(step_.schedule.sequence_parallel ? Collective::reduce_scatter
                                                           : Collective::all_reduce,
                          Group::tensor, whole, Stream::tensor, Part::tensor_comm);
        pass.name("router backward");
    }
    if (input && moe.pool && !is_own_trainer(step_))
        pass.streamed("document_pool", units, moe.num_experts, 4);
    if (input) pass.streamed("router_backward", units, moe.num_experts, 4);
    if (moe.router_size > 0) {
        pass.gemm_backward(units, moe.num_experts, moe.router_size, which, false);
        pass.gemm_backward(units, moe.router_size, sub, which, false);
    } else {
        pass.gemm_backward(units, moe.num_experts, sub, which, false);
    }
    if (heads > 1) pass.gemm_backward(tokens, hidden, hidden, which);
    if (input) {
        pass.streamed("rms_norm_backward", shapes_.split_tokens, step_.model.hidden_size);
        if (!is_own_trainer(step_))
            pass.streamed("residual_add", shapes_.split_tokens, step_.model.hidden_size);
    }
}

// ----------------------------------------------------------------------------------------------------------
// passes

LayerPass LayerPasses::forward(const LayerSpec& layer) {
    Pass pass(step_, shapes_, works_);
    const LayerLaunches launches = layer_launches(step_, true);
    attention_forward(pass, layer, Phase::forward);
    pass.launches(launches.dense);
    if (const auto* moe = std::get_if<MoeFeedForward>(&layer.feed_forward)) {
        moe_forward(pass, *moe, Phase::forward);
        pass.launches(launches.moe);
    } else {
        dense_forward(pass, std::get<DenseFeedForward>(layer.feed_forward), Phase::forward);
    }
    return pass.finish(launches);
}

LayerPass LayerPasses::backward(const LayerSpec& layer, BackwardPart which) {
    Pass pass(step_, shapes_, works_);
    const LayerLaunches launches = layer_launches(step_, false),
                        again = layer_launches(step_, true);
    const auto* moe = std::get_if<MoeFeedForward>(&layer.feed_forward);
    if (step_.schedule.recompute.full && which != BackwardPart::weight) {
        attention_forward(pass, layer, Phase::recompute);
        pass.launches(again.dense);
        if (moe)
            moe_forward(pass, *moe, Phase::recompute), pass.launches(again.moe);
        else
            dense_forward(pass, std::get<DenseFeedForward>(layer.feed_forward), Phase::recompute);
        pass.cut();
    }
    const double share = which == BackwardPart::both ? 1 : 0.5;
    if (moe) {
        moe_backward(pass, *moe, which);
        pass.launches(launches.moe * share);
    } else {
        dense_backward(pass, std::get<DenseFeedForward>(layer.feed_forward), which);
    }
    attention_backward(pass, layer, which);
    pass.launches(launches.dense * share);
    return pass.finish(launches);
}

LayerPass LayerPasses::embedding(bool forward) {
    Pass pass(step_, shapes_, works_);
    pass.phase = forward ? Phase::forward : Phase::backward;
    pass.name(forward ? "embedding" : "embedding backward");
    pass.streamed(forward ? "embedding_forward" : "embedding_backward", shapes_.split_tokens,
                  step_.model.hidden_size);
    pass.launches(2);
    return pass.finish(layer_launches(step_, forward));
}

LayerPass LayerPasses::head(bool forward, BackwardPart which) {
    Pass pass(step_, shapes_, works_);
    pass.phase = forward ? Phase::forward : Phase::backward;
    const double d = step_.model.hidden_size, el = shapes_.element.value;
    const std::int64_t tp = step_.layout.tensor_parallel_size, T = shapes_.tokens,
                       vocab = std::max<std::int64_t>(1, step_.model.vocab_size / tp);
    const bool gathers = step_.schedule.sequence_parallel && tp > 1,
               input = which != BackwardPart::weight;
    const double whole = static_cast<double>(T) * d * el;
    if (forward) {
        pass.name("head and loss");
        pass.streamed("rms_norm_forward", shapes_.split_tokens, step_.model.hidden_size);
        if (gathers)
            pass.exchange(Collective::all_gather, Group::tensor, whole, Stream::tensor,
                          Part::tensor_comm);
        pass.name("head and loss");
        pass.gemm(T, vocab, step_.model.hidden_size, false);
        pass.streamed("cross_entropy_forward", T, vocab);
        pass.launches(10);
    } else {
        pass.name("head and loss backward");
        if (input) pass.streamed("cross_entropy_backward", T, vocab);
        pass.gemm_backward(T, vocab, step_.model.hidden_size, which, false);
        if (input) {
            if (tp > 1)
                pass.exchange(gathers ? Collective::reduce_scatter : Collective::all_reduce,
                              Group::tensor, whole, Stream::tensor, Part::tensor_comm);
            pass.name("head and loss backward");
            pass.streamed("rms_norm_backward", shapes_.split_tokens, step_.model.hidden_size);
        }
        pass.launches(which == BackwardPart::both ? 10 : 5);
    }
    return pass.finish(layer_launches(step_, forward));
}

LayerPass LayerPasses::mtp_projection(bool forward, BackwardPart which) {
    Pass pass(step_, shapes_, works_);
    pass.phase = forward ? Phase::forward : Phase::backward;
    const std::int64_t hidden = step_.model.hidden_size, T = shapes_.split_tokens;
    pass.name(forward ? "next-token module" : "next-token module backward");
    if (forward) {
        pass.streamed("embedding_forward", T, hidden);
        pass.streamed("rms_norm_forward", 2 * T, hidden);
        pass.gemm(T, hidden, 2 * hidden);
    } else {
        pass.gemm_backward(T, hidden, 2 * hidden, which);
        if (which != BackwardPart::weight) pass.streamed("rms_norm_backward", 2 * T, hidden);
        if (which != BackwardPart::weight) pass.streamed("embedding_backward", T, hidden);
    }
    pass.launches(6);
    return pass.finish(layer_launches(step_, forward));
}

LayerPass LayerPasses::optimizer(double owned, double local) {
    Pass pass(step_, shapes_, works_);
    pass.phase = Phase::optimizer;
    pass.part = Part::optimizer;
    pass.name("optimizer");
    const auto state = [&](std::string_view kernel, double items, double element) {
        if (items > 0)
            pass.add({kernel, Streamed{streamed_bytes(kernel, items, Bytes{element})}, 1, false,
                      false, true});
    };
    state("gradient_norm", owned, 4);
    state("adamw", owned, 4);
    if (is_own_trainer(step_))
        state("copy", local, 2);  // gradients set to zero: four bytes written
    if (step_.schedule.precision != Precision::fp32) {
        state("copy", owned, 3);  // master in four bytes → parameters in two
        state("copy", local,
              size_of(step_.schedule.main_gradients).value /
                  2);  // gradients set to zero: written only
    }
    pass.launches(20);
    return pass.finish(layer_launches(step_, false));
}

}  // namespace moeplan
