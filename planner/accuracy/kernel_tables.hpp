#pragma once
/// Published kernel records as tables of points. Knows their forms, predicts nothing.

#include <string>
#include <vector>

#include "planner/accuracy/held_out.hpp"

namespace moeplan {

/// A point of a table: a matrix product or causal attention.
struct KernelPoint {
    std::string id, gpu;
    int curve = 0, place = 0;   ///< ordinal of the curve among its kind's shapes; index in it
    std::vector<double> shape;  ///< m, n, k; or batch, sequence, heads, kv heads, head size
    double seconds = 0;
};
/// A point of a fused MoE layer's table.
struct FusedMoePoint {
    std::string id, gpu;
    Precision precision = Precision::bf16;
    int curve = 0, place = 0;
    int tokens = 0, top_k = 0, num_experts = 0, local_experts = 0, hidden = 0, ffn = 0;
    double exponent = 0;  ///< of the power law its loads were drawn from; 0: balanced
    double seconds = 0;
};

struct KernelTables {
    std::vector<KernelPoint> gemm, gemm_fp8, attention;
    std::vector<FusedMoePoint> fused;
    std::vector<KernelPoint>
        single;  ///< products that stand alone: "m, n, k", rate turned into time
    std::vector<Precision> single_precision;
    std::vector<HeldOutRow> bandwidth;  ///< measured alone is set
    std::vector<SkippedRecord> skipped;
};

/// Records of the group "kernels".
KernelTables kernel_tables(const std::vector<CurveRecord>& records);

}  // namespace moeplan
