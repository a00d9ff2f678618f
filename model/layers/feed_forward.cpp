#include "model/layers/feed_forward.hpp"

#include <cmath>

#include "core/errors.hpp"

namespace moeplan {
namespace {

ActivationKind kind_of(Activation activation) {
    switch (activation) {
        case Activation::swiglu:
            return ActivationKind::swiglu;
        case Activation::gelu:
            return ActivationKind::gelu;
        case Activation::relu:
            return ActivationKind::relu;
    }
    return ActivationKind::swiglu;
}

}  // namespace

ExpertNetworks::ExpertNetworks(Runtime& rt, ParameterSet& parameters, const std::string& name,
                               std::int64_t width, std::int64_t inner, Activation activation,
                               bool bias, int num_layers, Held held, std::int64_t num_experts,
                               std::int64_t first, int part, int parts, bool sub_norm)
    : rt_(rt),
      width_(width),
      inner_(inner / parts),
      experts_(num_experts),
      part_(part),
      activation_(activation) {
    if (inner % parts != 0)
        throw InputError(name, "inner width", std::to_string(inner),
                         "a multiple of the " + std::to_string(parts) + " ranks that share it");
    if (sub_norm && parts > 1)
        throw InputError(name, "sub_norm", "true",
                         "false with an inner width in " + std::to_string(parts) +
                             " parts (--tp, --etp): this norm is taken over all of it");
    const std::int64_t gated = activation == Activation::swiglu ? 2 : 1;  // blocks of `inner` rows
    const double in = 1 / std::sqrt(double(width)),
                 out = 1 / std::sqrt(double(inner)) / std::sqrt(2.0 * num_layers);
    // The whole up is [experts, gated, inner, width], of which we have rows of `inner`; the whole
    // down is [experts, width, inner], of which we have columns.
    const auto rows_of = [&](std::int64_t row) {
        return Share(first * gated * inner * row + part * inner_ * row, inner_ * row, inner * row);
    };
    const Held split = held == Held::by_all && parts > 1 ? Held::by_tensor_rank : held;
    up_ = &parameters.make(name + ".up", {num_experts, gated * inner_, width}, in, 0, split,
                           rows_of(width));
    down_ = &parameters.make(name + ".down", {num_experts, width, inner_}, out, 0, split,
                             Share(first * width * inner + part * inner_, inner_, inner));
    if (bias) {
        up_bias_ = &parameters.make(name + ".up_bias", {num_experts, gated * inner_}, 0, 0, split,
                                    rows_of(1), false);
        down_bias_ = &parameters.make(name + ".down_bias", {num_experts, width}, 0, 0, held,
                                      first * width, false, part == 0);
    }
    if (sub_norm)
        sub_norm_ = std::make_unique<LayerNorm>(rt, parameters, name + ".sub_norm", inner, held,
                                                num_experts, first);
}

void ExpertNetworks::product(GroupedProduct kind, void* x, void* w, void* y, std::int64_t rows,
                             std::int64_t n, std::int64_t k, const Tensor& offsets,
                             const std::vector<std::int32_t>& host_offsets) {
    if (experts_ == 1) {  // one group is a plain product
        if (kind == GroupedProduct::forward) linear_forward(rt_, x, w, y, rows, k, n);
        if (kind == GroupedProduct::data_gradient)
            linear_backward(rt_, nullptr, w, y, x, nullptr, rows, k, n);
        if (kind == GroupedProduct::weight_gradient)
            linear_backward(rt_, x, nullptr, y, nullptr, w, rows, k, n);
        return;
    }
    GroupedGemmCall call;
    call.x = x;
    call.w = w;
    call.y = y;
    call.offsets = offsets.ids();
    call.host_offsets = host_offsets.data();
    call.num_experts = experts_;
    call.rows = rows;
    call.n = n;
    call.k = k;
    call.product = kind;
    call.format = rt_.format;
    rt_.run(rt_.kernels.grouped_gemm, call, "grouped_gemm");
}

Tensor ExpertNetworks::forward(const void* x, std::int64_t rows, const Tensor& offsets,
                               const std::vector<std::int32_t>& host_offsets, Saved& saved) {
    const std::int64_t wide = activation_ == Activation::swiglu ? 2 * inner_ : inner_;
    void* in = const_cast<void*>(x);
    saved.before = rt_.tensor(rows * wide);
    product(GroupedProduct::forward, in, up_->value.data(), saved.before.data(), rows, wide, width_,
            offsets, host_offsets);
    saved.inner = rt_.tensor(rows * inner_);
    ExpertActivationForward call;
    call.x = saved.before.data();
    call.bias = up_bias_ ? up_bias_->value.data() : nullptr;
    call.offsets = experts_ > 1 ? offsets.ids() : nullptr;
    call.y = saved.inner.data();
    call.rows = rows;
    call.width = inner_;
    call.num_groups = experts_;
    call.kind = kind_of(activation_);
    call.format = rt_.format;
    rt_.run(rt_.kernels.expert_activation_forward, call, "expert_activation_forward");
    if (sub_norm_)
        saved.inner =
            sub_norm_->forward(saved.inner.data(), rows, offsets, host_offsets, saved.norm);
    Tensor y = rt_.tensor(rows * width_);
    product(GroupedProduct::forward, saved.inner.data(), down_->value.data(), y.data(), rows,
            width_, inner_, offsets, host_offsets);
    if (down_bias_ && part_ == 0)
        rt_.run(
            rt_.kernels.bias_forward,
            BiasForward{y.data(), down_bias_->value.data(), experts_ > 1 ? offsets.ids() : nullptr,
                        rows, width_, experts_, rt_.format},
            "bias_forward");
    return y;
}

Tensor ExpertNetworks::backward(const void* x, const Tensor& dy, std::int64_t rows,
                                const Tensor& offsets,
                                const std::vector<std::int32_t>& host_offsets, Saved& saved) {
    const std::int64_t wide = activation_ == Activation::swiglu ? 2 * inner_ : inner_;
    void* in = const_cast<void*>(x);
    const std::int32_t* groups = experts_ > 1 ? offsets.ids() : nullptr;
    if (down_bias_)
        rt_.run(rt_.kernels.bias_backward,
                BiasBackward{dy.data(), down_bias_->gradient.data(), groups, rows, width_, experts_,
                             rt_.format},
                "bias_backward");
    product(GroupedProduct::weight_gradient, saved.inner.data(), down_->gradient.data(), dy.data(),
            rows, width_, inner_, offsets, host_offsets);
    Tensor dinner = rt_.tensor(rows * inner_);
    product(GroupedProduct::data_gradient, dinner.data(), down_->value.data(), dy.data(), rows,
            width_, inner_, offsets, host_offsets);
    saved.inner.reset();
    if (sub_norm_) dinner = sub_norm_->backward(dinner, rows, offsets, host_offsets, saved.norm);
    // The gradient of what the activation saw takes its place.
    ExpertActivationBackward call;
    call.x = saved.before.data();
    call.bias = up_bias_ ? up_bias_->value.data() : nullptr;
    call.dy = dinner.data();
    call.offsets = groups;
    call.dx = saved.before.data();
    call.dbias = up_bias_ ? up_bias_->gradient.data() : nullptr;
    call.rows = rows;
    call.width = inner_;
    call.num_groups = experts_;
    call.kind = kind_of(activation_);
    call.format = rt_.format;
    rt_.run(rt_.kernels.expert_activation_backward, call, "expert_activation_backward");
    dinner.reset();
    product(GroupedProduct::weight_gradient, in, up_->gradient.data(), saved.before.data(), rows,
            wide, width_, offsets, host_offsets);
    Tensor dx = rt_.tensor(rows * width_);
    product(GroupedProduct::data_gradient, dx.data(), up_->value.data(), saved.before.data(), rows,
            wide, width_, offsets, host_offsets);
    saved.before.reset();
    return dx;
}

Tensor ExpertNetworks::forward_all(const void* x, std::int64_t rows, Saved& saved) {
    return forward(x, rows, {}, {}, saved);
}
Tensor ExpertNetworks::backward_all(const void* x, const Tensor& dy, std::int64_t rows,
                                    Saved& saved) {
    return backward(x, dy, rows, {}, {}, saved);
}

}  // namespace moeplan
