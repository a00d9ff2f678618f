#pragma once
/// Norms of rows. LayerNorm is the RMSNorm of the centred row, and a bias:
///     (x − mean) / √(mean((x − mean)²) + ε) · w + b
/// so both run on one kernel.

#include <vector>

#include "model/layers/parameters.hpp"

namespace moeplan {

inline constexpr double kLayerNormEpsilon =
    1e-5;  ///< of PyTorch's LayerNorm, with which the papers' code runs

/// out = x − the mean of each row; its own gradient, too. `out` may be `x`.
void centre_rows(Runtime&, const void* x, void* out, std::int64_t rows, std::int64_t width);

/// LayerNorm with a weight and a bias for each expert, who own rows host_offsets[e] … of x; one
/// expert, and no offsets, for a plain one. (SubLN: between an expert's activation and its last
/// matrix.)
class LayerNorm {
  public:
    LayerNorm(Runtime&, ParameterSet&, const std::string& name, std::int64_t width, Held held,
              std::int64_t num_experts = 1, std::int64_t first_expert = 0);

    struct Saved {
        Tensor centred, scale;
    };
    Tensor forward(const void* x, std::int64_t rows, const Tensor& offsets,
                   const std::vector<std::int32_t>& host_offsets, Saved&);
    /// @return the gradient of x; the weight's and the bias's are added to
    Tensor backward(const Tensor& dy, std::int64_t rows, const Tensor& offsets,
                    const std::vector<std::int32_t>& host_offsets, Saved&);

  private:
    Runtime& rt_;
    std::int64_t width_, experts_;
    Parameter *weight_, *bias_;
};

}  // namespace moeplan
