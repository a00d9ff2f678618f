/// Matrix products. f32 goes to oneDNN's sgemm, one thread a rank (layouts give parallelism, not
/// thread teams); f64 is the plain definition, for references and gradient checks.
#include <dlfcn.h>
#include <oneapi/dnnl/dnnl.h>

#include <cstring>

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

Status gemm(const GemmCall* call, Stream_*) {
    if (call->out_format != call->format)
        return status_of(kUnsupported, "the CPU's gemm writes the format that it reads");
    return in_format(call->format, [&]<class T>(T) {
        multiply(call->transpose_a, call->transpose_b, call->m, call->n, call->k, T(call->alpha),
                 static_cast<const T*>(call->a), call->lda, static_cast<const T*>(call->b),
                 call->ldb, T(call->beta), static_cast<T*>(call->c), call->ldc);
    });
}

Status grouped_gemm(const GroupedGemmCall* call, Stream_*) {
    return in_format(call->format, [&]<class T>(T) {
        const std::int64_t n = call->n, k = call->k;
        for (std::int64_t e = 0; e < call->num_experts; ++e) {
            const std::int64_t begin = call->offsets[e], rows = call->offsets[e + 1] - begin;
            if (rows == 0) continue;
            T* x = static_cast<T*>(call->x) + begin * k;
            T* y = static_cast<T*>(call->y) + begin * n;
            T* w = static_cast<T*>(call->w) + e * n * k;
            switch (call->product) {
                case GroupedProduct::forward:
                    multiply(false, true, rows, n, k, T(1), x, k, w, k, T(0), y, n);
                    break;
                case GroupedProduct::data_gradient:
                    multiply(false, false, rows, k, n, T(1), y, n, w, k, T(0), x, k);
                    break;
                case GroupedProduct::weight_gradient:
                    multiply(true, false, n, k, rows, T(1), y, n, x, k, T(1), w, k);
                    break;
            }
        }
    });
}

namespace {

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

}  // namespace

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
