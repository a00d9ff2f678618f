#pragma once
/// Device memory with an owner, and what every layer needs at hand to compute.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "core/number_format.hpp"
#include "kernels/caching_allocator.hpp"
#include "kernels/graphed_calls.hpp"
#include "kernels/kernel_set.hpp"

namespace moeplan {

/// `count` elements on the device. Moves, never copies.
class Tensor {
  public:
    Tensor() = default;
    Tensor(CachingAllocator& memory, std::int64_t count, NumberFormat format);
    Tensor(Tensor&& other) noexcept { swap(other); }
    Tensor& operator=(Tensor&& other) noexcept {
        swap(other);
        return *this;
    }
    ~Tensor() { reset(); }

    void* data() const { return data_; }
    std::int64_t count() const { return count_; }
    NumberFormat format() const { return format_; }
    std::size_t bytes() const { return std::size_t(count_) * std::size_t(size_of(format_).value); }
    explicit operator bool() const { return data_ != nullptr; }
    void reset();

    std::int32_t* ids() const { return static_cast<std::int32_t*>(data_); }    ///< of an i32 tensor
    std::uint8_t* flags() const { return static_cast<std::uint8_t*>(data_); }  ///< of a u8 tensor

  private:
    void swap(Tensor& other) noexcept;
    CachingAllocator* memory_ = nullptr;
    void* data_ = nullptr;
    std::int64_t count_ = 0;
    NumberFormat format_ = NumberFormat::f32;
};

/// A tensor, or a part of one: where it begins, nothing of who owns it.
inline void* at(void* data, std::int64_t element, NumberFormat format) {
    return static_cast<char*>(data) + element * std::int64_t(size_of(format).value);
}
inline const void* at(const void* data, std::int64_t element, NumberFormat format) {
    return static_cast<const char*>(data) + element * std::int64_t(size_of(format).value);
}

/// What layers compute with: a device's kernels, a number format, memory.
class Runtime {
  public:
    Runtime(const Backend& backend, NumberFormat format)
        : backend(backend),
          kernels(*backend.kernels),
          format(format),
          stat(stat_format(format)),
          memory(backend),
          graphs(memory) {}

    Tensor tensor(std::int64_t count) { return Tensor(memory, count, format); }
    Tensor statistic(std::int64_t count) { return Tensor(memory, count, stat); }
    Tensor ids(std::int64_t count) { return Tensor(memory, count, NumberFormat::i32); }
    Tensor upload(const std::vector<std::int32_t>& host);
    std::vector<std::int32_t> download_ids(const void* device, std::int64_t count);
    std::vector<double> download(const void* device, std::int64_t count,
                                 NumberFormat format);  ///< f32, f64 or bf16
    void upload(void* device, const std::vector<double>& host, NumberFormat format);
    /// to = from, in to's format; the same count.
    void convert(const Tensor& from, Tensor& to);
    Tensor converted(const Tensor& from, NumberFormat to);
    Tensor converted(const void* from, std::int64_t count, NumberFormat of, NumberFormat to);
    void zero(void* data, std::size_t bytes) {
        if (graphs.collecting()) return graphs.add(SetZero{data, bytes});
        check(backend.set_zero(data, bytes, stream), "set_zero");
    }
    void zero(Tensor& tensor) { zero(tensor.data(), tensor.bytes()); }
    void copy(void* to, const void* from, std::size_t bytes) {
        graphs.give_up(stream);
        check(backend.copy(to, from, bytes, stream), "copy");
    }

    /// Run a row of the table. @throws EnvironmentError with the kernel's name
    template <class Args>
    void run(Status (*kernel)(const Args*, Stream_*), const Args& args, std::string_view name) {
        if (!kernel) missing(name);
        if (graphs.collecting()) {
            if constexpr (std::equality_comparable<Args>)
                return graphs.add(kernel, args, name);
            else
                graphs.give_up(stream);
        }
        check(memory.with_memory([&] { return kernel(&args, stream); }), name);
    }

    /// Work whose calls are the same from step to step, launched as one where the device can
    /// (kernels/graphed_calls.hpp). What the body runs has run, or waits in the stream, when this
    /// returns; whatever the body waits for makes an ordinary stretch of it.
    template <class Body>
    void stretch(std::string_view name, Body body) {
        graphs.begin(name);
        try {
            body();
        } catch (...) {
            graphs.drop();
            throw;
        }
        graphs.end(stream);
    }

    const Backend& backend;
    const KernelSet& kernels;
    Stream_* stream = nullptr;
    NumberFormat format, stat;
    CachingAllocator memory;
    GraphedCalls graphs;

  private:
    [[noreturn]] void missing(std::string_view kernel) const;
};

/// @name y = x · wᵀ, w is out × in as a Linear's; all in the runtime's format, or in the one given.
/// @{
void linear_forward(Runtime&, const void* x, const void* w, void* y, std::int64_t rows,
                    std::int64_t in, std::int64_t out, std::optional<NumberFormat> format = {});
/// dx (written, or += if accumulate) = dy · w; dw += dyᵀ · x, in stat. Null pointers are left out.
void linear_backward(Runtime&, const void* x, const void* w, const void* dy, void* dx, void* dw,
                     std::int64_t rows, std::int64_t in, std::int64_t out, bool accumulate = false,
                     std::optional<NumberFormat> format = {});
/// @}
void add_bias(Runtime&, void* x, const void* bias, std::int64_t rows, std::int64_t width,
              std::optional<NumberFormat> format = {});
void add_bias_gradient(Runtime&, const void* dy, void* dbias, std::int64_t rows, std::int64_t width,
                       std::optional<NumberFormat> format = {});
/// out = a + b.
void add(Runtime&, const void* a, const void* b, void* out, std::int64_t count,
         std::optional<NumberFormat> format = {});

}  // namespace moeplan
