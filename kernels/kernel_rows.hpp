#pragma once
/// Every kernel as a row that can be priced and run without knowing its arguments: what a profiler
/// walks over.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/seed.hpp"
#include "core/units.hpp"
#include "kernels/kernel_set.hpp"

namespace moeplan {

/// The shape a row is run at. A row reads the fields that it names in `shape`; the others are
/// ignored.
struct KernelProblem {
    std::int64_t rows = 0,
                 width = 0;  ///< tokens, routed units or rows; hidden, inner width, vocabulary
    std::int64_t num_experts = 0, top_k = 1, num_documents = 1;
    std::int64_t m = 0, n = 0, k = 0;       ///< gemm; grouped_gemm takes n, k and group_rows
    std::vector<std::uint32_t> group_rows;  ///< rows of each expert
    GroupedProduct product = GroupedProduct::forward;
    bool transpose_a = false, transpose_b = true;  ///< gemm
    bool accumulate = false;  ///< gemm, rms_norm_backward: adds to what is there
    std::int64_t batch = 0, sequence = 0, num_heads = 0, num_kv_heads = 0, head_size = 0,
                 window = 0;
    NumberFormat format = NumberFormat::f32;
};

struct KernelRow {
    std::string_view name;                 ///< as in model/kernel_work.hpp
    std::string_view shape;                ///< fields of KernelProblem that matter: "rows width"
    Flops (*flops)(const KernelProblem&);  ///< 2 a multiply-accumulate; 0 where memory alone counts
    Bytes (*bytes)(const KernelProblem&);  ///< each tensor touched once
};
std::span<const KernelRow> kernel_rows();
const KernelRow* find_kernel_row(std::string_view name);  ///< null if there is none

/// Buffers filled with seeded random data, and a function that launches the kernel on them once.
class PreparedKernel {
  public:
    PreparedKernel(const Backend& backend, std::string_view name, const KernelProblem& problem,
                   Seed seed = {1});
    PreparedKernel(PreparedKernel&&) noexcept;
    ~PreparedKernel();
    Status run(Stream_* stream) const;  ///< kUnsupported where the device lacks it in this format
    Bytes footprint() const;            ///< of all buffers
    /// A buffer, and whether the kernel before this one in a training step has just written it: the
    /// others were touched long ago.
    struct Block {
        void* data = nullptr;
        std::size_t bytes = 0;
        bool fresh = false;
    };
    std::vector<Block> blocks() const;

  private:
    struct Buffers;
    Buffers* buffers_;
    int fresh_ = -1;  ///< index of the buffer that was just written; -1: none
    std::function<Status(Stream_*)> launch_;
};

}  // namespace moeplan
