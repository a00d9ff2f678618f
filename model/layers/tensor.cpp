#include "model/layers/tensor.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "core/errors.hpp"

namespace moeplan {
Tensor::Tensor(CachingAllocator& memory, std::int64_t count, NumberFormat format)
    : memory_(&memory), count_(count), format_(format) {
    data_ = memory.take(bytes());
}

void Tensor::reset() {
    if (data_) memory_->give(data_, bytes());
    data_ = nullptr;
    count_ = 0;
}

void Tensor::swap(Tensor& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    std::swap(format_, other.format_);
}

Tensor Runtime::upload(const std::vector<std::int32_t>& host) {
    Tensor out = ids(std::int64_t(host.size()));
    copy(out.data(), host.data(), out.bytes());
    check(backend.synchronise(stream), "synchronise");
    return out;
}

std::vector<std::int32_t> Runtime::download_ids(const void* device, std::int64_t count) {
    std::vector<std::int32_t> out(static_cast<std::size_t>(count));
    copy(out.data(), device, out.size() * sizeof(std::int32_t));
    check(backend.synchronise(stream), "synchronise");
    return out;
}

std::vector<double> Runtime::download(const void* device, std::int64_t count, NumberFormat of) {
    std::vector<double> out(static_cast<std::size_t>(count));
    if (of == NumberFormat::f64) {
        copy(out.data(), device, out.size() * sizeof(double));
        check(backend.synchronise(stream), "synchronise");
        return out;
    }
    if (of == NumberFormat::bf16) {  // its bits are the upper half of an f32's
        std::vector<std::uint16_t> halves(out.size());
        copy(halves.data(), device, halves.size() * sizeof(std::uint16_t));
        check(backend.synchronise(stream), "synchronise");
        for (std::size_t i = 0; i < out.size(); ++i)
            out[i] = std::bit_cast<float>(std::uint32_t(halves[i]) << 16);
        return out;
    }
    std::vector<float> narrow(out.size());
    copy(narrow.data(), device, narrow.size() * sizeof(float));
    check(backend.synchronise(stream), "synchronise");
    std::copy(narrow.begin(), narrow.end(), out.begin());
    return out;
}

void Runtime::upload(void* device, const std::vector<double>& host, NumberFormat of) {
    if (of == NumberFormat::bf16) {  // rounded on the device, as an optimizer's step is
        Tensor wide(memory, std::int64_t(host.size()), NumberFormat::f32);
        upload(wide.data(), host, NumberFormat::f32);
        run(kernels.convert, Convert{wide.data(), device, wide.count(), NumberFormat::f32, of},
            "convert");
        return;
    }
    if (of == NumberFormat::f64) {
        copy(device, host.data(), host.size() * sizeof(double));
    } else {
        const std::vector<float> narrow(host.begin(), host.end());
        copy(device, narrow.data(), narrow.size() * sizeof(float));
        check(backend.synchronise(stream), "synchronise");
        return;
    }
    check(backend.synchronise(stream), "synchronise");
}

void Runtime::convert(const Tensor& from, Tensor& to) {
    run(kernels.convert, Convert{from.data(), to.data(), from.count(), from.format(), to.format()},
        "convert");
}
Tensor Runtime::converted(const Tensor& from, NumberFormat to) {
    Tensor out(memory, from.count(), to);
    convert(from, out);
    return out;
}

Tensor Runtime::converted(const void* from, std::int64_t count, NumberFormat of, NumberFormat to) {
    Tensor out(memory, count, to);
    run(kernels.convert, Convert{from, out.data(), count, of, to}, "convert");
    return out;
}

void Runtime::missing(std::string_view kernel) const {
    throw EnvironmentError(std::string(backend.facts->name) + " has no kernel " +
                           std::string(kernel) + ": use --device cpu for this model");
}

void linear_forward(Runtime& rt, const void* x, const void* w, void* y, std::int64_t rows,
                    std::int64_t in, std::int64_t out, std::optional<NumberFormat> format) {
    GemmCall call;
    call.a = x;
    call.b = w;
    call.c = y;
    call.m = rows;
    call.n = out;
    call.k = in;
    call.lda = in;
    call.ldb = in;
    call.ldc = out;
    call.transpose_b = true;
    call.format = call.out_format = format.value_or(rt.format);
    rt.run(rt.kernels.gemm, call, "gemm");
}

void linear_backward(Runtime& rt, const void* x, const void* w, const void* dy, void* dx, void* dw,
                     std::int64_t rows, std::int64_t in, std::int64_t out, bool accumulate,
                     std::optional<NumberFormat> format) {
    GemmCall call;
    call.format = call.out_format = format.value_or(rt.format);
    if (dx) {
        call.a = dy;
        call.b = w;
        call.c = dx;
        call.m = rows;
        call.n = in;
        call.k = out;
        call.lda = out;
        call.ldb = in;
        call.ldc = in;
        call.beta = accumulate ? 1 : 0;
        rt.run(rt.kernels.gemm, call, "gemm");
    }
    if (dw) {
        call.a = dy;
        call.b = x;
        call.c = dw;
        call.m = out;
        call.n = in;
        call.k = rows;
        call.lda = out;
        call.ldb = in;
        call.ldc = in;
        call.transpose_a = true;
        call.beta = 1;
        call.out_format = rt.stat;
        rt.run(rt.kernels.gemm, call, "gemm");
    }
}

void add_bias(Runtime& rt, void* x, const void* bias, std::int64_t rows, std::int64_t width,
              std::optional<NumberFormat> format) {
    rt.run(rt.kernels.bias_forward,
           BiasForward{x, bias, nullptr, rows, width, 1, format.value_or(rt.format)},
           "bias_forward");
}
void add_bias_gradient(Runtime& rt, const void* dy, void* dbias, std::int64_t rows,
                       std::int64_t width, std::optional<NumberFormat> format) {
    rt.run(rt.kernels.bias_backward,
           BiasBackward{dy, dbias, nullptr, rows, width, 1, format.value_or(rt.format)},
           "bias_backward");
}
void add(Runtime& rt, const void* a, const void* b, void* out, std::int64_t count,
         std::optional<NumberFormat> format) {
    rt.run(rt.kernels.residual_add, ResidualAdd{a, b, out, count, format.value_or(rt.format)},
           "residual_add");
}

}  // namespace moeplan
