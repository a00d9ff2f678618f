#include "planner/resize.hpp"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "core/text.hpp"
#include "model/op_counts.hpp"

namespace moeplan {
namespace {

int num_matrices(Activation activation) { return activation == Activation::swiglu ? 3 : 2; }

/// MACs of head and merge projections of one token, and their weights: 2d² where there are heads.
double projections(double d, int heads) { return heads > 1 ? 2 * d * d : 0; }

/// The nearest multiple, at least one.
int to_multiple(double value, int multiple) {
    return std::max(1, static_cast<int>(std::lround(value / multiple))) * multiple;
}

std::string percent(double ratio) {
    std::ostringstream out;
    out.precision(3);
    out << std::showpos << (ratio - 1) * 100 << " %";
    return out.str();
}

std::string number(double value) {
    std::ostringstream out;
    out.precision(6);
    out << value;
    return out.str();
}

}  // namespace

MoeShape moe_shape(const MoeFeedForward& moe) {
    return {moe.num_moe_heads, moe.num_experts, moe.top_k, moe.pool};
}

ExactShape exact_shape(int hidden_size, const MoeFeedForward& from, const MoeShape& to,
                       const ResizeRule& rule) {
    const double d = hidden_size, m = num_matrices(from.activation);
    const double f0 = from.expert_hidden_size, k0 = from.top_k, e0 = from.num_experts;
    const double h0 = from.num_moe_heads, h = to.num_moe_heads, k = to.top_k, e = to.num_experts;

    const double macs = m * k0 * d * f0 + projections(d, from.num_moe_heads);
    const double weights = m * (d / h0) * f0 * e0 + projections(d, from.num_moe_heads);
    const double equal_macs = (macs - projections(d, to.num_moe_heads)) / (m * k * d);

    switch (rule.parity) {
        case Parity::flops:
            return {equal_macs, e};
        case Parity::parameters:
            return {(weights - projections(d, to.num_moe_heads)) / (m * (d / h) * e), e};
        case Parity::none:
            return {f0, e};
        case Parity::rule_a:
            return {(h == h0 ? 1 : rule.beta) * k0 * f0 / k, e};
        case Parity::rule_b:
            return {(h == h0 ? 1 : rule.beta) * (h / h0) * f0 * e0 / e, e};
        case Parity::rule_c: {
            // Equal to a plain MoE of `e` experts of the original's width and heads.
            const double matched = m * (d / h0) * f0 * e + projections(d, from.num_moe_heads);
            return {equal_macs,
                    (matched - projections(d, to.num_moe_heads)) / (m * (d / h) * equal_macs)};
        }
    }
    return {f0, e};
}

ResizedModel resize(const ModelSpec& model, const MoeShape& to, const ResizeRule& rule,
                    int sequence_length) {
    ResizedModel out;
    out.model = model;
    out.shape = to;
    const int d = model.hidden_size;
    const MoeFeedForward* first = first_moe(model);
    if (first == nullptr) {
        if (to != MoeShape{}) out.refused = "the model has no MoE layer to resize";
        return out;
    }
    out.exact = exact_shape(d, *first, to, rule);
    if (to == moe_shape(*first)) return out;  // the model itself, whatever the rule

    const auto refuse = [&](std::string why) {
        out.refused = std::move(why);
        return out;
    };
    if (d % to.num_moe_heads != 0)
        return refuse("num_moe_heads " + std::to_string(to.num_moe_heads) +
                      " does not divide hidden_size " + std::to_string(d));
    if (!(out.exact.expert_hidden_size > 0))
        return refuse(
            "no inner width keeps " + std::string(name_of(rule.parity)) +
            " equal: head and merge layers alone cost more than the experts of inner width " +
            std::to_string(first->expert_hidden_size) + " (exact width " +
            number(out.exact.expert_hidden_size) + ")");

    bool told = false;
    for (LayerSpec& layer : out.model.layers) {
        auto* moe = std::get_if<MoeFeedForward>(&layer.feed_forward);
        if (moe == nullptr) continue;
        const ExactShape exact = exact_shape(d, *moe, to, rule);
        const double width = exact.expert_hidden_size;
        if (!(width > 0)) return refuse("a later MoE layer has no inner width at this parity");
        // A width that is whole by itself is kept: rounding mends fractions, it does not change
        // models.
        const bool whole = std::abs(width - std::round(width)) < 1e-9 * width;
        const int rounded = whole && (width < rule.width_multiple || std::lround(width) % 8 == 0)
                                ? static_cast<int>(std::lround(width))
                            : width < rule.width_multiple ? to_multiple(width, 8)
                                                          : to_multiple(width, rule.width_multiple);
        int experts = to.num_experts;
        if (rule.parity == Parity::rule_c) {
            // A number that was asked for is kept; a derived one must divide among ranks.
            const bool asked = std::abs(exact.num_experts - to.num_experts) < 1e-9 * to.num_experts;
            experts = asked ? to.num_experts : to_multiple(exact.num_experts, rule.expert_multiple);
        }
        moe->num_moe_heads = to.num_moe_heads;
        moe->top_k = to.top_k;
        moe->num_experts = experts;
        moe->expert_hidden_size = rounded;
        moe->pool = to.pool;
        if (to.pool)
            moe->routing = "emo";
        else if (moe->routing == "emo")
            moe->routing = "softmax_top_k";
        out.shape.num_experts = experts;
        if (experts < to.top_k)
            return refuse("top_k " + std::to_string(to.top_k) + " exceeds num_experts " +
                          std::to_string(experts));
        if (to.pool && (to.pool->smallest < to.top_k || to.pool->largest > experts ||
                        to.pool->smallest > to.pool->largest))
            return refuse("document pool " + std::to_string(to.pool->smallest) + " … " +
                          std::to_string(to.pool->largest) +
                          " does not lie between top_k and num_experts");
        // Group-limited routing needs groups that divide the experts.
        if (moe->num_groups > 0 && experts % moe->num_groups != 0)
            return refuse("num_groups " + std::to_string(moe->num_groups) +
                          " does not divide num_experts " + std::to_string(experts));
        if (!told) {
            told = true;
            if (rounded != width)
                out.notes.push_back("expert_hidden_size " + number(width) + " rounded to " +
                                    std::to_string(rounded));
            if (rule.parity == Parity::rule_c && experts != exact.num_experts)
                out.notes.push_back("num_experts " + number(exact.num_experts) + " rounded to " +
                                    std::to_string(experts));
        }
    }

    const ParameterCounts before = count_parameters(model), after = count_parameters(out.model);
    out.flops_ratio = flops_per_token(out.model, sequence_length).forward /
                      flops_per_token(model, sequence_length).forward;
    out.parameters_ratio = static_cast<double>(after.total) / static_cast<double>(before.total);
    out.active_parameters_ratio = static_cast<double>(after.active_without_embeddings) /
                                  static_cast<double>(before.active_without_embeddings);
    out.notes.push_back("against the model asked for: flops a token " + percent(out.flops_ratio) +
                        ", parameters " + percent(out.parameters_ratio) + ", active parameters " +
                        percent(out.active_parameters_ratio));
    out.model.name = model.name + " h" + std::to_string(to.num_moe_heads) + " E" +
                     std::to_string(out.shape.num_experts) + " k" + std::to_string(to.top_k);
    if (to.pool)
        out.model.name +=
            " pool " + std::to_string(to.pool->smallest) + "-" + std::to_string(to.pool->largest);
    return out;
}

template <>
const EnumNames<Parity>& enum_names<Parity>() {
    static const EnumNames<Parity> names = {
        {Parity::flops, "flops"},   {Parity::parameters, "parameters"}, {Parity::none, "none"},
        {Parity::rule_a, "rule_a"}, {Parity::rule_b, "rule_b"},         {Parity::rule_c, "rule_c"},
        {Parity::rule_a, "rule-a"}, {Parity::rule_b, "rule-b"},         {Parity::rule_c, "rule-c"}};
    return names;
}

}  // namespace moeplan
