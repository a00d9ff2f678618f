/// The registry, and the rules between a routing and a layer's numbers.
#include "model/routing/routing_rule.hpp"

#include <algorithm>
#include <cmath>

#include "core/errors.hpp"
#include "core/text.hpp"

namespace moeplan {

std::vector<const RoutingRule*> routing_rules() {
    std::vector<const RoutingRule*> rules = {
        &domain_routing(),     &emo_routing(),           &gshard_routing(),
        &gshard_raw_routing(), &sigmoid_top_k_routing(), &softmax_top_k_routing(),
        &switch_routing(),     &x_moe_routing(),         &x_moe_cosine_routing()};
    std::sort(rules.begin(), rules.end(),
              [](const auto* a, const auto* b) { return a->name < b->name; });
    return rules;
}

const RoutingRule& routing_rule(const std::string& name, const std::string& where) {
    std::vector<std::string> known;
    for (const RoutingRule* rule : routing_rules()) {
        if (rule->name == name) return *rule;
        known.emplace_back(rule->name);
    }
    const std::string near = nearest_word(name, known);
    throw InputError(
        where, "routing", name,
        "one of " + join(known, ", ") + (near.empty() ? "" : "; did you mean " + near + "?"));
}

void check_routing(const MoeFeedForward& moe, int hidden_size, const std::string& where) {
    const RoutingRule& rule = routing_rule(moe.routing, where);
    const auto refuse = [&](const std::string& field, const std::string& value,
                            const std::string& expected) {
        throw InputError(where, "moe/" + field, value, expected);
    };
    const auto text = [](long long value) { return std::to_string(value); };
    if (moe.num_experts < 1) refuse("num_experts", text(moe.num_experts), "1 or more");
    if (moe.top_k < 1 || moe.top_k > moe.num_experts)
        refuse("top_k", text(moe.top_k), "1 … num_experts (" + text(moe.num_experts) + ")");
    if (moe.expert_hidden_size < 1)
        refuse("expert_hidden_size", text(moe.expert_hidden_size), "1 or more");
    if (moe.num_moe_heads < 1 || hidden_size % moe.num_moe_heads != 0)
        refuse("num_moe_heads", text(moe.num_moe_heads),
               "a divisor of hidden_size (" + text(hidden_size) + ")");
    if (rule.only_top_k && moe.top_k != *rule.only_top_k)
        refuse("top_k", text(moe.top_k), text(*rule.only_top_k) + " with routing " + moe.routing);
    if (rule.reduced_router && moe.router_size < 1)
        refuse("router_size", text(moe.router_size),
               "the reduced width of routing " + moe.routing + " (16 in practice)");
    if (moe.num_groups > 0 && rule.restriction != Restriction::domain) {
        if (moe.num_experts % moe.num_groups != 0)
            refuse("num_groups", text(moe.num_groups),
                   "a divisor of num_experts (" + text(moe.num_experts) + ")");
        if (moe.top_k_groups < 1 || moe.top_k_groups > moe.num_groups)
            refuse("top_k_groups", text(moe.top_k_groups), "1 … num_groups");
        if (moe.top_k > moe.num_experts / moe.num_groups * moe.top_k_groups)
            refuse("top_k", text(moe.top_k),
                   "at most the experts of top_k_groups groups (" +
                       text(moe.num_experts / moe.num_groups * moe.top_k_groups) + ")");
    }
    if (rule.restriction == Restriction::document_pool) {
        if (!moe.pool)
            refuse("pool", "absent",
                   "{\"smallest\": k …, \"largest\": E} with routing " + moe.routing);
        if (moe.pool->smallest < moe.top_k)
            refuse("pool/smallest", text(moe.pool->smallest),
                   "at least top_k (" + text(moe.top_k) + ")");
        if (moe.pool->largest < moe.pool->smallest)
            refuse("pool/largest", text(moe.pool->largest),
                   "at least smallest (" + text(moe.pool->smallest) + ")");
    } else if (moe.pool) {
        refuse("pool", "given", "no pool with routing " + moe.routing + "; routing emo has one");
    }
    if (rule.restriction == Restriction::domain) {
        const int blocks = moe.num_groups > 0 ? moe.num_groups : moe.num_experts / moe.top_k;
        if (moe.num_experts % blocks != 0 || moe.num_experts / blocks < moe.top_k)
            refuse("num_groups", text(blocks),
                   "blocks that divide num_experts (" + text(moe.num_experts) +
                       ") into at least top_k experts each");
    }
    if (moe.capacity_factor && !(*moe.capacity_factor > 0))
        refuse("capacity_factor", exact_text(*moe.capacity_factor),
               "above 0, or left out for dropless");
    if (moe.sub_norm && moe.num_shared_experts > 1)
        refuse("num_shared_experts", text(moe.num_shared_experts),
               "at most 1 with sub_norm: several are trained as one wider network");
    if (moe.shared_gate)
        refuse("shared_gate", "true", "false: training has no gate of shared experts yet");
}

std::int64_t expert_capacity(const MoeFeedForward& moe, std::int64_t units) {
    if (!moe.capacity_factor) return 0;
    const double rows =
        *moe.capacity_factor * double(moe.top_k) * double(units) / double(moe.num_experts);
    return std::max<std::int64_t>(1, std::int64_t(std::ceil(rows - 1e-9)));
}

}  // namespace moeplan
