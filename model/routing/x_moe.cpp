/// X-MoE: score_i = ⟨W_r x, e_i/|e_i|⟩. The published code applies no temperature and
/// leaves the token's side as it is; `x_moe_cosine` is the paper's form: cos(W_r x, e_i) / τ, τ
/// learned from 0.3.
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

const RoutingRule& x_moe_cosine_routing() {
    static const RoutingRule rule = [] {
        RoutingRule rule = x_moe_routing();
        rule.name = "x_moe_cosine";
        rule.summary = "cosines in router_size dimensions over a learned temperature";
        rule.source = "Chi et al. 2022 (2204.09179), form of the paper; 0.3 with a softmax";
        rule.cosine = true;
        rule.temperature = 0.3;
        return rule;
    }();
    return rule;
}

}  // namespace moeplan
