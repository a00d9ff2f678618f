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
/// Which side of a product changes from step to step: rows of an expert. Its algorithm is then chosen for the next of eight sizes
/// an octave, not anew for every count.
enum class Varying { none, m, k };
/// c = alpha · op(a) · op(b) + beta · c for each of `batch` matrices; a and b in `format`, c in `out_format`.
struct Product {
    std::int64_t m, n, k;
    Matrix a, b;
    void* c;
    std::int64_t ldc, c_stride = 0, batch = 1;
    double alpha = 1, beta = 0;
    NumberFormat format, out_format;
    Varying varying = Varying::none;
};
Status multiply(const Product& product, cudaStream_t stream);

/// A cuBLAS handle bound to one stream, with that stream's workspace.
Status handle_of(cudaStream_t stream, cublasHandle_t* out);
/// Memory that products on this stream work in: its own, so that results do not depend on what other streams do.
struct Workspace { void* data = nullptr; std::size_t bytes = 0; };
Status workspace_of(cudaStream_t stream, Workspace* out);

inline cudaDataType_t type_of(NumberFormat f) { return f == NumberFormat::f32 ? CUDA_R_32F : CUDA_R_16BF; }
inline std::int64_t bytes_of(NumberFormat f) { return f == NumberFormat::f32 ? 4 : 2; }

/// What grouped_gemm found out about this GPU, one line a choice (grouped_gemm.cpp).
void say_choices(void* to, void (*say)(void* to, const char* line));

}  // namespace moeplan::cuda
