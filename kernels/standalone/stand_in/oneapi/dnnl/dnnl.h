#pragma once
/// What the reference needs of oneDNN, where there is none: one plain product.

#include <cstdint>

using dnnl_dim_t = std::int64_t;
using dnnl_status_t = int;
inline constexpr dnnl_status_t dnnl_success = 0;

inline int dnnl_sgemm(char transpose_a, char transpose_b, dnnl_dim_t m, dnnl_dim_t n, dnnl_dim_t k, float alpha, const float* a, dnnl_dim_t lda,
                      const float* b, dnnl_dim_t ldb, float beta, float* c, dnnl_dim_t ldc) {
    const bool ta = transpose_a == 'T' || transpose_a == 't', tb = transpose_b == 'T' || transpose_b == 't';
    for (dnnl_dim_t i = 0; i < m; ++i) {
        for (dnnl_dim_t j = 0; j < n; ++j) c[i * ldc + j] = beta == 0 ? 0 : beta * c[i * ldc + j];
        for (dnnl_dim_t l = 0; l < k; ++l) {
            const float left = alpha * (ta ? a[l * lda + i] : a[i * lda + l]);
            for (dnnl_dim_t j = 0; j < n; ++j) c[i * ldc + j] += left * (tb ? b[j * ldb + l] : b[l * ldb + j]);
        }
    }
    return 0;
}
