#pragma once
/// A routing: how scores become choices and what is balanced. One source file a routing; the
/// registry lists them.

#include <string>
#include <string_view>
#include <vector>

#include "kernels/kernel_set.hpp"
#include "model/model_spec.hpp"

namespace moeplan {

/// Which choices the balance loss counts.
enum class BalanceCounts : std::uint8_t { all_choices, first_choices };
/// What limits the experts of a routed unit before it chooses.
enum class Restriction : std::uint8_t { none, document_pool, domain };
/// What becomes of the second choice: GShard keeps it with probability 2·g₂, of the gate divided by
/// the sum of both, or (by_raw_chance) of the softmax itself.
enum class SecondChoice : std::uint8_t { kept, by_chance, by_raw_chance };

struct RoutingRule {
    std::string_view name, summary, source;
    ScoreKind score = ScoreKind::softmax;
    std::optional<bool>
        renormalise;  ///< set: the routing says so; empty: as the model's renormalise_gates
    std::optional<int> only_top_k;  ///< Switch: 1; GShard: 2
    BalanceCounts balance_counts = BalanceCounts::all_choices;
    Restriction restriction = Restriction::none;
    SecondChoice second_choice = SecondChoice::kept;
    bool reduced_router =
        false;  ///< X-MoE: scores are products with unit expert vectors in router_size dimensions
    bool cosine = false;  ///< the token's side has length 1 there, too, and scores are divided by …
    double temperature = 0;    ///< … a learned number that begins here
    double balance_scale = 1;  ///< of the loss whose value is 1 at uniform counts (GShard's is 1/E²
                               ///< there: 0 means that)
};

/// @throws InputError naming the nearest routing; `where` is the model file
const RoutingRule& routing_rule(const std::string& name, const std::string& where = "routing");
std::vector<const RoutingRule*> routing_rules();  ///< sorted by name

/// Every rule between the routing and the layer's numbers. @throws InputError
void check_routing(const MoeFeedForward& moe, int hidden_size, const std::string& where);

/// Most rows an expert takes of `units` routed units; 0: dropless. ⌈capacity_factor · units · k /
/// E⌉ (layers.md: moeplan rounds up).
std::int64_t expert_capacity(const MoeFeedForward& moe, std::int64_t units);

/// @name One file each.
/// @{
const RoutingRule& softmax_top_k_routing();
const RoutingRule& switch_routing();
const RoutingRule& gshard_routing();
const RoutingRule& gshard_raw_routing();
const RoutingRule& x_moe_routing();
const RoutingRule& x_moe_cosine_routing();
const RoutingRule& emo_routing();
const RoutingRule& sigmoid_top_k_routing();
const RoutingRule& domain_routing();
/// @}

}  // namespace moeplan
