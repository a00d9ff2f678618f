#include "model/expert_subsets.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "core/errors.hpp"
#include "model/checkpoint.hpp"
#include "model/layers/transformer.hpp"
#include "model/micro_batch.hpp"

namespace moeplan {

template <>
const EnumNames<SubsetSelection>& enum_names<SubsetSelection>() {
    static const EnumNames<SubsetSelection> names = {{SubsetSelection::routing, "routing"},
                                                     {SubsetSelection::greedy, "greedy"},
                                                     {SubsetSelection::easy_ep, "easy-ep"}};
    return names;
}

namespace {

constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();

using Mask = std::vector<std::uint8_t>;  ///< [num_experts]

/// Held-out sequences of one domain, in the order of its documents: the first choose, the last
/// test.
struct DomainText {
    PackedTokens text;
    int selection = 0, test = 0;  ///< sequences; 0: the domain is too short
    std::int64_t first_test = 0;
};

DomainText read_domain(const TokenData& data, const TrainOptions& options, double held_out,
                       int domain, const SubsetOptions& subset) {
    DomainText out;
    Packing packing;
    packing.sequence_length = options.schedule.sequence_length;
    packing.order = DocumentOrder::consecutive;
    packing.held_out = held_out;
    packing.seed = options.seed;
    packing.only_domain = domain;
    try {
        out.text = pack(data, Part::held_out, packing);
    } catch (const InputError&) {
        return out;  // it does not fill one sequence
    }
    const int half = int(std::min<std::int64_t>(out.text.num_sequences / 2, 1 << 20));
    out.selection = std::min(subset.selection_sequences, half);
    out.test = std::min(subset.test_sequences, half);
    out.first_test = out.text.num_sequences - out.test;
    return out;
}

/// Σ and number of the losses of tokens whose document did not help to choose.
double test_loss(Runtime& rt, Transformer& model, const DomainText& domain, std::int64_t* tokens) {
    const TokenBatch chooses = read_batch(domain.text, 0, domain.selection);
    const std::set<std::uint32_t> seen(chooses.documents.begin(), chooses.documents.end());
    double sum = 0;
    std::int64_t count = 0;
    for (int i = 0; i < domain.test; ++i) {
        const TokenBatch batch = read_batch(domain.text, domain.first_test + i, 1);
        const auto result = model.evaluate(on_device(rt, batch, i, 1));
        for (std::size_t t = 0; t < result.token_loss.size(); ++t)
            if (!seen.contains(batch.documents[t])) {
                sum += result.token_loss[t];
                ++count;
            }
    }
    if (tokens) *tokens = count;
    return count > 0 ? sum / double(count) : kNotANumber;
}

/// [MoE layers] masks that one domain chooses.
std::vector<Mask> choose(Runtime& rt, Transformer& model, const DomainText& domain,
                         const SubsetOptions& subset, int kept) {
    const auto layers = model.moe_layers();
    std::vector<Mask> out(layers.size());
    for (MoeLayer* layer : layers) layer->keep_experts({});
    const MicroBatch batch = on_device(rt, read_batch(domain.text, 0, domain.selection), 0, 1);
    std::size_t repeated = layers.size();  // the layer that runs for the second time
    model.evaluate(batch, nullptr, [&](std::size_t l, MoeLayer& layer, const MoeObserved& seen) {
        if (repeated == l) return false;
        const MoeFeedForward& spec = layer.spec();
        out[l] = best_experts(
            expert_scores(subset.select, seen, spec.num_experts, spec.top_k, spec.num_moe_heads),
            kept);
        if (subset.select != SubsetSelection::greedy) return false;
        layer.keep_experts(out[l], subset.scaling);
        repeated = l;
        return true;
    });
    return out;
}

double mean_of(const std::vector<double>& values) {
    double sum = 0;
    int count = 0;
    for (const double value : values)
        if (std::isfinite(value)) {
            sum += value;
            ++count;
        }
    return count > 0 ? sum / count : kNotANumber;
}

}  // namespace

std::vector<double> expert_scores(SubsetSelection select, const MoeObserved& seen, int num_experts,
                                  int top_k, int num_moe_heads) {
    std::vector<double> scores(std::size_t(num_experts), 0);
    if (select != SubsetSelection::easy_ep) {
        for (std::size_t i = 0; i < seen.probabilities.size(); ++i)
            scores[i % scores.size()] += seen.probabilities[i];
        const double units = double(seen.probabilities.size()) / double(num_experts);
        for (double& score : scores) score /= std::max(1.0, units);
        return scores;
    }
    const std::size_t slots = std::size_t(num_moe_heads) * std::size_t(top_k),  // of a token
        tokens = seen.expert_ids.size() / slots, width = tokens ? seen.residual.size() / tokens : 0;
    for (std::size_t t = 0; t < tokens; ++t) {
        double before = 0, after = 0, product = 0;  // |h|², |h + ȟ|², ⟨h, h + ȟ⟩
        for (std::size_t i = t * width; i < (t + 1) * width; ++i) {
            const double h = seen.residual[i], sum = h + seen.routed_output[i];
            before += h * h;
            after += sum * sum;
            product += h * sum;
        }
        const double lengths = std::sqrt(before * after);
        const double weight = lengths > 0 ? std::max(0.0, 1 - product / lengths) : 0;
        for (std::size_t slot = t * slots; slot < (t + 1) * slots; ++slot)
            if (seen.expert_ids[slot] >= 0)
                scores[std::size_t(seen.expert_ids[slot])] +=
                    seen.gates[slot] * seen.output_norms[slot] * weight;
    }
    return scores;
}

std::vector<std::uint8_t> best_experts(const std::vector<double>& scores, int kept) {
    std::vector<std::size_t> order(scores.size());
    std::iota(order.begin(), order.end(), std::size_t(0));
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
    std::vector<std::uint8_t> out(scores.size(), 0);
    for (std::size_t i = 0; i < std::min(order.size(), std::size_t(std::max(0, kept))); ++i)
        out[order[i]] = 1;
    return out;
}

SubsetLosses evaluate_subsets(const TrainOptions& options, const std::filesystem::path& checkpoint,
                              const TokenData& text, double held_out, const SubsetOptions& subset) {
    const MoeFeedForward* moe = first_moe(options.model);
    if (!moe)
        throw InputError("--keep-experts", "", options.model.name,
                         "a model with experts: this one is dense");
    for (const int kept : subset.kept)
        if (kept < 1 || kept > moe->num_experts)
            throw InputError("--keep-experts", "", std::to_string(kept),
                             "1 … num_experts (" + std::to_string(moe->num_experts) + ")");
    const auto newest = latest_checkpoint(checkpoint);
    if (!newest)
        throw InputError("--evaluate", "", checkpoint.string(),
                         "a folder with a checkpoint in it (step-*/state.json)");
    Runtime rt(backend_for(options.device, options.device_ordinal), options.format);
    RankGroups alone;
    Transformer model(rt, with_gates(options.model, options.renormalise_gates), alone,
                      options.seed);
    load_checkpoint(*newest, rt, model);
    const auto layers = model.moe_layers();
    for (MoeLayer* layer : layers) layer->use_pools = false;  // as at inference

    const auto keep = [&](const std::vector<Mask>& masks) {
        for (std::size_t l = 0; l < layers.size(); ++l)
            layers[l]->keep_experts(masks.empty() ? Mask{} : masks[l], subset.scaling);
    };
    SubsetLosses out;
    out.domains = text.domains;
    std::vector<DomainText> domains;
    for (std::size_t d = 0; d < text.domains.size(); ++d)
        domains.push_back(read_domain(text, options, held_out, int(d), subset));
    const auto losses = [&](const auto& masks_of, std::vector<double>& to) {
        for (std::size_t d = 0; d < domains.size(); ++d) {
            const bool usable = domains[d].test > 0;
            if (usable) keep(masks_of(d));
            to.push_back(usable ? test_loss(rt, model, domains[d], nullptr) : kNotANumber);
        }
    };
    for (const DomainText& domain : domains) {
        keep({});
        std::int64_t tokens = 0;
        out.whole.by_domain.push_back(domain.test > 0 ? test_loss(rt, model, domain, &tokens)
                                                      : kNotANumber);
        out.test_tokens.push_back(tokens);
    }
    out.whole.kept = moe->num_experts;
    out.whole.mean = mean_of(out.whole.by_domain);
    out.whole.retained = 1;
    const std::vector<Mask> no_expert(layers.size(), Mask(std::size_t(moe->num_experts), 0));
    losses([&](std::size_t) { return no_expert; }, out.none.by_domain);
    out.none.mean = mean_of(out.none.by_domain);
    for (const int kept : subset.kept) {
        std::vector<std::vector<Mask>> masks;
        for (const DomainText& domain : domains)
            masks.push_back(domain.test > 0 ? choose(rt, model, domain, subset, kept) : no_expert);
        SubsetLoss& loss = out.subsets.emplace_back();
        loss.kept = kept;
        losses([&](std::size_t d) { return masks[d]; }, loss.by_domain);
        losses(
            [&](std::size_t d) {
                do d = (d + 1) % domains.size();
                while (domains[d].test == 0);
                return masks[d];
            },
            loss.of_another);
        loss.mean = mean_of(loss.by_domain);
        loss.mean_of_another = mean_of(loss.of_another);
        loss.retained = 1 - (loss.mean - out.whole.mean) / (out.none.mean - out.whole.mean);
    }
    return out;
}

}  // namespace moeplan
