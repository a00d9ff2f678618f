/// X-MoE: score_i = ⟨W_r x, e_i/|e_i|⟩. The published code applies no temperature; neither do we.
#include "model/routing/routing_rule.hpp"

namespace moeplan {

const RoutingRule& x_moe_routing() {
    static const RoutingRule rule = [] {
        RoutingRule rule;
        rule.name = "x_moe";
        rule.summary = "scores in router_size dimensions against unit expert vectors";
        rule.source =
            "Chi et al. 2022 (2204.09179); form of the published code: the token side is not "
            "normalised";
        rule.reduced_router = true;
        rule.balance_counts = BalanceCounts::first_choices;
        return rule;
    }();
    return rule;
}

}  // namespace moeplan
