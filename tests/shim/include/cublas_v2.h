#pragma once
/// The part of cuBLAS that we call, computed plainly (runtime.cpp), so that whole layers run without a GPU.
#include "cuda_on_cpu.hpp"

#define CUBLAS_VERSION 120500

enum cublasStatus_t {
    CUBLAS_STATUS_SUCCESS = 0, CUBLAS_STATUS_ALLOC_FAILED = 3, CUBLAS_STATUS_INVALID_VALUE = 7, CUBLAS_STATUS_NOT_SUPPORTED = 15
};
enum cublasOperation_t { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1 };
enum cudaDataType_t { CUDA_R_32F = 0, CUDA_R_16BF = 14 };
enum cublasComputeType_t { CUBLAS_COMPUTE_32F = 68 };
enum cublasGemmAlgo_t { CUBLAS_GEMM_DEFAULT = -1 };
enum cublasMath_t { CUBLAS_DEFAULT_MATH = 0, CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION = 16 };
struct cublasContext;
using cublasHandle_t = cublasContext*;

const char* cublasGetStatusString(cublasStatus_t);
cublasStatus_t cublasCreate(cublasHandle_t*);
cublasStatus_t cublasDestroy(cublasHandle_t);
cublasStatus_t cublasSetStream(cublasHandle_t, cudaStream_t);
cublasStatus_t cublasSetWorkspace(cublasHandle_t, void*, std::size_t);
cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t);
cublasStatus_t cublasGemmEx(cublasHandle_t, cublasOperation_t, cublasOperation_t, int m, int n, int k, const void* alpha, const void* a,
                            cudaDataType_t, int lda, const void* b, cudaDataType_t, int ldb, const void* beta, void* c, cudaDataType_t, int ldc,
                            cublasComputeType_t, cublasGemmAlgo_t);
cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t, cublasOperation_t, cublasOperation_t, int m, int n, int k, const void* alpha,
                                          const void* a, cudaDataType_t, int lda, long long stride_a, const void* b, cudaDataType_t, int ldb,
                                          long long stride_b, const void* beta, void* c, cudaDataType_t, int ldc, long long stride_c, int batch,
                                          cublasComputeType_t, cublasGemmAlgo_t);
cublasStatus_t cublasGemmGroupedBatchedEx(cublasHandle_t, const cublasOperation_t[], const cublasOperation_t[], const int m[], const int n[],
                                          const int k[], const void* alpha, const void* const a[], cudaDataType_t, const int lda[],
                                          const void* const b[], cudaDataType_t, const int ldb[], const void* beta, void* const c[], cudaDataType_t,
                                          const int ldc[], int groups, const int size[], cublasComputeType_t);
