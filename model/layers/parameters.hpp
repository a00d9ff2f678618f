#pragma once
/// Learned tensors: their values, gradients and optimizer moments, and how they begin.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/seed.hpp"
#include "model/layers/tensor.hpp"

namespace moeplan {

/// Who holds a parameter: every rank the same one, or the ranks of an expert-parallel group
/// different experts.
enum class Held : std::uint8_t { by_all, by_expert_rank };

struct Parameter {
    std::string name;                 ///< "layers.3.experts.up"
    std::vector<std::int64_t> shape;  ///< as held here; experts: [local experts, out, in]
    Held held = Held::by_all;
    std::int64_t first = 0;  ///< index of our first element in the whole model's tensor (experts of
                             ///< lower ranks come before)
    bool decays = true;      ///< matrices do; norms and biases do not
    Tensor value;            ///< what layers compute with: `format`, or stat (routers)
    Tensor master;          ///< stat: what learns, where `value` is a rounded copy of it; else none
    Tensor gradient, m, v;  ///< stat
    Tensor& full() { return master ? master : value; }  ///< in full precision
    const Tensor& full() const { return master ? master : value; }
    std::int64_t count() const { return value.count(); }
};

/// All parameters of a model on this rank, in the order of their making. Pointers stay valid.
class ParameterSet {
  public:
    explicit ParameterSet(Runtime& runtime) : runtime_(runtime) {}

    /// A tensor of uniform numbers with this standard deviation around `mean`: element i of the
    /// whole model's tensor depends on seed, name and i alone, so every layout begins with the same
    /// model. (Uniform, not normal: an integer hash and one product, the same in any language.)
    /// @param full_precision  its value is kept in stat: routers
    Parameter& make(std::string name, std::vector<std::int64_t> shape, double deviation,
                    double mean = 0, Held held = Held::by_all, std::int64_t first = 0,
                    bool decays = true, bool full_precision = false);
    void set_seed(Seed seed) { seed_ = seed; }

    std::vector<Parameter*> all() const;
    Parameter& at(const std::string& name) const;  ///< asserts that it exists
    std::int64_t count(Held held) const;
    void zero_gradients();

  private:
    Runtime& runtime_;
    Seed seed_;
    std::vector<std::unique_ptr<Parameter>> parameters_;
};

/// Number i of a parameter's beginning: uniform with variance 1 (hash of seed, name and i).
double initial_number(Seed seed, const std::string& name, std::uint64_t index);

}  // namespace moeplan
