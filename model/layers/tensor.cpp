#include "model/layers/tensor.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "core/errors.hpp"
#include "core/quantity_text.hpp"

namespace moeplan {
namespace {

/// Sizes grow in eighths of a power of two, so that exchanges whose row counts change from step to
/// step find their block again.
std::size_t block_size(std::size_t bytes) {
    std::size_t step = 64;
    while (step * 16 < bytes) step *= 2;
    return std::max<std::size_t>(64, (bytes + step - 1) / step * step);
}

/// A kept block may be so many times larger than asked. Row counts of experts change with every
/// batch, and the first touch of new memory is dear, above all in a virtual machine.
constexpr std::size_t kMostSlack = 2;

}  // namespace

Memory::~Memory() {
    for (const auto& [size, blocks] : kept_)
        for (void* block : blocks) backend_.release(block);
}

void* Memory::take(std::size_t bytes) {
    const std::size_t size = block_size(bytes);
    in_use_ += bytes;
    peak_ = std::max(peak_, in_use_);
    if (const auto fits = kept_.lower_bound(size);
        fits != kept_.end() && fits->first <= kMostSlack * size) {
        void* block = fits->second.back();
        fits->second.pop_back();
        if (fits->second.empty()) kept_.erase(fits);
        return block;
    }
    void* block = nullptr;
    Status status = backend_.allocate(size, &block);
    if (status.code == kOutOfMemory) {  // give back what is kept, and try once more
        for (const auto& [other, blocks] : kept_)
            for (void* unused : blocks) {
                backend_.release(unused);
                size_of_.erase(unused);
            }
        kept_.clear();
        status = backend_.allocate(size, &block);
    }
    if (status.code != kOk) in_use_ -= bytes;
    if (status.code == kOutOfMemory)
        throw EnvironmentError(
            std::string(status.message) + ", for a tensor of " + to_text(Bytes{double(bytes)}) +
            "; weights, moments and activations take " + to_text(Bytes{double(in_use_)}) +
            ". A smaller --micro-batch or --seq needs less");
    check(status, "allocate");
    size_of_[block] = size;
    return block;
}

void Memory::give(void* block, std::size_t bytes) {
    in_use_ -= bytes;
    kept_[size_of_.at(block)].push_back(block);
}

Tensor::Tensor(Memory& memory, std::int64_t count, NumberFormat format)
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
