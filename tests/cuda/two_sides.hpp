#pragma once
/// One kernel call on two sides: the device under test, and the CPU in f64 on the same rounded inputs.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "core/seed.hpp"
#include "kernels/backend.hpp"
#include "kernels/cpu/cpu_backend.hpp"
#include "kernels/kernel_set.hpp"
#include "tests/tolerance.hpp"

namespace moeplan::test {

/// The device these tests run on, or null with the reason. A shim build and a GPU build define it.
const Backend* device_under_test(std::string* why);
/// Runs the body under every schedule worth trying: one on a GPU, several orders and workers in the shim.
void under_every_schedule(const std::function<void()>& body);
/// How far sizes may go: the sanitizers' builds take smaller ones.
bool small_shapes_only();

enum class Side { device, reference };

/// The same tensor on both sides.
struct Both {
    void *device = nullptr, *reference = nullptr;
    std::int64_t count = 0;
    NumberFormat format = NumberFormat::f32;                  ///< on the device; the reference holds f64 (integers as they are)
    void* operator()(Side side) const { return side == Side::device ? device : reference; }
    template <typename T>
    T* as(Side side) const { return static_cast<T*>((*this)(side)); }
};

inline std::size_t bytes_of(NumberFormat f) { return static_cast<std::size_t>(size_of(f).value); }

/// Of a stored result.
inline double unit_roundoff(NumberFormat f) { return f == NumberFormat::bf16 ? kRoundoffBf16 : kRoundoffF32; }

/// Values in the storage format and back.
inline void store(NumberFormat format, double value, void* base, std::int64_t i) {
    const float f = static_cast<float>(value);
    if (format == NumberFormat::f64) {
        static_cast<double*>(base)[i] = value;
    } else if (format == NumberFormat::f32) {
        static_cast<float*>(base)[i] = f;
    } else {
        std::uint32_t bits;
        std::memcpy(&bits, &f, 4);
        static_cast<std::uint16_t*>(base)[i] = (bits & 0x7fffffffu) > 0x7f800000u
                                                   ? std::uint16_t{0x7fff}
                                                   : static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
    }
}
inline double load(NumberFormat format, const void* base, std::int64_t i) {
    if (format == NumberFormat::f64) return static_cast<const double*>(base)[i];
    if (format == NumberFormat::f32) return static_cast<const float*>(base)[i];
    const std::uint32_t bits = std::uint32_t{static_cast<const std::uint16_t*>(base)[i]} << 16;
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
}

class Bench {
  public:
    Bench(const Backend& device, NumberFormat format, std::uint64_t seed) : device_(device), format_(format), draws_({seed}) {}
    ~Bench() {
        for (const Both& b : buffers_) {
            (void)device_.release(b.device);
            (void)cpu_backend().release(b.reference);
        }
    }
    Bench(const Bench&) = delete;

    NumberFormat format(Side s) const { return s == Side::device ? format_ : NumberFormat::f64; }
    NumberFormat stat() const { return NumberFormat::f32; }

    /// Random values in [low, high), rounded to the format on both sides.
    Both random(std::int64_t count, double low, double high, NumberFormat format) {
        std::vector<double> v(count);
        for (auto& x : v) x = low + (high - low) * uniform();
        return values(v, format);
    }
    Both random(std::int64_t count, double low = -1, double high = 1) { return random(count, low, high, format_); }
    Both values(const std::vector<double>& v, NumberFormat format) {
        Both b = make(static_cast<std::int64_t>(v.size()), format);
        std::vector<char> bytes(v.size() * bytes_of(format));
        for (std::size_t i = 0; i < v.size(); ++i) {
            store(format, v[i], bytes.data(), static_cast<std::int64_t>(i));
            if (b.reference) static_cast<double*>(b.reference)[i] = load(format, bytes.data(), static_cast<std::int64_t>(i));
        }
        upload(b.device, bytes.data(), bytes.size());
        return b;
    }
    /// Not yet written: NaN on both sides.
    Both output(std::int64_t count, NumberFormat format) {
        return values(std::vector<double>(count, std::numeric_limits<double>::quiet_NaN()), format);
    }
    Both output(std::int64_t count) { return output(count, format_); }
    template <typename T>
    Both integers(const std::vector<T>& v) {
        Both b;
        b.count = static_cast<std::int64_t>(v.size());
        b.format = sizeof(T) == 4 ? NumberFormat::i32 : NumberFormat::u8;
        allocate(b, v.size() * sizeof(T), v.size() * sizeof(T));
        if (!v.empty()) std::memcpy(b.reference, v.data(), v.size() * sizeof(T));
        upload(b.device, v.data(), v.size() * sizeof(T));
        return b;
    }
    template <typename T>
    std::vector<T> integers_on(const Both& b, Side side) const {
        std::vector<T> v(b.count);
        if (side == Side::reference) {
            if (b.count) std::memcpy(v.data(), b.reference, v.size() * sizeof(T));
        } else {
            download(v.data(), b.device, v.size() * sizeof(T));
        }
        return v;
    }
    std::vector<double> got(const Both& b) const {
        std::vector<char> bytes(b.count * bytes_of(b.format));
        download(bytes.data(), b.device, bytes.size());
        std::vector<double> v(b.count);
        for (std::int64_t i = 0; i < b.count; ++i) v[i] = load(b.format, bytes.data(), i);
        return v;
    }
    std::vector<double> expected(const Both& b) const {
        const auto* p = static_cast<const double*>(b.reference);
        return {p, p + b.count};
    }
    /// Runs a row of the table on both sides: fill(side) makes the call's arguments.
    template <typename Call, typename Fill>
    void run(Status (*KernelSet::*row)(const Call*, Stream_*), Fill fill) const {
        const Call on_device = fill(Side::device), on_reference = fill(Side::reference);
        const Status device_status = (device_.kernels->*row)(&on_device, nullptr);
        ASSERT_EQ(device_status.code, kOk) << device_status.message;
        const Status waited = device_.synchronise(nullptr);
        ASSERT_EQ(waited.code, kOk) << waited.message;
        const Status reference_status = (cpu_backend().kernels->*row)(&on_reference, nullptr);
        ASSERT_EQ(reference_status.code, kOk) << reference_status.message;
    }

    /// |a − b| ≤ u_out·|b| + kAccumulation·√terms·u_f32·magnitude; magnitude bounds Σ|summand| of every element.
    void expect_close(const char* what, const Both& b, double terms, double magnitude) const {
        expect_close(what, b, terms, std::vector<double>(b.count, magnitude));
    }
    void expect_close(const char* what, const Both& b, double terms, const std::vector<double>& magnitude) const {
        const auto a = got(b), e = expected(b);
        int shown = 0;
        for (std::size_t i = 0; i < a.size() && shown < 3; ++i) {
            const double allowed = unit_roundoff(b.format) * std::abs(e[i]) + kAccumulation * std::sqrt(terms) * kRoundoffF32 * magnitude[i];
            if (std::isnan(e[i]) ? std::isnan(a[i]) : std::isinf(e[i]) ? a[i] == e[i] : std::abs(a[i] - e[i]) <= allowed) continue;
            ++shown;
            ADD_FAILURE() << what << "[" << i << "] is " << a[i] << ", the reference has " << e[i] << " ± " << allowed;
        }
    }
    template <typename T>
    void expect_same(const char* what, const Both& b, std::int64_t count = -1) const {
        const auto a = integers_on<T>(b, Side::device), e = integers_on<T>(b, Side::reference);
        for (std::int64_t i = 0; i < (count < 0 ? b.count : count); ++i)
            if (a[i] != e[i]) {
                ADD_FAILURE() << what << "[" << i << "] is " << +a[i] << ", the reference has " << +e[i];
                return;
            }
    }
    double uniform() { return draws_.uniform(); }
    double normal() { return draws_.normal(); }
    std::int32_t below(std::int64_t n) { return static_cast<std::int32_t>(draws_.below(n)); }

  private:
    Both make(std::int64_t count, NumberFormat format) {
        Both b;
        b.count = count;
        b.format = format;
        allocate(b, count * bytes_of(format), count * sizeof(double));
        return b;
    }
    void allocate(Both& b, std::size_t device_bytes, std::size_t reference_bytes) {
        const Status d = device_.allocate(device_bytes, &b.device), r = cpu_backend().allocate(reference_bytes, &b.reference);
        EXPECT_EQ(d.code, kOk) << d.message;
        EXPECT_EQ(r.code, kOk) << r.message;
        buffers_.push_back(b);
    }
    void upload(void* to, const void* from, std::size_t bytes) const {
        const Status s = device_.copy(to, from, bytes, nullptr);
        EXPECT_EQ(s.code, kOk) << s.message;
        EXPECT_EQ(device_.synchronise(nullptr).code, kOk);
    }
    void download(void* to, const void* from, std::size_t bytes) const { upload(to, from, bytes); }

    const Backend& device_;
    NumberFormat format_;
    DrawStream draws_;
    std::deque<Both> buffers_;
};

}  // namespace moeplan::test
