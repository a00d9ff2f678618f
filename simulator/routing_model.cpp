#include "simulator/routing_model.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <functional>
#include <limits>
#include <span>

#include "core/errors.hpp"
#include "core/seed.hpp"
#include "core/text.hpp"
#include "traces/fit.hpp"
#include "traces/routing_law.hpp"

namespace moeplan {
namespace {

constexpr int kMostTraceSteps =
    64;  ///< of the end of a recorded run; the start of training is collapsed routing
/// Times the mean, for "hot" without a figure.
constexpr double kHotFactor = 3;

}  // namespace

const std::vector<std::string>& synthetic_routing_kinds() {
    static const std::vector<std::string> kinds = {
        "balanced",   "multinomial",      "zipf", "hot", "document_pools",
        "token_drop", "token_drop_padded"};
    return kinds;
}

std::string to_words(const SyntheticRouting& routing) {
    std::string words = routing.kind;
    std::replace(words.begin(), words.end(), '_', '-');
    const double figure =
        routing.kind == "document_pools" ? routing.document_concentration : routing.exponent;
    return figure > 0 ? words + ":" + exact_text(figure) : words;
}

struct RoutingModel::Source {
    std::string model;
    std::vector<MoeFeedForward> layers;  // [moe layers]
    RoutingDemand demand;
    Seed seed;
    std::vector<std::string> assumptions;

    bool padded = false;   // every expert works on its whole capacity
    RoutingLaw law;        // synthetic, or fitted to a trace of another shape
    bool windows = false;  // else: real tokens of a trace of the same shape
    std::vector<std::vector<std::uint16_t>> ids;  // [trace layers] of [tokens · heads · k]
    std::int64_t trace_tokens = 0;

    std::int64_t units(const MoeFeedForward& moe) const {
        return demand.tokens_per_source * moe.num_moe_heads;
    }
    void open(const TraceReader& trace);
    void each_unit(int layer, int micro_batch,
                   const std::function<void(int, std::span<const std::uint16_t>)>& visit) const;
    RoutingLoads window_loads(int layer, int micro_batch) const;
    void count_copies(int layer, int micro_batch, int num_places,
                      const std::vector<int>& domain_of_place, PlacedLoads& out) const;
    std::uint32_t capacity_of(const MoeFeedForward& moe) const;
    SynthesisShape shape_of(int layer, int micro_batch) const;
    RoutingLoads law_loads(int layer, int micro_batch) const;
};

void RoutingModel::Source::open(const TraceReader& trace) {
    const TraceHeader& header = trace.header();
    if (header.num_moe_layers < 1 || header.num_steps < 1)
        throw InputError("--trace", "", "an empty trace", "at least one step and one MoE layer");
    const MoeFeedForward& first = layers.front();
    bool same_shape = true;
    for (const auto& moe : layers) {
        if (moe.num_moe_heads != header.num_moe_heads)
            throw InputError("--trace", "/num_moe_heads", std::to_string(header.num_moe_heads),
                             std::to_string(moe.num_moe_heads) +
                                 " as the model has (routing does not carry over between head "
                                 "counts): a trace of such a model, or --routing");
        if (moe.num_experts % header.num_experts != 0)
            throw InputError("--trace", "/num_experts", std::to_string(header.num_experts),
                             "the model's " + std::to_string(moe.num_experts) +
                                 " or a divisor of it (experts are scaled by cloning): a trace of "
                                 "such a model, or --routing");
        if (moe.num_experts != first.num_experts)
            throw InputError("--trace", "", "a model with unequal MoE layers",
                             "MoE layers of one size; or --routing");
        same_shape =
            same_shape && moe.num_experts == header.num_experts && moe.top_k == header.top_k;
    }
    if (header.source != "training")
        assumptions.push_back("the routing trace comes from " + header.source +
                              ", not from a training run");
    if (header.num_moe_layers != static_cast<int>(layers.size()))
        assumptions.push_back("the trace has " + std::to_string(header.num_moe_layers) +
                              " MoE layers, the model " + std::to_string(layers.size()) +
                              ": traced layers repeat in order");
    const int since = std::max(0, header.num_steps - kMostTraceSteps);
    const std::string who = header.model.empty() ? "a model" : header.model;
    if (!same_shape || header.counts_only) {
        TraceFit fit = fit_trace(trace, since);
        double concentration = 0;
        for (const auto& layer : fit.layers)
            concentration +=
                layer.over_dispersion * header.num_experts / static_cast<double>(fit.layers.size());
        if (first.num_experts != header.num_experts) fit = with_experts(fit, first.num_experts);
        law.kind = "fitted";
        law.fit = std::move(fit);
        assumptions.push_back(
            "routing fitted to the trace of " + who + " (" + std::to_string(header.num_experts) +
            " experts, top-" + std::to_string(header.top_k) +
            "; popularity and documents, mean E·ρ " +
            exact_text(std::round(concentration * 100) / 100) + ")" +
            (header.num_experts != first.num_experts
                 ? ", each expert cloned " +
                       std::to_string(first.num_experts / header.num_experts) +
                       " times at equal E·ρ"
                 : "") +
            (header.top_k != first.top_k ? ", choices scaled to top-" + std::to_string(first.top_k)
                                         : ""));
        return;
    }
    windows = true;
    ids.assign(header.num_moe_layers, {});
    for (int s = since; s < header.num_steps; ++s) {
        const TraceStep step = trace.step(s);
        for (int l = 0; l < header.num_moe_layers; ++l)
            ids[l].insert(ids[l].end(), step.expert_ids.at(l).begin(), step.expert_ids.at(l).end());
    }
    trace_tokens =
        static_cast<std::int64_t>(ids.front().size()) / (header.num_moe_heads * header.top_k);
    if (trace_tokens < 1)
        throw InputError("--trace", "", "a trace without tokens", "at least one token a step");
    const double wanted = static_cast<double>(demand.tokens_per_source) * demand.num_sources;
    assumptions.push_back("routing recorded over " + std::to_string(trace_tokens) +
                          " tokens of the last " + std::to_string(header.num_steps - since) +
                          " steps of " + who +
                          (wanted > static_cast<double>(trace_tokens)
                               ? ", repeated: a micro-batch of all ranks has " + exact_text(wanted)
                               : ", cut into the micro-batches of each rank"));
}

/// Real tokens of each rank, drawn anew for another seed: samples of a Monte Carlo see other
/// windows.
/// @param visit  (source, choices of one unit)
void RoutingModel::Source::each_unit(
    int layer, int micro_batch,
    const std::function<void(int, std::span<const std::uint16_t>)>& visit) const {
    const MoeFeedForward& moe = layers[layer];
    const auto& chosen = ids[static_cast<std::size_t>(layer) % ids.size()];
    const auto heads = static_cast<std::size_t>(moe.num_moe_heads),
               k = static_cast<std::size_t>(moe.top_k);
    const auto shift = static_cast<std::int64_t>(draw(seed, "trace window") %
                                                 static_cast<std::uint64_t>(trace_tokens));
    for (int source = 0; source < demand.num_sources; ++source) {
        std::int64_t token =
            (shift + (static_cast<std::int64_t>(micro_batch) * demand.num_sources + source) *
                         demand.tokens_per_source) %
            trace_tokens;
        for (std::int64_t t = 0; t < demand.tokens_per_source; ++t) {
            for (std::size_t h = 0; h < heads; ++h)
                visit(source, {chosen.data() + (static_cast<std::size_t>(token) * heads + h) * k, k});
            if (++token == trace_tokens) token = 0;
        }
    }
}

RoutingLoads RoutingModel::Source::window_loads(int layer, int micro_batch) const {
    const auto experts = static_cast<std::size_t>(layers[layer].num_experts);
    RoutingLoads out{demand.num_sources, layers[layer].num_experts,
                     std::vector<std::uint32_t>(
                         static_cast<std::size_t>(demand.num_sources) * experts, 0)};
    each_unit(layer, micro_batch, [&](int source, std::span<const std::uint16_t> choices) {
        std::uint32_t* row = out.sub_tokens.data() + static_cast<std::size_t>(source) * experts;
        for (const auto expert : choices)
            if (expert != kNotRouted) ++row[expert];
    });
    return out;
}

/// Units that go to each place, and to each domain of places, at least once. What is beyond an
/// expert's capacity does not go.
void RoutingModel::Source::count_copies(int layer, int micro_batch, int num_places,
                                        const std::vector<int>& domain_of_place,
                                        PlacedLoads& out) const {
    const MoeFeedForward& moe = layers[layer];
    const auto places = static_cast<std::size_t>(num_places),
               experts = static_cast<std::size_t>(moe.num_experts), each = experts / places,
               sources = static_cast<std::size_t>(demand.num_sources);
    std::size_t domains = 1;
    for (const int domain : domain_of_place)
        domains = std::max(domains, static_cast<std::size_t>(domain) + 1);
    out.copies.assign(sources * places, 0);
    out.domain_copies.assign(sources * domains, 0);
    const std::uint32_t capacity = capacity_of(moe);
    std::vector<std::uint32_t> taken(experts, 0);
    std::vector<std::uint64_t> seen(places, 0), seen_domain(domains, 0);
    std::uint64_t unit = 0;
    int last = -1;
    each_unit(layer, micro_batch, [&](int source, std::span<const std::uint16_t> choices) {
        if (source != last) std::fill(taken.begin(), taken.end(), 0u);
        last = source;
        ++unit;
        for (const auto expert : choices) {
            if (expert == kNotRouted || taken[expert] >= capacity) continue;
            ++taken[expert];
            const std::size_t place = expert / each;
            if (seen[place] == unit) continue;
            seen[place] = unit;
            ++out.copies[static_cast<std::size_t>(source) * places + place];
            const auto domain =
                domain_of_place.empty() ? 0 : static_cast<std::size_t>(domain_of_place[place]);
            if (seen_domain[domain] == unit) continue;
            seen_domain[domain] = unit;
            ++out.domain_copies[static_cast<std::size_t>(source) * domains + domain];
        }
    });
}

/// ⌈f·T·k/E⌉ of each source; later tokens are dropped.
std::uint32_t RoutingModel::Source::capacity_of(const MoeFeedForward& moe) const {
    if (!moe.capacity_factor) return std::numeric_limits<std::uint32_t>::max();
    return static_cast<std::uint32_t>(
        std::ceil(*moe.capacity_factor * static_cast<double>(units(moe) * moe.top_k) /
                  moe.num_experts));
}

SynthesisShape RoutingModel::Source::shape_of(int layer, int micro_batch) const {
    const MoeFeedForward& moe = layers[layer];
    SynthesisShape shape;
    shape.num_moe_layers = static_cast<int>(layers.size());
    shape.num_experts = moe.num_experts;
    shape.top_k = moe.top_k;
    shape.num_moe_heads = moe.num_moe_heads;
    shape.num_ranks = demand.num_sources;
    shape.num_micro_batches = micro_batch + 1;
    // ranks that share a sequence (tensor, context parallelism) hold a piece of it each
    const bool whole =
        demand.sequence_length > 0 && demand.tokens_per_source % demand.sequence_length == 0;
    shape.sequences_per_micro_batch =
        whole ? static_cast<int>(demand.tokens_per_source / demand.sequence_length) : 1;
    shape.sequence_length =
        static_cast<int>(whole ? demand.sequence_length : demand.tokens_per_source);
    if (law.fit) shape.document_lengths = law.fit->document_lengths;
    return shape;
}

RoutingLoads RoutingModel::Source::law_loads(int layer, int micro_batch) const {
    const MoeFeedForward& moe = layers[layer];
    const SynthesisShape shape = shape_of(layer, micro_batch);
    RoutingLaw here = law;
    if (law.kind == "token_drop") here.capacity_factor = moe.capacity_factor.value_or(1.0);
    if (law.kind == "document_pools" && moe.pool)
        here.smallest_pool = moe.pool->smallest, here.largest_pool = moe.pool->largest;
    const int fitted_layer = law.fit ? layer % static_cast<int>(law.fit->layers.size()) : layer;
    return synthetic_loads(here, shape, seed, 0, fitted_layer, micro_batch);
}

RoutingModel::RoutingModel(
    const ModelSpec& model,
    const std::variant<SyntheticRouting, std::shared_ptr<const TraceReader>>& routing,
    const RoutingDemand& demand, std::uint64_t seed)
    : source_(std::make_unique<Source>()) {
    source_->model = model.name;
    source_->demand = demand;
    source_->seed = Seed{seed};
    for (const auto& layer : model.layers)
        if (const auto* moe = std::get_if<MoeFeedForward>(&layer.feed_forward))
            source_->layers.push_back(*moe);
    if (source_->layers.empty()) return;
    if (const auto* trace = std::get_if<std::shared_ptr<const TraceReader>>(&routing);
        trace && *trace) {
        source_->open(**trace);
        return;
    }
    const auto* given = std::get_if<SyntheticRouting>(&routing);
    const SyntheticRouting kind = given ? *given : SyntheticRouting{};
    const std::vector<std::string>& kinds = synthetic_routing_kinds();
    if (std::find(kinds.begin(), kinds.end(), kind.kind) == kinds.end())
        throw InputError("--routing", "", kind.kind, join(kinds, ", "));
    source_->padded = kind.kind == "token_drop_padded";
    source_->law.kind = source_->padded ? "balanced" : kind.kind;
    source_->law.exponent = kind.kind == "hot" && !(kind.exponent > 0) ? kHotFactor : kind.exponent;
    source_->law.document_dispersion = kind.document_concentration;
    source_->assumptions.push_back(
        kind.kind == "balanced"
            ? "routing is synthetic: every expert gets equally many tokens (no trace was given)"
        : source_->padded
            ? "every expert works on its whole capacity: what is beyond it was dropped, "
              "what is missing padded"
        : kind.kind == "token_drop"
            ? "routing is synthetic: free choices, what is beyond an expert's capacity is dropped"
            : "routing is synthetic: " + to_words(kind) + ", drawn by seed, layer and micro-batch");
}

RoutingModel::~RoutingModel() = default;
RoutingModel::RoutingModel(RoutingModel&&) noexcept = default;

RoutingLoads RoutingModel::loads(int moe_layer, int micro_batch) const {
    assert(moe_layer >= 0 && moe_layer < static_cast<int>(source_->layers.size()));
    RoutingLoads out = source_->windows ? source_->window_loads(moe_layer, micro_batch)
                                        : source_->law_loads(moe_layer, micro_batch);
    const MoeFeedForward& moe = source_->layers[moe_layer];
    if (moe.capacity_factor && source_->law.kind != "token_drop") {
        const std::uint32_t capacity = source_->capacity_of(moe);
        for (auto& count : out.sub_tokens)
            count = source_->padded ? capacity : std::min(count, capacity);
    }
    return out;
}

PlacedLoads RoutingModel::placed_loads(int moe_layer, int micro_batch, int num_places,
                                       int sources_per_block,
                                       const std::vector<int>& domain_of_place,
                                       const LayerPlacement* placement) const {
    if (placement)
        return placed(loads(moe_layer, micro_batch), *placement, num_places, sources_per_block);
    const RoutingLaw& law = source_->law;
    const bool free_choice = !source_->windows && !source_->layers[moe_layer].capacity_factor;
    if (free_choice && (law.kind == "multinomial" || law.kind == "zipf" || law.kind == "hot"))
        return synthetic_placed_loads(law, source_->shape_of(moe_layer, micro_batch), source_->seed,
                                      0, moe_layer, micro_batch, num_places, sources_per_block);
    PlacedLoads out = placed(loads(moe_layer, micro_batch), num_places, sources_per_block);
    if (knows_tokens())
        source_->count_copies(moe_layer, micro_batch, num_places, domain_of_place, out);
    return out;
}

bool RoutingModel::knows_tokens() const { return source_->windows && !source_->padded; }

bool RoutingModel::same_everywhere() const {
    return !source_->windows && source_->law.kind == "balanced";
}
const std::vector<std::string>& RoutingModel::assumptions() const { return source_->assumptions; }

}  // namespace moeplan
