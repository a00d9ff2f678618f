#pragma once
/// A layer of experts: head projection, router, dispatch to the ranks that hold the experts,
/// experts, combine, merge projection.
///
/// Routed units are the sub-tokens of MH-MoE: row t·h + j of the view [tokens · h, hidden/h] is
/// slice j of token t; with h = 1 they are the tokens themselves, and the layer has no head or
/// merge projection. Experts are spread in contiguous blocks over the expert-parallel group, and
/// each may be split in its inner width over expert tensor parallel ranks.
///
/// Tensor parallel ranks hold the same tokens: all of them route all units, so that capacity, pools
/// and balance see the whole micro-batch; each dispatches its own span of the tokens, and the
/// outputs are gathered.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/layers/attention.hpp"
#include "model/layers/feed_forward.hpp"
#include "model/layers/rank_groups.hpp"
#include "model/routing/routing_rule.hpp"

namespace moeplan {

/// What one micro-batch did in one layer.
struct MoeReport {
    double balance_loss = 0, z_loss = 0;  ///< unscaled; 1 is balanced
    double gate_sum = 0;                  ///< mean over routed units of Σ of their chosen gates
    std::int64_t units = 0, dropped_units = 0;  ///< routed units; choices dropped by capacity
    std::int64_t dropped_tokens = 0;            ///< tokens of which every choice was dropped
    std::vector<std::int64_t> chosen;           ///< [num_experts] choices before drops
};

/// The choices themselves, for a trace.
struct MoeChoices {
    std::vector<std::uint16_t> expert_ids;  ///< [tokens · h, k]; kNotRouted where dropped
    std::vector<float> gates;
    std::vector<std::uint16_t> pool_sizes;  ///< [documents], EMO
};

/// What the gates are made of once experts are gone: the probabilities of those that stay (so they
/// grow), or what the router gave them among all.
enum class GateScaling : std::uint8_t { over_kept, over_all };
template <>
const EnumNames<GateScaling>& enum_names<GateScaling>();

/// What a layer did to every routed unit, on the host: from it experts are chosen to be kept.
struct MoeObserved {
    std::vector<double> probabilities;     ///< [units, num_experts]
    std::vector<std::int32_t> expert_ids;  ///< [units, k]; −1: none
    std::vector<double> gates;             ///< [units, k]
    std::vector<double> output_norms;  ///< [units, k] ‖E_i(h)‖ before the gate; 0 where dropped
    std::vector<double> routed_output;  ///< [tokens, hidden], merged; without shared experts
    std::vector<double> residual;       ///< [tokens, hidden] what the layer's output is added to
};

class MoeLayer {
  public:
    /// @param layer_index  of the model's layers: names draws
    MoeLayer(Runtime&, ParameterSet&, const std::string& name, const ModelSpec&,
             const MoeFeedForward&, RankGroups&, int layer_index, Seed);

    struct Saved {
        Tensor split, combined, scores_in, logits, probabilities, log_sum_exp, ids, gates,
            row_of_slot, slot_of_row, rows_per_expert, offsets;
        Tensor expert_in, returned, dprobability, dprobability_row, expert_unit, expert_unit_scale,
            token_unit, token_unit_scale;
        Tensor local_row_of_slot, local_slot_of_row, local_offsets;
        std::vector<std::int32_t> host_offsets;
        std::vector<std::int64_t> sent_rows, received_rows;  ///< [ranks]
        std::int64_t kept_rows = 0, local_rows = 0;
        ExpertNetworks::Saved experts, shared;
        double z_scale = 0, temperature = 1, loss_weight = 0;
        std::vector<double> balance_counts,
            probability_sums;  ///< [scopes, num_experts] counted choices; sums of probabilities
        std::int64_t scopes = 1, scope_units = 0;
    };
    Tensor forward(const Tensor& x, const MicroBatch&, Saved&, MoeReport&,
                   MoeChoices* choices = nullptr, MoeObserved* observed = nullptr);
    Tensor backward(const Tensor& x, const Tensor& dy, const MicroBatch&, Saved&);
    /// Balance loss and its gradient from these counts of `units` units. `forward` does it itself
    /// but for the global scope, whose counts are of all micro-batches of the step.
    /// @param counts  [scopes, num_experts]
    void weigh_balance(Saved&, MoeReport&, const std::vector<double>& counts, double units);

    const MoeFeedForward& spec() const { return spec_; }
    /// Selection bias (DeepSeek-V3): up for experts that had less than the mean, down for the
    /// others. `chosen`: of all ranks and the whole step.
    void move_selection_bias(const std::vector<std::int64_t>& chosen, double rate);
    Tensor& selection_bias() { return selection_bias_; }
    /// Only these experts may be chosen from now on (expert subsets); empty: all. No pools and no
    /// domains then.
    void keep_experts(std::vector<std::uint8_t> kept, GateScaling scaling = GateScaling::over_kept);
    bool use_pools = true;  ///< false: evaluation without document pools
    double gate_scale() const { return spec_.routed_scale; }

  private:
    void choose(const void* split, RouterForward&, Saved&, bool keep_logits = false);
    void score(const void* split, std::int64_t units, Saved&);
    void score_backward(const void* split, Tensor& dlogits, Span own, Tensor& dsplit, Saved&);
    Tensor unit_rows(const void* x, std::int64_t rows, Tensor& scale);
    Tensor unit_rows_backward(const void* x, Tensor& dunit, std::int64_t rows, const void* scale);
    void scale_numbers(Tensor& x, double factor);
    void restrict_experts(const void* split, RouterForward&, const MicroBatch&, Saved&,
                          Tensor& allowed, Tensor& mask_of_unit, MoeChoices*);
    void observe(const Tensor& routed_output, std::int64_t tokens, const Saved&, MoeObserved&);
    void count_choices(const MicroBatch&, const std::vector<std::int32_t>& ids,
                       const Tensor& probability_sums, Saved&, MoeReport&);
    void map_rows(const std::int32_t* routed_ids, std::int64_t capacity,
                  const std::vector<std::int32_t>& ids, const std::vector<double>& gates,
                  const MicroBatch&, Saved&, MoeReport&, MoeChoices*);
    void exchange(const void* from, const std::vector<std::int64_t>& sent_rows, void* to,
                  const std::vector<std::int64_t>& received_rows, double& seconds);
    Tensor whole_of(Tensor own, std::int64_t tokens, const Tensor* partial);
    Tensor to_experts(const Tensor& sorted, Saved&, double& seconds);
    Tensor from_experts(const Tensor& rows, Saved&, double& seconds);

    Runtime& rt_;
    MoeFeedForward spec_;
    const RoutingRule& rule_;
    RankGroups& groups_;
    Seed seed_;
    std::int64_t hidden_, heads_, width_, local_experts_;
    int expert_parts_;  ///< ranks that hold a part of each of our experts
    int layer_index_;
    std::vector<std::uint8_t> kept_;
    GateScaling scaling_ = GateScaling::over_kept;
    Tensor kept_bias_;  ///< of selection: −∞ for experts that are gone; with gates over all
    Parameter *router_ = nullptr, *temperature_ = nullptr, *router_bias_ = nullptr,
              *reduce_ = nullptr, *head_ = nullptr, *head_bias_ = nullptr, *merge_ = nullptr,
              *merge_bias_ = nullptr;
    Tensor selection_bias_;
    std::unique_ptr<ExpertNetworks> experts_, shared_;
};

}  // namespace moeplan
