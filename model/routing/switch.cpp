/// Switch: top-1; the winner's probability weighs its output, so the router learns; loss α·E·Σ f·P.
#include "model/routing/routing_rule.hpp"

namespace moeplan {

const RoutingRule& switch_routing() {
    static const RoutingRule rule = [] {
        RoutingRule rule;
        rule.name = "switch";
        rule.summary =
            "the best expert alone, gate = its probability, capacity by ⌈factor · tokens / E⌉";
        rule.source = "Fedus, Zoph, Shazeer 2021 (2101.03961)";
        rule.only_top_k = 1;
        rule.renormalise = false;
        return rule;
    }();
    return rule;
}

}  // namespace moeplan
