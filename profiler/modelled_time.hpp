#pragma once
/// Times by a GPU's model (gemm_model.hpp), corrected by published tables (residual_surface.hpp).

#include <array>
#include <cstdint>
#include <span>

#include "profiler/curve_index.hpp"
#include "profiler/gemm_model.hpp"
#include "profiler/profile.hpp"

namespace moeplan {

/// The correction that answers for a precision: its own, or that of the 16-bit one. Narrow formats
/// have tables of inference kernels at best, and training's are held to run as bf16's do, at their
/// own rate.
struct Correction {
    const ResidualSurface* surface = nullptr;
    bool own = false;  ///< of this precision, or of the other 16-bit one

    /// @param shape  base-2 logarithms
    double ratio(const std::array<double, 3>& shape) const { return surface->ratio(shape); }
    Basis basis(const std::array<double, 3>& shape) const {
        return own && surface->covers(shape) ? Basis::published : Basis::roofline;
    }
    /// @param shape  sizes
    PricedTime of(std::array<double, 3> shape, Seconds model) const;
};
Correction product_correction(const Profile&, Precision);
Correction attention_correction(const Profile&, Precision);

PricedTime modelled_gemm(const Profile&, const KernelName&, Precision, const Product&);

/// All experts' tiles fill the GPU as one product of as many rows does, and are corrected as it is.
class ModelledGrouped {
  public:
    /// @param profile  with a gemm_model
    ModelledGrouped(const Profile&, const KernelName&, Precision, std::int64_t n, std::int64_t k);
    /// @param seconds  [ranks]; 0 where there are no rows
    void times(const RowCounts&, std::span<double> seconds) const;
    Basis basis(double rows, double active) const;

  private:
    /// Rows · experts, columns and depth of the product that stands for all.
    std::array<double, 3> shape(double rows, double active) const;

    GemmKind kind_;
    double n_, k_;
    Correction correction_;
    GroupedProduct product_;
};

}  // namespace moeplan
