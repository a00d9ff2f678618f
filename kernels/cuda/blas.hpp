#pragma once
/// cuBLAS for row-major matrices.

#include <cublas_v2.h>

#include "kernels/cuda/launch.hpp"

#define MOEPLAN_CUBLAS(call)                                                                       \
    do {                                                                                           \
        const cublasStatus_t moeplan_status = (call);                                              \
        if (moeplan_status != CUBLAS_STATUS_SUCCESS)                                               \
            return ::moeplan::cuda::cublas_failure(moeplan_status, #call, __FILE__, __LINE__);     \
    } while (0)

namespace moeplan::cuda {

Status cublas_failure(cublasStatus_t status, const char* call, const char* file, int line);

/// A matrix of a batch: rows `ld` elements apart, matrices `stride` apart.
struct Matrix {
    const void* data;
    std::int64_t ld, stride = 0;
    bool transpose = false;
};
/// c = alpha · op(a) · op(b) + beta · c for each of `batch` matrices; a and b in `format`, c in `out_format`.
struct Product {
    std::int64_t m, n, k;
    Matrix a, b;
    void* c;
    std::int64_t ldc, c_stride = 0, batch = 1;
    double alpha = 1, beta = 0;
    NumberFormat format, out_format;
};
Status multiply(const Product& product, cudaStream_t stream);

}  // namespace moeplan::cuda
