#include "model/layers/attention.hpp"

#include <cmath>

#include "core/errors.hpp"

namespace moeplan {

SelfAttention::SelfAttention(Runtime& rt, ParameterSet& parameters, const std::string& name,
                             const ModelSpec& model, const LayerSpec& layer, RankGroups& groups)
    : rt_(rt), groups_(groups), hidden_(model.hidden_size), theta_(model.rope_theta) {
    const auto* spec = std::get_if<GroupedQueryAttention>(&layer.attention);
    if (!spec)
        throw InputError(model.name, "attention", "latent",
                         "grouped-query attention: training has no latent attention yet");
    if (spec->sinks)
        throw InputError(model.name, "attention/sinks", "true",
                         "false: training has no attention sinks yet");
    const std::int64_t all_heads = spec->num_attention_heads, all_kv_heads = spec->num_kv_heads,
                       parts = groups.tensor.size(), part = groups.tensor.rank();
    size_ = spec->head_size;
    if (all_heads < 1 || all_kv_heads < 1 || all_heads % all_kv_heads != 0)
        throw InputError(model.name, "attention/num_kv_heads", std::to_string(all_kv_heads),
                         "a divisor of num_attention_heads (" + std::to_string(all_heads) + ")");
    if (all_kv_heads % parts != 0)
        throw InputError(model.name, "attention/num_kv_heads", std::to_string(all_kv_heads),
                         "a multiple of --tp (" + std::to_string(parts) +
                             "): a tensor parallel rank trains whole key-value heads");
    heads_ = all_heads / parts;
    kv_heads_ = all_kv_heads / parts;
    if (size_ < 2 || size_ % 2 != 0)
        throw InputError(model.name, "attention/head_size", std::to_string(size_),
                         "an even number: rotary positions turn pairs");
    window_ = layer.window.value_or(0);
    qk_norm_full_ = spec->qk_norm_full;
    const double in = 1 / std::sqrt(double(hidden_));
    // Output projections begin smaller, by the number of additions to the residual stream (GPT-2).
    const double out =
        1 / std::sqrt(double(all_heads * size_)) / std::sqrt(2.0 * double(model.layers.size()));
    const Held split = parts > 1 ? Held::by_tensor_rank : Held::by_all;
    const auto by_rows = [&](const char* which, std::int64_t rows) {
        return &parameters.make(name + which, {rows, hidden_}, in, 0, split, part * rows * hidden_);
    };
    q_ = by_rows(".q", heads_ * size_);
    k_ = by_rows(".k", kv_heads_ * size_);
    v_ = by_rows(".v", kv_heads_ * size_);
    out_ = &parameters.make(
        name + ".out", {hidden_, heads_ * size_}, out, 0, split,
        Share(part * heads_ * size_, heads_ * size_, all_heads * size_));  // columns
    const auto vector = [&](const char* which, std::int64_t width, double mean,
                            Held held = Held::by_all, std::int64_t first = 0) {
        return &parameters.make(name + which, {width}, 0, mean, held, first, false);
    };
    if (spec->bias) {
        q_bias_ = vector(".q_bias", heads_ * size_, 0, split, part * heads_ * size_);
        k_bias_ = vector(".k_bias", kv_heads_ * size_, 0, split, part * kv_heads_ * size_);
        v_bias_ = vector(".v_bias", kv_heads_ * size_, 0, split, part * kv_heads_ * size_);
    }
    if (spec->output_bias) out_bias_ = vector(".out_bias", hidden_, 0);
    if (qk_norm_full_ && parts > 1)
        throw InputError(model.name, "attention/qk_norm_full", "true",
                         "false with --tp " + std::to_string(parts) +
                             ": this norm is taken over all heads at once");
    if (spec->qk_norm && !qk_norm_full_) {  // one vector for all heads: its gradient is by heads
        q_norm_ = vector(".q_norm", size_, 1, Held::by_all_in_parts);
        k_norm_ = vector(".k_norm", size_, 1, Held::by_all_in_parts);
    } else if (spec->qk_norm) {
        q_norm_ = vector(".q_norm", heads_ * size_, 1);
        k_norm_ = vector(".k_norm", kv_heads_ * size_, 1);
    }
}

AttentionForward SelfAttention::call(const MicroBatch& batch, Saved& saved) const {
    AttentionForward call;
    call.q = saved.q.data();
    call.k = saved.k.data();
    call.v = saved.v.data();
    call.q_stride = heads_ * size_;
    call.k_stride = call.v_stride = kv_heads_ * size_;
    call.out = saved.out.data();
    call.log_sum_exp = saved.log_sum_exp.data();
    call.documents = batch.documents.ids();
    call.batch = batch.num_sequences;
    call.sequence = batch.sequence_length;
    call.num_heads = heads_;
    call.num_kv_heads = kv_heads_;
    call.head_size = size_;
    call.window = window_;
    call.scale = 1 / std::sqrt(double(size_));
    call.format = rt_.format;
    return call;
}

Tensor SelfAttention::forward(const Tensor& x, const MicroBatch& batch, Saved& saved) {
    const std::int64_t tokens = batch.num_tokens();
    const auto project = [&](Parameter* weight, Parameter* bias, std::int64_t heads) {
        Tensor y = rt_.tensor(tokens * heads * size_);
        linear_forward(rt_, x.data(), weight->value.data(), y.data(), tokens, hidden_,
                       heads * size_);
        if (bias) add_bias(rt_, y.data(), bias->value.data(), tokens, heads * size_);
        return y;
    };
    saved.q = project(q_, q_bias_, heads_);
    saved.k = project(k_, k_bias_, kv_heads_);
    saved.v = project(v_, v_bias_, kv_heads_);
    const auto normalise = [&](Tensor& values, Tensor& raw, Tensor& scale, Parameter* weight,
                               std::int64_t heads) {
        const std::int64_t width = qk_norm_full_ ? heads * size_ : size_,
                           rows = tokens * heads * size_ / width;
        raw = std::move(values);
        values = rt_.tensor(tokens * heads * size_);
        scale = rt_.statistic(rows);
        rt_.run(rt_.kernels.rms_norm_forward,
                RmsNormForward{raw.data(), weight->value.data(), values.data(), scale.data(), rows,
                               width, 1e-6, rt_.format},
                "rms_norm_forward");
    };
    if (q_norm_) {
        normalise(saved.q, saved.q_raw, saved.q_scale, q_norm_, heads_);
        normalise(saved.k, saved.k_raw, saved.k_scale, k_norm_, kv_heads_);
    }
    const auto turn = [&](Tensor& values, std::int64_t heads) {
        rt_.run(rt_.kernels.rope_forward,
                Rope{values.data(), batch.positions.ids(), tokens, heads, size_, heads * size_,
                     theta_, rt_.format},
                "rope_forward");
    };
    turn(saved.q, heads_);
    turn(saved.k, kv_heads_);
    saved.out = rt_.tensor(tokens * heads_ * size_);
    saved.log_sum_exp = rt_.statistic(tokens * heads_);
    rt_.run(rt_.kernels.attention_forward, call(batch, saved), "attention_forward");
    Tensor y = rt_.tensor(tokens * hidden_);
    linear_forward(rt_, saved.out.data(), out_->value.data(), y.data(), tokens, heads_ * size_,
                   hidden_);
    if (out_bias_ && groups_.tensor.rank() == 0)
        add_bias(rt_, y.data(), out_bias_->value.data(), tokens, hidden_);
    sum_over(rt_, groups_.tensor, y.data(), y.count(), y.format(), groups_.times.tensor);
    return y;
}

Tensor SelfAttention::backward(const Tensor& x, const Tensor& dy, const MicroBatch& batch,
                               Saved& saved) {
    const std::int64_t tokens = batch.num_tokens(), all = heads_ * size_, kv = kv_heads_ * size_;
    if (out_bias_) add_bias_gradient(rt_, dy.data(), out_bias_->gradient.data(), tokens, hidden_);
    Tensor dout = rt_.tensor(tokens * all);
    linear_backward(rt_, saved.out.data(), out_->value.data(), dy.data(), dout.data(),
                    out_->gradient.data(), tokens, all, hidden_);
    Tensor dq = rt_.tensor(tokens * all), dk = rt_.tensor(tokens * kv),
           dv = rt_.tensor(tokens * kv);
    AttentionBackward backward;
    backward.forward = call(batch, saved);
    backward.dout = dout.data();
    backward.dq = dq.data();
    backward.dk = dk.data();
    backward.dv = dv.data();
    rt_.run(rt_.kernels.attention_backward, backward, "attention_backward");
    dout.reset();
    const auto turn_back = [&](Tensor& values, std::int64_t heads) {
        rt_.run(rt_.kernels.rope_backward,
                Rope{values.data(), batch.positions.ids(), tokens, heads, size_, heads * size_,
                     theta_, rt_.format},
                "rope_backward");
    };
    turn_back(dq, heads_);
    turn_back(dk, kv_heads_);
    const auto norm_back = [&](Tensor& d, Tensor& raw, Tensor& scale, Parameter* weight,
                               std::int64_t heads) {
        const std::int64_t width = qk_norm_full_ ? heads * size_ : size_,
                           rows = tokens * heads * size_ / width;
        Tensor out = rt_.tensor(tokens * heads * size_);
        rt_.run(
            rt_.kernels.rms_norm_backward,
            RmsNormBackward{raw.data(), weight->value.data(), scale.data(), d.data(), out.data(),
                            weight->gradient.data(), rows, width, false, rt_.format},
            "rms_norm_backward");
        d = std::move(out);
    };
    if (q_norm_) {
        norm_back(dq, saved.q_raw, saved.q_scale, q_norm_, heads_);
        norm_back(dk, saved.k_raw, saved.k_scale, k_norm_, kv_heads_);
    }
    Tensor dx = rt_.tensor(tokens * hidden_);
    const auto project_back = [&](Tensor& d, Parameter* weight, Parameter* bias, std::int64_t width,
                                  bool accumulate) {
        if (bias) add_bias_gradient(rt_, d.data(), bias->gradient.data(), tokens, width);
        linear_backward(rt_, x.data(), weight->value.data(), d.data(), dx.data(),
                        weight->gradient.data(), tokens, hidden_, width, accumulate);
    };
    project_back(dq, q_, q_bias_, all, false);
    project_back(dk, k_, k_bias_, kv, true);
    project_back(dv, v_, v_bias_, kv, true);
    sum_over(rt_, groups_.tensor, dx.data(), dx.count(), dx.format(), groups_.times.tensor);
    saved = {};
    return dx;
}

}  // namespace moeplan
