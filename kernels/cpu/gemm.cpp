/// Matrix products. f32 and bf16 go to oneDNN, one thread a rank (layouts give parallelism, not
/// thread teams); f64 is the plain definition, for references and gradient checks.
#include <dlfcn.h>
#include <oneapi/dnnl/dnnl.h>

#include <algorithm>
#include <cstring>

#include "kernels/cpu/cpu_backend.hpp"
#include "kernels/cpu/cpu_kernels.hpp"
#include "kernels/cpu/dispatch.hpp"

namespace moeplan::cpu {
namespace {

/// oneDNN's thread team is OpenMP's. Small products are slower on two threads than on one, and
/// ranks share the machine's cores.
void one_thread() {
    thread_local const bool done = [] {
        if (const auto set =
                reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads")))
            set(1);
        return true;
    }();
    (void)done;
}

/// c ← beta · c, with beta = 0 as "written whole": what c held before (NaN, too) does not matter.
template <class T>
void scale_rows(std::int64_t m, std::int64_t n, T beta, T* c, std::int64_t ldc) {
    for (std::int64_t i = 0; i < m; ++i)
        for (std::int64_t j = 0; j < n; ++j)
            c[i * ldc + j] = beta == T(0) ? T(0) : beta * c[i * ldc + j];
}

float from_bf16(std::uint16_t bits) {
    const std::uint32_t wide = std::uint32_t(bits) << 16;
    float out;
    std::memcpy(&out, &wide, sizeof out);
    return out;
}

/// To the nearest, ties to even; a NaN stays one.
std::uint16_t to_bf16(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    if ((bits & 0x7fffffff) > 0x7f800000) return std::uint16_t(bits >> 16 | 0x40);
    return std::uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/// oneDNN's bf16 product with f32 accumulation and output. Its library has it beside sgemm, its
/// header does not; where it, or the CPU's instructions, are missing: null.
using Bf16Gemm = dnnl_status_t (*)(char, char, dnnl_dim_t, dnnl_dim_t, dnnl_dim_t, float,
                                   const std::uint16_t*, dnnl_dim_t, const std::uint16_t*,
                                   dnnl_dim_t, float, float*, dnnl_dim_t);
Bf16Gemm bf16_gemm() {
    static const Bf16Gemm found =
        __builtin_cpu_supports("avx512bf16")
            ? reinterpret_cast<Bf16Gemm>(dlsym(RTLD_DEFAULT, "dnnl_gemm_bf16bf16f32"))
            : nullptr;
    return found;
}

/// @name n numbers, by the loops of this CPU's best instruction set.
/// @{
void widen(const std::uint16_t* from, float* to, std::int64_t n) {
    const Convert call{from, to, n, NumberFormat::bf16, NumberFormat::f32};
    cpu_backend().kernels->convert(&call, nullptr);
}
void narrow(const float* from, std::uint16_t* to, std::int64_t n) {
    const Convert call{from, to, n, NumberFormat::f32, NumberFormat::bf16};
    cpu_backend().kernels->convert(&call, nullptr);
}
/// @}

/// A stored matrix of `rows` × `columns`, widened and dense.
const float* widened(int slot, const std::uint16_t* from, std::int64_t rows, std::int64_t columns,
                     std::int64_t stride) {
    float* to = static_cast<float*>(scratch(slot, sizeof(float) * std::size_t(rows * columns)));
    for (std::int64_t i = 0; i < rows; ++i) widen(from + i * stride, to + i * columns, columns);
    return to;
}

void multiply(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k,
              float alpha, const std::uint16_t* a, std::int64_t lda, const std::uint16_t* b,
              std::int64_t ldb, float beta, float* c, std::int64_t ldc) {
    if (m == 0 || n == 0) return;
    if (k == 0) return scale_rows(m, n, beta, c, ldc);
    one_thread();
    if (const Bf16Gemm gemm = bf16_gemm())
        if (gemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, n, k, alpha, a, lda, b, ldb,
                 beta, c, ldc) == dnnl_success)
            return;
    const std::int64_t a_rows = transpose_a ? k : m, b_rows = transpose_b ? n : k;
    const std::int64_t a_columns = transpose_a ? m : k, b_columns = transpose_b ? k : n;
    const float* wide_a = widened(6, a, a_rows, a_columns, lda);
    const float* wide_b = widened(7, b, b_rows, b_columns, ldb);
    cpu::multiply(transpose_a, transpose_b, m, n, k, alpha, wide_a, a_columns, wide_b, b_columns,
                  beta, c, ldc);
}

/// The same into bf16: sums are rounded once, at the end.
void multiply(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k,
              float alpha, const std::uint16_t* a, std::int64_t lda, const std::uint16_t* b,
              std::int64_t ldb, float beta, std::uint16_t* c, std::int64_t ldc) {
    // Rows at a time, so that the f32 sums are still in the cache when they are rounded.
    const std::int64_t at_once =
        std::clamp<std::int64_t>((std::int64_t{1} << 18) / std::max<std::int64_t>(1, n), 64, 4096);
    for (std::int64_t first = 0; first < m; first += at_once) {
        const std::int64_t rows = std::min(at_once, m - first);
        float* sums = static_cast<float*>(scratch(5, sizeof(float) * std::size_t(rows * n)));
        if (beta != 0)
            for (std::int64_t i = 0; i < rows; ++i) widen(c + (first + i) * ldc, sums + i * n, n);
        multiply(transpose_a, transpose_b, rows, n, k, alpha, a + first * (transpose_a ? 1 : lda),
                 lda, b, ldb, beta, sums, n);
        for (std::int64_t i = 0; i < rows; ++i) narrow(sums + i * n, c + (first + i) * ldc, n);
    }
}

}  // namespace

void multiply(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k,
              float alpha, const float* a, std::int64_t lda, const float* b, std::int64_t ldb,
              float beta, float* c, std::int64_t ldc) {
    if (m == 0 || n == 0) return;
    if (k == 0) return scale_rows(m, n, beta, c, ldc);
    one_thread();
    dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, n, k, alpha, a, lda, b, ldb,
               beta, c, ldc);
}

void multiply(bool transpose_a, bool transpose_b, std::int64_t m, std::int64_t n, std::int64_t k,
              double alpha, const double* a, std::int64_t lda, const double* b, std::int64_t ldb,
              double beta, double* c, std::int64_t ldc) {
    scale_rows(m, n, beta, c, ldc);
    for (std::int64_t i = 0; i < m; ++i)
        for (std::int64_t l = 0; l < k; ++l) {
            const double left = alpha * (transpose_a ? a[l * lda + i] : a[i * lda + l]);
            double* row = c + i * ldc;
            if (transpose_b)
                for (std::int64_t j = 0; j < n; ++j) row[j] += left * b[j * ldb + l];
            else
                for (std::int64_t j = 0; j < n; ++j) row[j] += left * b[l * ldb + j];
        }
}

namespace {

/// body(in{}, out{}) with the types of what is read and of what is written: `format` or its stat.
template <class Body>
Status in_formats(NumberFormat format, NumberFormat out_format, Body body) {
    if (format != NumberFormat::bf16) {
        if (out_format != format)
            return status_of(kUnsupported, "the CPU's f32 and f64 gemms write what they read");
        return in_format(format, [&]<class T>(T) { body(T{}, T{}, T{}); });
    }
    if (out_format == NumberFormat::bf16)
        body(std::uint16_t{}, std::uint16_t{}, float{});
    else if (out_format == NumberFormat::f32)
        body(std::uint16_t{}, float{}, float{});
    else
        return status_of(kUnsupported, "the CPU's bf16 gemm writes bf16 or f32");
    return {};
}

}  // namespace

Status gemm(const GemmCall* call, Stream_*) {
    return in_formats(call->format, call->out_format,
                      [&]<class In, class Out, class T>(In, Out, T) {
                          multiply(call->transpose_a, call->transpose_b, call->m, call->n, call->k,
                                   T(call->alpha), static_cast<const In*>(call->a), call->lda,
                                   static_cast<const In*>(call->b), call->ldb, T(call->beta),
                                   static_cast<Out*>(call->c), call->ldc);
                      });
}

Status grouped_gemm(const GroupedGemmCall* call, Stream_*) {
    const bool sums = call->product == GroupedProduct::weight_gradient;
    const NumberFormat out = sums ? stat_format(call->format) : call->format;
    return in_formats(call->format, out, [&]<class In, class Out, class T>(In, Out, T) {
        const std::int64_t n = call->n, k = call->k;
        for (std::int64_t e = 0; e < call->num_experts; ++e) {
            const std::int64_t begin = call->offsets[e], rows = call->offsets[e + 1] - begin;
            if (rows == 0) continue;
            In* x = static_cast<In*>(call->x) + begin * k;
            In* y = static_cast<In*>(call->y) + begin * n;
            In* w = static_cast<In*>(call->w) + e * n * k;
            switch (call->product) {
                case GroupedProduct::forward:
                    multiply(false, true, rows, n, k, T(1), x, k, w, k, T(0),
                             static_cast<Out*>(call->y) + begin * n, n);
                    break;
                case GroupedProduct::data_gradient:
                    multiply(false, false, rows, k, n, T(1), y, n, w, k, T(0),
                             static_cast<Out*>(call->x) + begin * k, k);
                    break;
                case GroupedProduct::weight_gradient:
                    multiply(true, false, n, k, rows, T(1), y, n, x, k, T(1),
                             static_cast<Out*>(call->w) + e * n * k, k);
                    break;
            }
        }
    });
}

Status convert(const Convert* call, Stream_*) {
    const auto known = [](NumberFormat f) {
        return f == NumberFormat::f32 || f == NumberFormat::f64 || f == NumberFormat::bf16;
    };
    if (!known(call->in_format) || !known(call->out_format))
        return status_of(kUnsupported, "the CPU converts between f64, f32 and bf16");
    for (std::int64_t i = 0; i < call->count; ++i) {
        const double value = call->in_format == NumberFormat::f64
                                 ? static_cast<const double*>(call->in)[i]
                             : call->in_format == NumberFormat::f32
                                 ? static_cast<const float*>(call->in)[i]
                                 : from_bf16(static_cast<const std::uint16_t*>(call->in)[i]);
        if (call->out_format == NumberFormat::f64)
            static_cast<double*>(call->out)[i] = value;
        else if (call->out_format == NumberFormat::f32)
            static_cast<float*>(call->out)[i] = float(value);
        else
            static_cast<std::uint16_t*>(call->out)[i] = to_bf16(float(value));
    }
    return {};
}

}  // namespace moeplan::cpu
