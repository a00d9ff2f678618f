#include "simulator/layer_passes.hpp"

#include <algorithm>
#include <cassert>
#include <map>

#include "model/kernel_work.hpp"
#include "model/stage_layers.hpp"

namespace moeplan {

bool runs_on_cpu(const StepCase& step) { return step.profile && step.profile->host_overlap <= 0; }
Overlap effective_overlap(const StepCase& step) {
    if (!runs_on_cpu(step)) return step.schedule.overlap;
    Overlap none = step.schedule.overlap;
    none.gradients = none.parameters = none.tensor = none.experts = none.shared_experts = false;
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
/// inside the norms' kernels and zeroes gradients before every step.
bool is_own_trainer(const StepCase& step) { return step.schedule.software.framework == "moeplan"; }

/// Collects kernels until an exchange cuts them.
class LayerPasses::Pass {
  public:
    Pass(const StepCase& step, const SoftwareCosts& software, const LayerShapes& shapes,
         std::vector<Work>& works)
        : step_(step), software_(software), shapes_(shapes), works_(works) {}

    Phase phase = Phase::forward;
    Part part = Part::compute;

    void name(std::string what) {
        if (open_.what.empty()) open_.what = std::move(what);
    }
    /// What follows belongs to this module: its launches are shared out among its kernels.
    /// @param share  of the module's launches (input or weight gradients alone: a half)
    void in(Module module, bool forward, double share = 1) {
        current_ = &sections_[{module, forward}];
        const Launches& launches = software_.launches[static_cast<std::size_t>(module)];
        double count = forward ? launches.forward : launches.backward, bare = 0;
        if ((module == Module::attention || module == Module::feed_forward) &&
            step_.layout.tensor_parallel_size > 1)
            count += 0.5 * (forward ? software_.tensor_parallel.forward
                                    : software_.tensor_parallel.backward);
        if (module == Module::experts && experts_ > 0)
            bare =
                experts_ * (forward ? software_.per_expert.forward : software_.per_expert.backward);
        const bool products = module == Module::attention || module == Module::feed_forward ||
                              module == Module::shared_experts || module == Module::experts;
        if (products && casts())
            count *= software_.narrow_launches, bare *= software_.narrow_launches;
        if (module == Module::attention && latent_) count *= software_.latent_attention;
        current_->captured = software_.captures(module);
        current_->launches = share * count;
        current_->bare = share * bare;
    }
    /// Kernels outside of any module's count: each is one launch.
    void alone() { current_ = nullptr; }
    void local_experts(double count) { experts_ = count; }
    void latent(bool is) { latent_ = is; }
    /// The host waits for the device; what follows is launched after that.
    void sync() {
        ++open_.syncs;
        cut();
    }
    /// The host waits for what came before (an exchange) before it launches the next kernel.
    void sync_first() { open_.sync_first = true; }
    void host(Seconds time) { open_.host += time; }
    /// Launches of what is no kernel of this stream.
    void launches(double count) {
        if (software_.counted || count <= 0) return;
        KernelCall call{"copy", Streamed{}};
        call.launches = count;
        open_.calls.push_back(call);
    }

    void add(KernelCall call, bool routed = false) {
        if (current_ && !software_.counted)
            current_->calls.emplace_back(static_cast<std::uint32_t>(works_.size()),
                                         static_cast<std::uint32_t>(open_.calls.size()));
        open_.calls.push_back(std::move(call));
        routed_ = routed_ || routed;
    }
    /// [m, k] × [k, n]; an empty product is left out
    void gemm(std::int64_t m, std::int64_t n, std::int64_t k, bool narrow = true,
              double share = 1) {
        if (m <= 0 || n <= 0 || k <= 0) return;
        if (narrow && casts())  // the input is cast, and transposed for the backward pass
            cast(static_cast<double>(m) * static_cast<double>(k) * share);
        add(product("gemm", Gemm{m, n, k}, narrow, share));
    }
    void input_gradient(std::int64_t m, std::int64_t n, std::int64_t k, bool narrow = true) {
        if (m <= 0 || n <= 0 || k <= 0) return;
        if (narrow && casts()) cast(static_cast<double>(m) * static_cast<double>(n));
        add(product("gemm_input_gradient", Gemm{m, n, k}, narrow));
    }
    void weight_gradient(std::int64_t m, std::int64_t n, std::int64_t k, bool narrow = true) {
        if (m <= 0 || n <= 0 || k <= 0) return;
        add(product("gemm_weight_gradient", Gemm{m, n, k}, narrow));
    }
    void gemm_backward(std::int64_t m, std::int64_t n, std::int64_t k, BackwardPart which,
                       bool narrow = true) {
        if (which != BackwardPart::weight) input_gradient(m, n, k, narrow);
        if (which != BackwardPart::input) weight_gradient(m, n, k, narrow);
    }
    /// @param factor  of bytes, over those of the kernel's definition
    void streamed(std::string_view kernel, std::int64_t rows, std::int64_t width,
                  double element = 0, double factor = 1) {
        if (rows <= 0 || width <= 0) return;
        add({kernel,
             Streamed{streamed_bytes(kernel, static_cast<double>(rows) * static_cast<double>(width),
                                     Bytes{element > 0 ? element : shapes_.element.value}) *
                          factor,
                      width}});
    }
    /// Norms, rotations, activations, residuals: what fusion saves.
    void elementwise(std::string_view kernel, std::int64_t rows, std::int64_t width) {
        streamed(kernel, rows, width, 0, software_.elementwise_bytes);
    }
    /// per row that the rank's experts received
    void grouped(std::int64_t n, std::int64_t k) {
        if (casts()) cast_rows(k);
        add(experts("grouped_gemm", n, k), true);
    }
    void grouped_backward(std::int64_t n, std::int64_t k, BackwardPart which) {
        if (which != BackwardPart::weight) {
            if (casts()) cast_rows(n);
            add(experts("grouped_gemm_input_gradient", n, k), true);
        }
        if (which != BackwardPart::input) add(experts("grouped_gemm_weight_gradient", n, k), true);
    }
    void streamed_rows(std::string_view kernel, std::int64_t width, double factor = 1) {
        if (width > 0)
            add({kernel,
                 Streamed{
                     streamed_bytes(kernel, static_cast<double>(width), shapes_.element) * factor,
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
        if (open_.calls.empty() && open_.syncs == 0 && !open_.sync_first) return last_;
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
        return push(item);
    }
    /// An exchange that the following kernels wait for.
    int exchange(Collective kind, Group group, double bytes, Stream stream, Part of,
                 bool routed = false, bool to_experts = true) {
        launch_exchange();
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
        launch_exchange();
        cut();
        const auto before = next_;
        const int id = push(exchange_item(kind, group, bytes, stream, of, false, true));
        next_ = before;
        under_ = id;
        open_exchanges_.push_back(id);
    }
    /// An exchange that another micro-batch's kernels hide: whoever waits for it has other work
    /// meanwhile, so that only its own stream can become the limit.
    void hidden(Collective kind, Group group, double bytes, Stream stream, Part of,
                bool to_experts) {
        launch_exchange();
        cut();
        const auto before = next_;
        const int id = push(exchange_item(kind, group, bytes, stream, of, true, to_experts));
        next_ = before;
        under_ = id;
    }
    /// The exchange just begun depends on where the tokens went.
    void mark_routed() { pass_.items.back().routed = true; }
    void join() {
        if (open_exchanges_.empty()) return;
        cut();
        for (const int id : open_exchanges_) next_.push_back(id);
        open_exchanges_.clear();
    }

    LayerPass finish() {
        cut();
        for (const int id : open_exchanges_) next_.push_back(id);
        for (const auto& [key, section] : sections_) share_out(section);
        return std::move(pass_);
    }

  private:
    /// Launches of one module in one direction, and the calls that it is made of.
    struct Section {
        double launches = 0, bare = 0;
        bool captured = false;
        std::vector<std::pair<std::uint32_t, std::uint32_t>> calls;  // work, call
    };

    KernelCall product(std::string_view kernel, Gemm shape, bool narrow, double share = 1) const {
        KernelCall call{kernel, shape, share, narrow};
        if (narrow && casts()) call.rate = software_.narrow_rate;
        return call;
    }
    KernelCall experts(std::string_view kernel, std::int64_t n, std::int64_t k) const {
        KernelCall call{kernel, GroupedGemm{{}, n, k}, 1, true, true};
        if (casts()) call.rate = software_.narrow_rate;
        return call;
    }
    void cast(double items) { add({"copy", Streamed{Bytes{software_.cast_bytes * items}}}); }
    void cast_rows(std::int64_t width) {
        add({"copy", Streamed{Bytes{software_.cast_bytes * static_cast<double>(width)}, width}, 1,
             false, true},
            true);
    }

    /// The host launches collectives too: a launch without a kernel, at the end of what is open.
    void launch_exchange() {
        if (!current_ || !current_->captured) launches(1);
    }

    void share_out(const Section& section) {
        if (section.calls.empty()) return;
        const auto count = static_cast<double>(section.calls.size());
        const double each = section.launches / count, bare = section.bare / count;
        bool first = true;
        for (const auto& [work, call] : section.calls) {
            KernelCall& kernel = works_[work].calls[call];
            kernel.launches = section.captured ? (first ? software_.captured_launch : 0) : each;
            kernel.bare_launches = section.captured ? 0 : bare;
            kernel.small_kernels = std::max(0.0, each + bare - 1);
            first = false;
        }
    }

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
    const SoftwareCosts& software_;
    const LayerShapes& shapes_;
    std::vector<Work>& works_;
    LayerPass pass_;
    Work open_;
    bool routed_ = false;
    int last_ = -1, under_ = -1;
    double experts_ = 0;
    bool latent_ = false;
    std::map<std::pair<Module, bool>, Section> sections_;
    Section* current_ = nullptr;
    std::vector<int> next_ = {-1}, open_exchanges_;
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
/// @param fused   one product makes queries, keys and values
/// @param rotary  else positions are learned, and nothing is rotated
AttentionSizes sizes_of(const Attention& attention, std::int64_t hidden, std::int64_t tp,
                        bool fused, bool rotary) {
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
        const std::int64_t items = (out.query_heads + out.kv_heads) * gqa->head_size;
        if (rotary) out.rope_items = items;
        if (gqa->qk_norm) out.norm_items = items;
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

namespace {

/// Bytes of a score that attention with scores in memory reads and writes beside its products:
/// scale, mask, soft-max, dropout; forward and backward.
constexpr double kScoreBytes = 9, kScoreGradientBytes = 13;
/// Pieces in which an overlapped product and its exchange follow one another.
constexpr double kOverlapChunks = 4;

/// Of a module's backward launches.
double share_of(BackwardPart which) { return which == BackwardPart::both ? 1 : 0.5; }

}  // namespace

/// @param share  of the sequence that this rank has (context parallelism)
void LayerPasses::attention_core(Pass& pass, const AttentionShape& shape, double share,
                                 bool forward) {
    if (software_.fused_attention) {
        pass.add({forward ? "attention_forward" : "attention_backward", shape, share});
        return;
    }
    // every score is made, the causal half thrown away: batched products of all heads
    const std::int64_t s = shape.sequence, rows = shape.batch * shape.num_heads * s;
    const auto scores = [&](double bytes) {
        pass.add({"copy",
                  Streamed{Bytes{bytes * static_cast<double>(rows) * static_cast<double>(s)}, s},
                  share});
    };
    const auto products = [&](int score_sized, int value_sized) {
        for (int i = 0; i < score_sized; ++i)
            pass.add({"gemm", Gemm{rows, s, shape.head_size}, share});
        for (int i = 0; i < value_sized; ++i)
            pass.add({"gemm", Gemm{rows, shape.head_size, s}, share});
    };
    products(1, forward ? 1 : 3);
    scores(forward ? kScoreBytes : kScoreGradientBytes);
}

void LayerPasses::attention_forward(Pass& pass, const LayerSpec& layer, Phase phase) {
    pass.phase = phase;
    const double d = step_.model.hidden_size, el = shapes_.element.value;
    const std::int64_t tp = step_.layout.tensor_parallel_size,
                       cp = step_.layout.context_parallel_size, T = shapes_.tokens;
    const AttentionSizes a =
        sizes_of(layer.attention, step_.model.hidden_size, tp, !is_own_trainer(step_),
                 !step_.model.learned_positions);
    const bool gathers = step_.schedule.sequence_parallel && tp > 1,
               overlaps = effective_overlap(step_).tensor;
    pass.name("attention");
    pass.latent(std::holds_alternative<LatentAttention>(layer.attention));
    pass.in(Module::attention, true);
    pass.elementwise("rms_norm_forward", shapes_.split_tokens, step_.model.hidden_size);
    if (gathers)
        pass.beside(Collective::all_gather, Group::tensor, static_cast<double>(T) * d * el,
                    Stream::tensor, Part::tensor_comm, overlaps);
    pass.name("attention");
    for (const auto& [n, k] : a.inputs) pass.gemm(T, n, k);
    pass.join();
    pass.name("attention");
    pass.elementwise("rms_norm_forward", T * a.norm_items / std::max<std::int64_t>(1, a.head),
                     a.head);
    pass.elementwise("rms_norm_forward", T, a.latent_norm);
    pass.elementwise("rope_forward", T * a.rope_items / std::max<std::int64_t>(1, a.head), a.head);
    if (!is_own_trainer(step_))  // queries, keys and values out of one product
        pass.elementwise("copy", T, (a.query_heads + a.kv_heads) * a.head);
    if (cp > 1)
        pass.beside(Collective::all_gather, Group::context,
                    static_cast<double>(T * cp) * a.kv_width * el, Stream::context,
                    Part::context_comm, true);
    pass.name("attention");
    attention_core(pass,
                   AttentionShape{shapes_.sequences, step_.schedule.sequence_length, a.query_heads,
                                  a.kv_heads, a.head, layer.window},
                   1.0 / static_cast<double>(cp), true);
    if (cp > 1) pass.join();
    row_product(pass, T, a.output_width, "attention");
}

/// A product over split columns and what joins its parts: [T, k] × [k, hidden], summed over the
/// tensor-parallel ranks, then the residual.
void LayerPasses::row_product(Pass& pass, std::int64_t T, std::int64_t k, const char* name) {
    const std::int64_t hidden = step_.model.hidden_size;
    const double bytes =
        static_cast<double>(T) * static_cast<double>(hidden) * shapes_.element.value;
    const bool split = step_.layout.tensor_parallel_size > 1;
    const Collective kind =
        step_.schedule.sequence_parallel ? Collective::reduce_scatter : Collective::all_reduce;
    pass.name(name);
    if (split && effective_overlap(step_).tensor) {
        // in chunks: all but the first are multiplied while those before them travel
        pass.gemm(T, hidden, k, true, 1.0 / kOverlapChunks);
        pass.beside(kind, Group::tensor, bytes, Stream::tensor, Part::tensor_comm, true);
        pass.name(name);
        pass.gemm(T, hidden, k, true, 1 - 1.0 / kOverlapChunks);
        pass.join();
    } else {
        pass.gemm(T, hidden, k);
        if (split) pass.exchange(kind, Group::tensor, bytes, Stream::tensor, Part::tensor_comm);
    }
    pass.name(name);
    pass.elementwise("residual_add", shapes_.split_tokens, hidden);
}

/// Gradients of products whose columns tensor parallelism split, and the exchange of the input's.
void LayerPasses::column_gradients(Pass& pass, std::int64_t T,
                                   const std::vector<std::pair<std::int64_t, std::int64_t>>& shapes,
                                   BackwardPart which, const char* name) {
    const double bytes = static_cast<double>(T) * step_.model.hidden_size * shapes_.element.value;
    const bool split = step_.layout.tensor_parallel_size > 1,
               gathers = step_.schedule.sequence_parallel && split,
               input = which != BackwardPart::weight, weight = which != BackwardPart::input;
    const Collective kind = gathers ? Collective::reduce_scatter : Collective::all_reduce;
    // The gathered input is needed again for the weights' gradients: it travels beside the input's
    // gradient, and that beside the weights'.
    const auto& recompute = step_.schedule.recompute;
    if (gathers && weight && !software_.keeps_gathered)
        pass.beside(Collective::all_gather, Group::tensor, bytes, Stream::tensor, Part::tensor_comm,
                    true);
    else if (gathers && weight && !recompute.full && !recompute.modules.empty())
        pass.exchange(Collective::all_gather, Group::tensor, bytes, Stream::tensor,
                      Part::tensor_comm);  // selective checkpoints drop what was gathered
    pass.name(name);
    const bool beside = split && input && weight &&
                        (software_.overlaps_weight_gradient || effective_overlap(step_).tensor);
    if (!beside) {
        for (const auto& [n, k] : shapes) pass.gemm_backward(T, n, k, which);
        pass.join();
        if (split && input)
            pass.exchange(kind, Group::tensor, bytes, Stream::tensor, Part::tensor_comm);
        return;
    }
    for (const auto& [n, k] : shapes) pass.input_gradient(T, n, k);
    pass.join();
    pass.beside(kind, Group::tensor, bytes, Stream::tensor, Part::tensor_comm, true);
    pass.name(name);
    for (const auto& [n, k] : shapes) pass.weight_gradient(T, n, k);
    pass.join();
}

void LayerPasses::attention_backward(Pass& pass, const LayerSpec& layer, BackwardPart which) {
    pass.phase = Phase::backward;
    const double d = step_.model.hidden_size, el = shapes_.element.value;
    const std::int64_t tp = step_.layout.tensor_parallel_size,
                       cp = step_.layout.context_parallel_size, T = shapes_.tokens;
    const AttentionSizes a =
        sizes_of(layer.attention, step_.model.hidden_size, tp, !is_own_trainer(step_),
                 !step_.model.learned_positions);
    const bool gathers = step_.schedule.sequence_parallel && tp > 1;
    const bool input = which != BackwardPart::weight;
    const auto& recompute = step_.schedule.recompute;
    pass.name("attention backward");
    pass.latent(std::holds_alternative<LatentAttention>(layer.attention));
    pass.in(Module::attention, false, share_of(which));
    if (gathers && input)
        pass.beside(Collective::all_gather, Group::tensor, static_cast<double>(T) * d * el,
                    Stream::tensor, Part::tensor_comm, effective_overlap(step_).tensor);
    pass.name("attention backward");
    pass.gemm_backward(T, step_.model.hidden_size, a.output_width, which);
    pass.join();
    pass.name("attention backward");
    if (input) {
        const AttentionShape shape{
            shapes_.sequences, step_.schedule.sequence_length, a.query_heads, a.kv_heads, a.head,
            layer.window};
        const double share = 1.0 / static_cast<double>(cp);
        if (!recompute.full && recompute.modules.contains("core_attn")) {
            pass.phase = Phase::recompute;
            pass.alone();
            attention_core(pass, shape, share, true);
            pass.in(Module::attention, false, share_of(which));
            pass.phase = Phase::backward;
        }
        if (!recompute.full && recompute.modules.contains("mla_up_proj") && a.inputs.size() > 1) {
            pass.alone();
            for (std::size_t i = 1; i < a.inputs.size(); i += 2)
                pass.gemm(T, a.inputs[i].first, a.inputs[i].second);
            pass.elementwise("rope_forward", T * a.rope_items / std::max<std::int64_t>(1, a.head),
                             a.head);
            pass.in(Module::attention, false, share_of(which));
        }
        if (cp > 1)
            pass.beside(Collective::reduce_scatter, Group::context,
                        static_cast<double>(T * cp) * a.kv_width * el * 2, Stream::context,
                        Part::context_comm, true);
        pass.name("attention backward");
        attention_core(pass, shape, share, false);
        if (cp > 1) pass.join();
        pass.name("attention backward");
        if (!is_own_trainer(step_))
            pass.elementwise("copy", T, (a.query_heads + a.kv_heads) * a.head);
        pass.elementwise("rope_backward", T * a.rope_items / std::max<std::int64_t>(1, a.head),
                         a.head);
        pass.elementwise("rms_norm_backward", T * a.norm_items / std::max<std::int64_t>(1, a.head),
                         a.head);
        pass.elementwise("rms_norm_backward", T, a.latent_norm);
    }
    column_gradients(pass, T, a.inputs, which, "attention backward");
    if (!input) return;
    pass.name("attention backward");
    if (recompute.modules.contains("layernorm"))
        pass.elementwise("rms_norm_forward", 2 * shapes_.split_tokens, step_.model.hidden_size);
    pass.elementwise("rms_norm_backward", shapes_.split_tokens, step_.model.hidden_size);
    if (!is_own_trainer(step_))
        pass.elementwise("residual_add", shapes_.split_tokens, step_.model.hidden_size);
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
    pass.in(Module::feed_forward, true);
    pass.elementwise("rms_norm_forward", shapes_.split_tokens, step_.model.hidden_size);
    if (gathers)
        pass.beside(Collective::all_gather, Group::tensor, static_cast<double>(T) * d * el,
                    Stream::tensor, Part::tensor_comm, effective_overlap(step_).tensor);
    pass.name("feed-forward");
    pass.gemm(T, gates(ffn.activation) * f, hidden);
    pass.join();
    pass.name("feed-forward");
    pass.elementwise(activation_name(ffn.activation, true), T, f);
    row_product(pass, T, f, "feed-forward");
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
    pass.in(Module::feed_forward, false, share_of(which));
    if (gathers && input)
        pass.beside(Collective::all_gather, Group::tensor, static_cast<double>(T) * d * el,
                    Stream::tensor, Part::tensor_comm, effective_overlap(step_).tensor);
    pass.name("feed-forward backward");
    if (input && modules.contains("mlp") && !step_.schedule.recompute.full) {
        pass.alone();
        pass.gemm(T, gates(ffn.activation) * f, hidden);
        pass.elementwise(activation_name(ffn.activation, true), T, f);
        pass.in(Module::feed_forward, false, share_of(which));
    }
    pass.gemm_backward(T, hidden, f, which);
    pass.join();
    pass.name("feed-forward backward");
    if (input) pass.elementwise(activation_name(ffn.activation, false), T, f);
    column_gradients(pass, T, {{gates(ffn.activation) * f, hidden}}, which,
                     "feed-forward backward");
    if (!input) return;
    pass.name("feed-forward backward");
    pass.elementwise("rms_norm_backward", shapes_.split_tokens, step_.model.hidden_size);
    if (!is_own_trainer(step_))
        pass.elementwise("residual_add", shapes_.split_tokens, step_.model.hidden_size);
}

// ------------------------------------------------------------------------------------------------
// mixture of experts

void LayerPasses::shared_forward(Pass& pass, const MoeFeedForward& moe) {
    const std::int64_t width =
        static_cast<std::int64_t>(moe.num_shared_experts) * moe.shared_expert_hidden_size;
    if (width <= 0) return;
    const std::int64_t tp = step_.layout.tensor_parallel_size, T = shapes_.tokens,
                       hidden = step_.model.hidden_size, f = std::max<std::int64_t>(1, width / tp);
    pass.in(Module::shared_experts, true);
    pass.gemm(T, gates(moe.activation) * f, hidden);
    pass.elementwise(activation_name(moe.activation, true), T, f);
    pass.gemm(T, hidden, f);
    pass.elementwise("residual_add", T, hidden);
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
    pass.in(Module::shared_experts, false, share_of(which));
    pass.gemm_backward(T, hidden, f, which);
    if (which != BackwardPart::weight)
        pass.elementwise(activation_name(moe.activation, false), T, f);
    pass.gemm_backward(T, gates(moe.activation) * f, hidden, which);
}

namespace {

/// Of an index in the maps between tokens and rows.
constexpr double kIndexBytes = 4;

/// Frameworks' routers in fp32 (logits up-cast, soft-max, top-k, scattered back, balance loss) move
/// so many times what one pass over the logits does, forward and backward: 40 and 60 bytes an
/// expert in place of 12.
constexpr double kRouterForward = 40.0 / 12, kRouterBackward = 60.0 / 12;

}  // namespace

bool LayerPasses::maps_rows() const {
    return is_own_trainer(step_) && has_curve(*step_.profile, "permutation_map", Precision::fp32);
}

LayerPasses::ExpertWay LayerPasses::expert_way(const MoeFeedForward& moe) const {
    const int tp = step_.layout.tensor_parallel_size, ep = step_.layout.expert_parallel_size;
    ExpertWay way;
    const bool shared_sharded = tp > 1 && moe.num_shared_experts > 0;
    const Overlap overlap = effective_overlap(step_);
    // Where micro-batches take turns (step_graph.cpp), that hides the exchanges.
    const bool stated_share = overlap.experts && !takes_turns(step_.layout, step_.schedule);
    way.behind_shared = (overlap.shared_experts || stated_share) && ep > 1 &&
                        moe.num_shared_experts > 0 && !shared_sharded;
    // Megatron's combined forward and backward of two micro-batches: one computes while the other
    // exchanges.
    way.behind_micro_batch = stated_share && ep > 1 && !way.behind_shared && !software_.counted &&
                             step_.schedule.num_micro_batches > 1;
    way.permutes_first =
        ep == 1 || software_.counted || step_.schedule.dispatcher != Dispatcher::deduplicating;
    way.sorts = ep > 1 && way.permutes_first && software_.sorts_chunks &&
                (moe.num_experts > ep || software_.counted);
    way.activation =
        software_.elementwise_bytes *
        (moe.bias && gates(moe.activation) > 1 ? software_.biased_activation_bytes : 1);
    way.router_forward = software_.counted ? 1 : kRouterForward * software_.router_bytes;
    way.router_backward = software_.counted ? 1 : kRouterBackward * software_.router_bytes;
    return way;
}

void LayerPasses::expert_exchange(Pass& pass, const ExpertWay& way, Bytes row, Part part,
                                  bool to_experts) {
    const double hidden = way.behind_micro_batch ? std::min(1.0, software_.overlapped_share) : 0;
    if (hidden < 1)
        pass.exchange(Collective::all_to_all, Group::expert, row.value * (1 - hidden),
                      Stream::expert, part, true, to_experts);
    if (hidden > 0)
        pass.hidden(Collective::all_to_all, Group::expert, row.value * hidden, Stream::expert, part,
                    to_experts);
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
    const ExpertWay way = expert_way(moe);
    const Bytes row{static_cast<double>(sub) * el};
    pass.local_experts(static_cast<double>(moe.num_experts) / ep);
    pass.name("router");
    pass.in(Module::router, true);
    pass.elementwise("rms_norm_forward", shapes_.split_tokens, step_.model.hidden_size);
    if (heads > 1) pass.gemm(tokens, hidden, hidden);  // head projection; the split is a view
    if (moe.router_size > 0) {
        pass.gemm(units, moe.router_size, sub, false);
        pass.gemm(units, moe.num_experts, moe.router_size, false);
    } else {
        pass.gemm(units, moe.num_experts, sub, false);
    }
    pass.streamed("router_forward", units, moe.num_experts, 4,
                  way.router_forward);  // router in fp32
    if (moe.pool) {
        pass.streamed("document_pool", units, moe.num_experts, 4);
        if (is_own_trainer(step_))
            pass.streamed("router_forward", units, moe.num_experts,
                          4);  // probabilities before the mask
    }
    if (!way.behind_shared) {
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
    pass.name("router");
    pass.in(Module::preprocess, true);
    if (!software_.counted) pass.streamed("router_forward", units, moe.num_experts, 1);  // the map
    if (maps_rows()) pass.streamed("permutation_map", rows, 1, kIndexBytes);
    pass.in(Module::dispatch, true);
    if (way.permutes_first) pass.streamed("permute_forward", rows, sub, 0, software_.permute_bytes);
    // token counts, for the host to size what follows
    if (software_.sync == CountSync::before_dispatch) pass.sync();
    if (ep > 1) {
        pass.cut();
        if (way.behind_shared) {
            pass.beside(Collective::all_to_all, Group::expert, row.value, Stream::expert,
                        Part::dispatch, true);
            pass.mark_routed();
            pass.name("shared experts");
            shared_forward(pass, moe);
            pass.join();
        } else {
            expert_exchange(pass, way, row, Part::dispatch, true);
        }
    }
    if (etp > 1)
        pass.exchange(Collective::all_gather, Group::expert_tensor,
                      static_cast<double>(rows) * etp * sub * el, Stream::tensor,
                      Part::tensor_comm);
    if (ep > 1 && software_.sync == CountSync::after_dispatch) pass.sync_first();
    pass.name("experts");
    pass.in(Module::dispatch, true);
    if (maps_rows() && ep > 1)  // of the rows that came
        pass.streamed_rows("permutation_map", 1, kIndexBytes / el);
    if (way.sorts) pass.streamed_rows("permute_forward", sub);  // chunks by source → by expert
    if (!way.permutes_first) pass.streamed_rows("permute_forward", sub, software_.permute_bytes);
    pass.in(Module::experts, true);
    pass.grouped(gates(moe.activation) * f, sub);
    pass.streamed_rows(activation_name(moe.activation, true), f, way.activation);
    if (moe.sub_norm) pass.streamed_rows("rms_norm_forward", f);
    pass.grouped(sub, f);
    pass.in(Module::dispatch, true);
    if (way.sorts) pass.streamed_rows("permute_forward", sub);
    if (!way.permutes_first) pass.streamed_rows("unpermute_forward", sub, software_.permute_bytes);
    if (etp > 1)
        pass.exchange(Collective::reduce_scatter, Group::expert_tensor,
                      static_cast<double>(rows) * etp * sub * el, Stream::tensor,
                      Part::tensor_comm);
    if (ep > 1) expert_exchange(pass, way, row, Part::combine, false);
    pass.name("combine");
    if (way.permutes_first)
        pass.streamed("unpermute_forward", rows, sub, 0, software_.permute_bytes);
    if (heads > 1) pass.gemm(tokens, hidden, hidden);  // merge projection
    pass.elementwise("residual_add", shapes_.split_tokens, step_.model.hidden_size);
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
    ExpertWay way = expert_way(moe);
    if (which != BackwardPart::both) way.behind_shared = way.behind_micro_batch = false;
    const Bytes row{static_cast<double>(sub) * el};
    const double launched = share_of(which);
    pass.local_experts(static_cast<double>(moe.num_experts) / ep);
    const auto& modules = step_.schedule.recompute.modules;
    if (input && modules.contains("moe") && !step_.schedule.recompute.full)
        moe_forward(pass, moe, Phase::recompute);
    pass.phase = Phase::backward;
    pass.name("combine backward");
    pass.in(Module::dispatch, false, launched);
    if (heads > 1) pass.gemm_backward(tokens, hidden, hidden, which);
    if (input && way.permutes_first)
        pass.streamed("unpermute_backward", rows, sub, 0, software_.permute_bytes);
    if (input && ep > 1) {
        if (way.behind_shared) {
            pass.beside(Collective::all_to_all, Group::expert, row.value, Stream::expert,
                        Part::combine, true);
            pass.mark_routed();
            pass.name("shared experts backward");
            shared_backward(pass, moe, which);
            pass.join();
        } else {
            expert_exchange(pass, way, row, Part::combine, true);
        }
    }
    if (etp > 1 && input)
        pass.exchange(Collective::all_gather, Group::expert_tensor,
                      static_cast<double>(rows) * etp * sub * el, Stream::tensor,
                      Part::tensor_comm);
    pass.name("experts backward");
    pass.in(Module::dispatch, false, launched);
    if (input && way.sorts) pass.streamed_rows("permute_backward", sub);
    if (input && !way.permutes_first)
        pass.streamed_rows("unpermute_backward", sub, software_.permute_bytes);
    pass.in(Module::experts, false, launched);
    if (input && modules.contains("moe_act") && !step_.schedule.recompute.full)
        pass.streamed_rows(activation_name(moe.activation, true), f, way.activation);
    pass.grouped_backward(sub, f, which);
    if (input && moe.sub_norm) pass.streamed_rows("rms_norm_backward", f);
    if (input) pass.streamed_rows(activation_name(moe.activation, false), f, way.activation);
    pass.grouped_backward(gates(moe.activation) * f, sub, which);
    pass.in(Module::dispatch, false, launched);
    if (input && way.sorts) pass.streamed_rows("permute_backward", sub);
    if (input && !way.permutes_first)
        pass.streamed_rows("permute_backward", sub, software_.permute_bytes);
    if (etp > 1 && input)
        pass.exchange(Collective::reduce_scatter, Group::expert_tensor,
                      static_cast<double>(rows) * etp * sub * el, Stream::tensor,
                      Part::tensor_comm);
    if (input && ep > 1) expert_exchange(pass, way, row, Part::dispatch, false);
    pass.name("router backward");
    if (input && way.permutes_first)
        pass.streamed("permute_backward", rows, sub, 0, software_.permute_bytes);
    if (!way.behind_shared) {
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
    pass.in(Module::router, false, launched);
    if (input && moe.pool && !is_own_trainer(step_))
        pass.streamed("document_pool", units, moe.num_experts, 4);
    if (input) pass.streamed("router_backward", units, moe.num_experts, 4, way.router_backward);
    if (moe.router_size > 0) {
        pass.gemm_backward(units, moe.num_experts, moe.router_size, which, false);
        pass.gemm_backward(units, moe.router_size, sub, which, false);
    } else {
        pass.gemm_backward(units, moe.num_experts, sub, which, false);
    }
    if (heads > 1) pass.gemm_backward(tokens, hidden, hidden, which);
    if (input) {
        pass.elementwise("rms_norm_backward", shapes_.split_tokens, step_.model.hidden_size);
        if (!is_own_trainer(step_))
            pass.elementwise("residual_add", shapes_.split_tokens, step_.model.hidden_size);
    }
}

// ----------------------------------------------------------------------------------------------------------
// passes

LayerPass LayerPasses::forward(const LayerSpec& layer) {
    Pass pass(step_, software_, shapes_, works_);
    gather_parameters(pass, true);
    attention_forward(pass, layer, Phase::forward);
    if (const auto* moe = std::get_if<MoeFeedForward>(&layer.feed_forward))
        moe_forward(pass, *moe, Phase::forward);
    else
        dense_forward(pass, std::get<DenseFeedForward>(layer.feed_forward), Phase::forward);
    keep_random_states(pass, layer, true);
    return pass.finish();
}

LayerPass LayerPasses::backward(const LayerSpec& layer, BackwardPart which) {
    Pass pass(step_, software_, shapes_, works_);
    gather_parameters(pass, false);
    if (which != BackwardPart::weight) keep_random_states(pass, layer, false);
    const auto* moe = std::get_if<MoeFeedForward>(&layer.feed_forward);
    if (step_.schedule.recompute.full && which != BackwardPart::weight) {
        attention_forward(pass, layer, Phase::recompute);
        if (moe)
            moe_forward(pass, *moe, Phase::recompute);
        else
            dense_forward(pass, std::get<DenseFeedForward>(layer.feed_forward), Phase::recompute);
        pass.cut();
    }
    if (moe)
        moe_backward(pass, *moe, which);
    else
        dense_backward(pass, std::get<DenseFeedForward>(layer.feed_forward), which);
    attention_backward(pass, layer, which);
    return pass.finish();
}

namespace {

/// Parts of a layer that are rebuilt in the backward pass, each behind its own checkpoint.
int checkpoints_of(const LayerSpec& layer, const Recompute& recompute) {
    if (recompute.full) return 1;
    const auto* moe = std::get_if<MoeFeedForward>(&layer.feed_forward);
    const auto has = [&](const char* module) { return recompute.modules.contains(module) ? 1 : 0; };
    int count = has("core_attn") + 2 * has("layernorm");
    if (std::holds_alternative<LatentAttention>(layer.attention)) count += has("mla_up_proj");
    if (!moe) return count + has("mlp");
    return count + has("moe") + has("moe_act") +
           (moe->num_shared_experts > 0 ? has("shared_experts") : 0);
}

}  // namespace

/// The host's part in recomputation: states of random numbers are kept before a part and set again
/// before it is rebuilt.
void LayerPasses::keep_random_states(Pass& pass, const LayerSpec& layer, bool forward) {
    const int count = checkpoints_of(layer, step_.schedule.recompute);
    pass.phase = forward ? Phase::forward : Phase::recompute;
    pass.launches(count *
                  (forward ? software_.checkpoint.forward : software_.checkpoint.backward));
}

/// The host's part in gathering a layer's sharded parameters and freeing them again.
void LayerPasses::gather_parameters(Pass& pass, bool forward) {
    if (step_.schedule.sharding != Sharding::zero3) return;
    const Launches& launches = software_.launches[static_cast<std::size_t>(Module::parameters)];
    pass.launches(forward ? launches.forward : launches.backward);
}

LayerPass LayerPasses::embedding(bool forward) {
    Pass pass(step_, software_, shapes_, works_);
    pass.phase = forward ? Phase::forward : Phase::backward;
    pass.name(forward ? "embedding" : "embedding backward");
    pass.streamed(forward ? "embedding_forward" : "embedding_backward", shapes_.split_tokens,
                  step_.model.hidden_size);
    pass.launches(1);
    return pass.finish();
}

namespace {

/// Cross-entropy over logits in two bytes, worked on in four: read, up-cast, soft-max, loss; and
/// back. Eight bytes an entry each way where fused, in place of one pass's two and four.
constexpr double kLossForward = 8.0 / 2, kLossBackward = 8.0 / 4;

}  // namespace

LayerPass LayerPasses::head(bool forward, BackwardPart which) {
    Pass pass(step_, software_, shapes_, works_);
    pass.phase = forward ? Phase::forward : Phase::backward;
    const double d = step_.model.hidden_size, el = shapes_.element.value;
    const std::int64_t tp = step_.layout.tensor_parallel_size, T = shapes_.tokens,
                       vocab = std::max<std::int64_t>(1, step_.model.vocab_size / tp);
    const bool gathers = step_.schedule.sequence_parallel && tp > 1,
               input = which != BackwardPart::weight;
    const double whole = static_cast<double>(T) * d * el;
    pass.in(Module::ends, forward, forward ? 1 : share_of(which));
    if (forward) {
        pass.name("head and loss");
        pass.elementwise("rms_norm_forward", shapes_.split_tokens, step_.model.hidden_size);
        if (gathers)
            pass.exchange(Collective::all_gather, Group::tensor, whole, Stream::tensor,
                          Part::tensor_comm);
        pass.name("head and loss");
        pass.gemm(T, vocab, step_.model.hidden_size, false);
        pass.streamed("cross_entropy_forward", T, vocab, 0,
                      software_.counted ? 1 : kLossForward * software_.loss_bytes);
    } else {
        pass.name("head and loss backward");
        if (input)
            pass.streamed("cross_entropy_backward", T, vocab, 0,
                          software_.counted ? 1 : kLossBackward * software_.loss_bytes);
        pass.gemm_backward(T, vocab, step_.model.hidden_size, which, false);
        if (input) {
            if (tp > 1)
                pass.exchange(gathers ? Collective::reduce_scatter : Collective::all_reduce,
                              Group::tensor, whole, Stream::tensor, Part::tensor_comm);
            pass.name("head and loss backward");
            pass.elementwise("rms_norm_backward", shapes_.split_tokens, step_.model.hidden_size);
        }
    }
    return pass.finish();
}

LayerPass LayerPasses::mtp_projection(bool forward, BackwardPart which) {
    Pass pass(step_, software_, shapes_, works_);
    pass.phase = forward ? Phase::forward : Phase::backward;
    const std::int64_t hidden = step_.model.hidden_size, T = shapes_.split_tokens;
    pass.name(forward ? "next-token module" : "next-token module backward");
    if (forward) {
        pass.streamed("embedding_forward", T, hidden);
        pass.elementwise("rms_norm_forward", 2 * T, hidden);
        pass.gemm(T, hidden, 2 * hidden);
    } else {
        pass.gemm_backward(T, hidden, 2 * hidden, which);
        if (which != BackwardPart::weight) pass.elementwise("rms_norm_backward", 2 * T, hidden);
        if (which != BackwardPart::weight) pass.streamed("embedding_backward", T, hidden);
    }
    pass.launches(3);
    return pass.finish();
}

LayerPass LayerPasses::optimizer(double owned, double local) {
    Pass pass(step_, software_, shapes_, works_);
    pass.phase = Phase::optimizer;
    pass.part = Part::optimizer;
    pass.name("optimizer");
    pass.in(Module::optimizer, true);
    const auto state = [&](std::string_view kernel, double items, double element) {
        if (items > 0)
            pass.add({kernel, Streamed{streamed_bytes(kernel, items, Bytes{element})}, 1, false,
                      false, true});
    };
    state("gradient_norm", owned, 4);
    if (!software_.counted) {
        // the host reads the norm before it clips and updates; what a step costs it besides comes
        // here too
        pass.host(
            Seconds{software_.step_work * step_.profile->calibration[Constant::step_overhead]});
        pass.sync();
        pass.name("optimizer");
    }
    state("adamw", owned, 4);
    if (is_own_trainer(step_)) {  // gradients set to zero: four bytes written
        if (has_curve(*step_.profile, "zero", Precision::fp32))
            state("zero", local, 4);
        else
            state("copy", local, 2);
    }
    if (step_.schedule.precision != Precision::fp32) {
        state("copy", owned, 3);  // master in four bytes → parameters in two
        state("copy", local,
              size_of(step_.schedule.main_gradients).value /
                  2);  // gradients set to zero: written only
    }
    return pass.finish();
}

}  // namespace moeplan
