#pragma once
/// Position-wise feed-forward networks: one for all tokens (dense, shared experts), and the
/// experts' grouped form.

#include <memory>
#include <string>
#include <vector>

#include "model/layers/norm.hpp"
#include "model/layers/parameters.hpp"
#include "model/model_spec.hpp"

namespace moeplan {

/// y = down · act(up · x): two matrices (relu, gelu) or three (swiglu: `up` holds the gate's rows,
/// then the up's); with `sub_norm`, a LayerNorm of the inner width before `down`. With several
/// experts, expert e owns rows offsets[e] … offsets[e+1]−1 of x.
///
/// A network in parts has its inner width split: up by rows, down by columns. Its y is then a
/// partial sum, of which part 0 brings the bias; the caller adds the parts up, and so it does with
/// dx.
class ExpertNetworks {
  public:
    /// @param num_experts  held by this rank; 1 without `held` by_expert_rank for a dense network
    /// @param first        index of our first expert
    /// @param part, parts  of the inner width
    ExpertNetworks(Runtime&, ParameterSet&, const std::string& name, std::int64_t width,
                   std::int64_t inner, Activation, bool bias, int num_layers,
                   Held held = Held::by_all, std::int64_t num_experts = 1, std::int64_t first = 0,
                   int part = 0, int parts = 1, bool sub_norm = false);

    struct Saved {
        Tensor before, inner;  ///< what the activation saw, less the bias; what `down` saw
        LayerNorm::Saved norm;
    };
    /// @param host_offsets  [num_experts + 1]; the rows' owners
    Tensor forward(const void* x, std::int64_t rows, const Tensor& offsets,
                   const std::vector<std::int32_t>& host_offsets, Saved&);
    Tensor backward(const void* x, const Tensor& dy, std::int64_t rows, const Tensor& offsets,
                    const std::vector<std::int32_t>& host_offsets, Saved&);

    /// All rows belong to the one expert there is.
    Tensor forward_all(const void* x, std::int64_t rows, Saved&);
    Tensor backward_all(const void* x, const Tensor& dy, std::int64_t rows, Saved&);

    std::int64_t num_experts() const { return experts_; }

  private:
    void product(GroupedProduct, void* x, void* w, void* y, std::int64_t rows, std::int64_t n,
                 std::int64_t k, const Tensor& offsets,
                 const std::vector<std::int32_t>& host_offsets);
    Runtime& rt_;
    std::int64_t width_, inner_, experts_;  ///< inner: of our part
    int part_;
    Activation activation_;
    Parameter *up_ = nullptr, *down_ = nullptr, *up_bias_ = nullptr, *down_bias_ = nullptr;
    std::unique_ptr<LayerNorm> sub_norm_;
};

}  // namespace moeplan
