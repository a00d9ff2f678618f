#pragma once
/// Learned tensors: their values, gradients and optimizer moments, and how they begin.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/seed.hpp"
#include "model/layers/rank_groups.hpp"
#include "model/layers/tensor.hpp"

namespace moeplan {

/// Who holds a parameter within its pipeline stage, and so who adds up its gradient.
enum class Held : std::uint8_t {
    by_all,           ///< every rank; tensor parallel ranks see the same gradient
    by_all_in_parts,  ///< every rank; tensor parallel ranks see gradients of their own rows or
                      ///< heads
    by_tensor_rank,   ///< tensor parallel ranks hold different parts
    by_expert_rank    ///< ranks of an expert group hold different experts, or parts of them
};

/// The ranks over whose gradients the parameter's is summed: they hold the same numbers.
const Communicator& holders(const RankGroups&, Held);

/// Where the elements held here lie in the whole model's tensor: runs of `run` elements that begin
/// `stride` apart.
struct Share {
    std::int64_t first = 0, run = 0, stride = 0;  ///< run 0: one run

    constexpr Share(std::int64_t begin = 0, std::int64_t run_length = 0, std::int64_t apart = 0)
        : first(begin), run(run_length), stride(apart) {}
    constexpr std::int64_t whole_index(std::int64_t i) const {
        return run > 0 ? first + i / run * stride + i % run : first + i;
    }
    bool operator==(const Share&) const = default;
};

struct Parameter {
    std::string name;                 ///< "layers.3.experts.up"
    std::vector<std::int64_t> shape;  ///< as held here; experts: [local experts, out, in]
    Held held = Held::by_all;
    Share share;
    bool decays = true;   ///< matrices do; norms and biases do not
    bool counted = true;  ///< false: ranks outside of its holders hold it too, and one of them
                          ///< counts and stores it
    Tensor value;         ///< what layers compute with: `format`, or stat (routers)
    Tensor master;        ///< stat: what learns, where `value` is a rounded copy of it; else none
    Tensor gradient;      ///< stat; with a sharded optimizer a multiple of the holders' number
    Span updated;         ///< elements whose moments are here: all, or our shard
    Tensor m, v;          ///< stat [updated.count()]
    Tensor& full() { return master ? master : value; }  ///< in full precision
    const Tensor& full() const { return master ? master : value; }
    std::int64_t count() const { return value.count(); }
};

/// All parameters of a model on this rank, in the order of their making. Pointers stay valid.
class ParameterSet {
  public:
    explicit ParameterSet(Runtime& runtime) : runtime_(runtime) {}
    /// Whose ranks hold the parameters. @param sharded  each holder has the moments of a shard
    /// alone (ZeRO-1). Before the first `make`.
    void set_holders(const RankGroups& groups, bool sharded) {
        groups_ = &groups;
        sharded_ = sharded;
    }
    bool is_sharded() const { return sharded_; }

    /// A tensor of uniform numbers with this standard deviation around `mean`: element i of the
    /// whole model's tensor depends on seed, name and i alone, so every layout begins with the same
    /// model. (Uniform, not normal: an integer hash and one product, the same in any language.)
    /// @param full_precision  its value is kept in stat: routers
    Parameter& make(std::string name, std::vector<std::int64_t> shape, double deviation,
                    double mean = 0, Held held = Held::by_all, Share share = {}, bool decays = true,
                    bool counted = true, bool full_precision = false);
    void set_seed(Seed seed) { seed_ = seed; }

    std::vector<Parameter*> all() const;
    Parameter& at(const std::string& name) const;  ///< asserts that it exists
    void zero_gradients();

  private:
    Runtime& runtime_;
    const RankGroups* groups_ = nullptr;
    bool sharded_ = false;
    Seed seed_;
    std::vector<std::unique_ptr<Parameter>> parameters_;
};

/// Number i of a parameter's beginning: uniform with variance 1 (hash of seed, name and i).
double initial_number(Seed seed, const std::string& name, std::uint64_t index);

}  // namespace moeplan
