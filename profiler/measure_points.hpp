#pragma once
/// Which kernels to time, at which shapes: those that the trainer runs for a model, or a grid.

#include <string>
#include <vector>

#include "kernels/kernel_rows.hpp"
#include "model/model_spec.hpp"
#include "model/parallel_layout.hpp"
#include "model/step_schedule.hpp"

namespace moeplan {

struct KernelPoint {
    std::string kernel;  ///< as kernel_time() is asked for it: "gemm_weight_gradient"
    std::string row;     ///< as the backend runs it: "gemm"
    KernelProblem problem;
    std::vector<double> shape;  ///< in the order of shape_columns(kernel)
    int importance = 0;         ///< 0: a shape that the step really has; larger: refines the curve

    bool operator<(const KernelPoint&) const;  ///< by kernel and shape
};

/// Columns of a kernel's table before its times.
std::vector<std::string> shape_columns(const std::string& kernel);

/// @name One point each, from the shape by which it is priced
/// @{
KernelPoint gemm_point(const std::string& kernel, std::int64_t m, std::int64_t n, std::int64_t k);
KernelPoint grouped_point(const std::string& kernel, std::int64_t rows, std::int64_t n,
                          std::int64_t k, std::int64_t num_experts);
KernelPoint attention_point(const std::string& kernel, std::int64_t batch, std::int64_t sequence,
                            std::int64_t num_heads, std::int64_t num_kv_heads,
                            std::int64_t head_size, std::int64_t window);
/// `units` items of `width`: tokens · hidden_size, units · num_experts, rows · inner width …
KernelPoint streamed_point(const std::string& kernel, std::int64_t units, std::int64_t width,
                           std::int64_t top_k = 1);
/// Rotary positions of [tokens, num_heads, head_size].
KernelPoint rope_point(const std::string& kernel, std::int64_t tokens, std::int64_t num_heads,
                       std::int64_t head_size);
/// @}

/// Every kernel of a training step of this model on one rank of this layout, and the same around
/// its shapes: token counts halved and doubled, experts with a sixteenth … four times of their mean
/// load. Sorted, each once.
std::vector<KernelPoint> points_of_model(const ModelSpec&, const ParallelLayout&,
                                         const StepSchedule&);

/// Bytes that one rank's step touches: what decides whether a tensor is still in a cache when it is
/// needed again.
Bytes working_set_of(const ModelSpec&, const ParallelLayout&, const StepSchedule&);

/// A grid over the shapes of models that a few cores train (hidden 64 … 1024).
std::vector<KernelPoint> points_of_grid();

}  // namespace moeplan
