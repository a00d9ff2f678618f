/// Predefined domains: the experts form num_groups blocks (or E/k of them); domain b may use block
/// b mod blocks.
#include "model/routing/routing_rule.hpp"

namespace moeplan {

const RoutingRule& domain_routing() {
    static const RoutingRule rule = [] {
        RoutingRule rule;
        rule.name = "domain";
        rule.summary = "a token's domain says which experts it may use; top-k inside them";
        rule.source = "FlexOlmo, BTX (layers.md §4): masks by predefined domain";
        rule.restriction = Restriction::domain;
        return rule;
    }();
    return rule;
}

}  // namespace moeplan
