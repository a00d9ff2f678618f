/// Sigmoid scores: the bias takes part in selection only, gates come from the unbiased score.
#include "model/routing/routing_rule.hpp"

namespace moeplan {

const RoutingRule& sigmoid_top_k_routing() {
    static const RoutingRule rule = [] {
        RoutingRule rule;
        rule.name = "sigmoid_top_k";
        rule.summary =
            "sigmoid scores, selection with a bias that is moved without a loss, group limits";
        rule.source = "DeepSeek-V3 (2412.19437)";
        rule.score = ScoreKind::sigmoid;
        return rule;
    }();
    return rule;
}

}  // namespace moeplan
