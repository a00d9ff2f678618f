/// Plain top-k: p = softmax(W x), the k largest, y = Σ g_i E_i(x); raw gates g_i = p_i, or divided
/// by their sum.
#include "model/routing/routing_rule.hpp"

namespace moeplan {

const RoutingRule& softmax_top_k_routing() {
    static const RoutingRule rule = [] {
        RoutingRule rule;
        rule.name = "softmax_top_k";
        rule.summary = "softmax over the experts, the k largest; gates raw or renormalised";
        rule.source = "Shazeer et al. 2017; Mixtral, OLMoE, MH-MoE use it";
        return rule;
    }();
    return rule;
}

}  // namespace moeplan
