#pragma once
/// What a model loses when only some experts of each layer stay: which to keep is learnt from a few
/// sequences of a domain, the loss is taken on others of the same domain.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/enum_names.hpp"
#include "model/layers/moe.hpp"
#include "model/text/token_data.hpp"
#include "model/train.hpp"

namespace moeplan {

enum class SubsetSelection : std::uint8_t {
    routing,  ///< mean probability over the domain's tokens, the whole model routing (EMO §3.5)
    greedy,  ///< likewise, layer by layer: lower layers have lost their experts already (its code)
    easy_ep  ///< Σ over tokens of gate · ‖E_i(h)‖ · (1 − cos(h, h + ȟ)), ȟ the routed output
             ///< (EASY-EP)
};
template <>
const EnumNames<SubsetSelection>& enum_names<SubsetSelection>();

/// One layer's score of every expert, after one forward pass. @return [num_experts]
std::vector<double> expert_scores(SubsetSelection, const MoeObserved&, int num_experts, int top_k,
                                  int num_moe_heads);
/// The `kept` best as flags; equal scores go to the lower index.
std::vector<std::uint8_t> best_experts(const std::vector<double>& scores, int kept);

struct SubsetOptions {
    std::vector<int> kept;  ///< routed experts that stay in every layer; shared ones always stay
    SubsetSelection select = SubsetSelection::greedy;
    GateScaling scaling = GateScaling::over_kept;
    int selection_sequences = 12, test_sequences = 12;  ///< of each domain; fewer where it has less
};

/// Losses by domain, nats a token; NaN for a domain that is too short for both parts.
struct SubsetLoss {
    int kept = 0;
    std::vector<double> by_domain;
    std::vector<double> of_another;  ///< with the experts that the next domain chose
    double mean = 0, mean_of_another = 0;
    double retained = 0;  ///< 1 − increase / increase without any routed expert: 1 = nothing lost
};
struct SubsetLosses {
    std::vector<std::string> domains;
    std::vector<std::int64_t> test_tokens;  ///< [domains]
    SubsetLoss whole, none;                 ///< all experts; no routed expert
    std::vector<SubsetLoss> subsets;        ///< as `kept`
};

/// Runs on one rank. @param options  model and schedule (sequence length) as trained
/// @throws InputError
SubsetLosses evaluate_subsets(const TrainOptions& options, const std::filesystem::path& checkpoint,
                              const TokenData& text, double held_out, const SubsetOptions&);

}  // namespace moeplan
