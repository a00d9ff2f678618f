#include "model/layers/norm.hpp"

namespace moeplan {
namespace {

/// body(first row, rows, element of the weights) for the rows of every expert.
template <class Body>
void each_expert(std::int64_t experts, std::int64_t rows, std::int64_t width,
                 const std::vector<std::int32_t>& offsets, Body body) {
    if (experts == 1) return body(std::int64_t(0), rows, std::int64_t(0));
    for (std::int64_t e = 0; e < experts; ++e) {
        const std::int64_t begin = offsets[std::size_t(e)],
                           count = offsets[std::size_t(e) + 1] - begin;
        if (count > 0) body(begin, count, e * width);
    }
}

}  // namespace

void centre_rows(Runtime& rt, const void* x, void* out, std::int64_t rows, std::int64_t width) {
    Tensor ones = rt.tensor(width), means = rt.tensor(rows);
    rt.upload(ones.data(), std::vector<double>(std::size_t(width), 1), rt.format);
    GemmCall mean;  // [rows, width] · [width, 1] / width
    mean.a = x;
    mean.b = ones.data();
    mean.c = means.data();
    mean.m = rows;
    mean.n = 1;
    mean.k = width;
    mean.lda = width;
    mean.ldb = mean.ldc = 1;
    mean.alpha = 1 / double(width);
    mean.format = mean.out_format = rt.format;
    rt.run(rt.kernels.gemm, mean, "gemm");
    if (out != x)
        rt.copy(out, x, std::size_t(rows * width) * std::size_t(size_of(rt.format).value));
    GemmCall take;  // out −= [rows, 1] · [1, width]
    take.a = means.data();
    take.b = ones.data();
    take.c = out;
    take.m = rows;
    take.n = width;
    take.k = 1;
    take.lda = 1;
    take.ldb = take.ldc = width;
    take.alpha = -1;
    take.beta = 1;
    take.format = take.out_format = rt.format;
    rt.run(rt.kernels.gemm, take, "gemm");
}

LayerNorm::LayerNorm(Runtime& rt, ParameterSet& parameters, const std::string& name,
                     std::int64_t width, Held held, std::int64_t num_experts,
                     std::int64_t first_expert)
    : rt_(rt), width_(width), experts_(num_experts) {
    const std::vector<std::int64_t> shape = {num_experts, width};
    weight_ = &parameters.make(name, shape, 0, 1, held, first_expert * width, false);
    bias_ = &parameters.make(name + "_bias", shape, 0, 0, held, first_expert * width, false);
}

Tensor LayerNorm::forward(const void* x, std::int64_t rows, const Tensor& offsets,
                          const std::vector<std::int32_t>& host_offsets, Saved& saved) {
    saved.centred = rt_.tensor(rows * width_);
    saved.scale = rt_.statistic(rows);
    Tensor y = rt_.tensor(rows * width_);
    if (rows == 0) return y;
    centre_rows(rt_, x, saved.centred.data(), rows, width_);
    each_expert(experts_, rows, width_, host_offsets, [&](auto begin, auto count, auto weight) {
        rt_.run(rt_.kernels.rms_norm_forward,
                RmsNormForward{at(saved.centred.data(), begin * width_, rt_.format),
                               at(weight_->value.data(), weight, rt_.format),
                               at(y.data(), begin * width_, rt_.format),
                               at(saved.scale.data(), begin, rt_.stat), count, width_,
                               kLayerNormEpsilon, rt_.format},
                "rms_norm_forward");
    });
    rt_.run(rt_.kernels.bias_forward,
            BiasForward{y.data(), bias_->value.data(), experts_ > 1 ? offsets.ids() : nullptr, rows,
                        width_, experts_, rt_.format},
            "bias_forward");
    return y;
}

Tensor LayerNorm::backward(const Tensor& dy, std::int64_t rows, const Tensor& offsets,
                           const std::vector<std::int32_t>& host_offsets, Saved& saved) {
    Tensor dx = rt_.tensor(rows * width_);
    if (rows == 0) return dx;
    rt_.run(rt_.kernels.bias_backward,
            BiasBackward{dy.data(), bias_->gradient.data(), experts_ > 1 ? offsets.ids() : nullptr,
                         rows, width_, experts_, rt_.format},
            "bias_backward");
    each_expert(experts_, rows, width_, host_offsets, [&](auto begin, auto count, auto weight) {
        RmsNormBackward call;
        call.x = at(saved.centred.data(), begin * width_, rt_.format);
        call.weight = at(weight_->value.data(), weight, rt_.format);
        call.inverse_rms = at(saved.scale.data(), begin, rt_.stat);
        call.dy = at(dy.data(), begin * width_, rt_.format);
        call.dx = at(dx.data(), begin * width_, rt_.format);
        call.dweight = at(weight_->gradient.data(), weight, rt_.stat);
        call.rows = count;
        call.width = width_;
        call.format = rt_.format;
        rt_.run(rt_.kernels.rms_norm_backward, call, "rms_norm_backward");
    });
    centre_rows(rt_, dx.data(), dx.data(), rows, width_);
    saved = {};
    return dx;
}

}  // namespace moeplan
