/// GShard: g₂ in the test 2·g₂ > U(0, 1) is the normalised one; `gshard_raw` takes the raw one, as
/// some code does. Its loss (1/E)·Σ (c/S)·m is 1/E² at
/// uniform counts.
#include "model/routing/routing_rule.hpp"

namespace moeplan {

const RoutingRule& gshard_routing() {
    static const RoutingRule rule = [] {
        RoutingRule rule;
        rule.name = "gshard";
        rule.summary =
            "two experts, gates renormalised over both; the second is taken with probability 2·g₂; "
            "first choices are balanced";
        rule.source = "Lepikhin et al. 2020 (2006.16668), algorithm 1";
        rule.only_top_k = 2;
        rule.renormalise = true;
        rule.second_choice = SecondChoice::by_chance;
        rule.balance_counts = BalanceCounts::first_choices;
        rule.balance_scale = 0;
        return rule;
    }();
    return rule;
}

const RoutingRule& gshard_raw_routing() {
    static const RoutingRule rule = [] {
        RoutingRule rule = gshard_routing();
        rule.name = "gshard_raw";
        rule.summary =
            "as gshard, but the second is taken with probability 2·p₂ of the softmax itself";
        rule.source = "code derived from fairseq: g₂ is tested before it is normalised";
        rule.second_choice = SecondChoice::by_raw_chance;
        return rule;
    }();
    return rule;
}

}  // namespace moeplan
