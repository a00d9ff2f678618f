/// EMO: softmax, sum over the document, the d best experts stay, softmax over them, top-k; gates
/// raw by default.
#include "model/routing/routing_rule.hpp"

namespace moeplan {

const RoutingRule& emo_routing() {
    static const RoutingRule rule = [] {
        RoutingRule rule;
        rule.name = "emo";
        rule.summary =
            "every document draws a pool size and keeps its best experts; top-k inside the pool";
        rule.source = "Wang, Bhagia, Min 2026 (2605.06663)";
        rule.restriction = Restriction::document_pool;
        return rule;
    }();
    return rule;
}

}  // namespace moeplan
