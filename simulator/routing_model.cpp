#include "simulator/routing_model.hpp"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <numeric>

#include "core/errors.hpp"
#include "core/seed.hpp"
#include "core/text.hpp"

namespace moeplan {
namespace {

/// Documents of general text are some hundreds of tokens long; drawn exponential with this mean where none were recorded.
constexpr double kMeanDocumentTokens = 800;
/// E·ρ where nothing was recorded: a standard MoE, and one trained with document pools (routing measurements, docs/routing.md).
constexpr double kStandardConcentration = 0.8, kPooledConcentration = 2.8;
constexpr double kHotFactor = 8;         ///< times the mean, for "hot" without a figure
constexpr int kMostTraceSteps = 64;      ///< of the end of a recorded run; the start of training is collapsed routing

/// Binomial(n, p): exact by inversion where the mean is small, rounded normal where it is large (relative error of the
/// tail below the sampling noise of a load).
std::int64_t binomial(DrawStream& stream, std::int64_t n, double p) {
    if (n <= 0 || p <= 0) return 0;
    if (p >= 1) return n;
    if (p > 0.5) return n - binomial(stream, n, 1 - p);
    const double mean = static_cast<double>(n) * p;
    if (mean < 16) {
        double u = stream.uniform(), term = std::exp(static_cast<double>(n) * std::log1p(-p));
        std::int64_t k = 0;
        while (u > term && k < n) {
            u -= term;
            ++k;
            term *= static_cast<double>(n - k + 1) / static_cast<double>(k) * (p / (1 - p));
            if (term < 1e-300 && static_cast<double>(k) > mean) break;
        }
        return k;
    }
    const double x = std::round(mean + std::sqrt(mean * (1 - p)) * stream.normal());
    return std::clamp<std::int64_t>(static_cast<std::int64_t>(x), 0, n);
}

/// Adds a multinomial draw of `n` with shares `p` to `out`; the total is conserved exactly.
void multinomial(DrawStream& stream, std::int64_t n, const std::vector<double>& p, std::uint32_t* out) {
    double left = std::accumulate(p.begin(), p.end(), 0.0);
    std::size_t last = p.size();
    while (last > 0 && p[last - 1] <= 0) --last;
    for (std::size_t e = 0; e < last && n > 0; ++e) {
        const std::int64_t taken = e + 1 == last ? n : binomial(stream, n, left > 0 ? p[e] / left : 0);
        out[e] += static_cast<std::uint32_t>(taken);
        n -= taken;
        left -= p[e];
    }
}

/// A token chooses an expert at most once, so no share of the choices can exceed 1/k: the rest goes to the others.
void cap_shares(std::vector<double>& p, int top_k) {
    const double cap = 1.0 / top_k;
    for (int round = 0; round < 64; ++round) {
        double over = 0, free = 0;
        for (double x : p) x > cap ? over += x - cap : free += x < cap ? x : 0;
        if (over <= 1e-15 || free <= 0) break;
        for (double& x : p) x = x >= cap ? cap : x * (1 + over / free);
    }
}

/// No source holds more than its tokens' units of one expert: what is above goes to the least loaded. Totals stay.
void cap_counts(std::uint32_t* counts, int num_experts, std::int64_t units) {
    std::int64_t over = 0;
    for (int e = 0; e < num_experts; ++e)
        if (counts[e] > units) {
            over += counts[e] - units;
            counts[e] = static_cast<std::uint32_t>(units);
        }
    for (int e = 0; over > 0 && e < num_experts; ++e) {
        const std::int64_t take = std::min<std::int64_t>(over, units - counts[e]);
        counts[e] += static_cast<std::uint32_t>(take);
        over -= take;
    }
}

std::vector<double> zipf_popularity(int num_experts, double exponent, Seed seed, int layer) {
    std::vector<double> p(num_experts);
    double sum = 0;
    for (int e = 0; e < num_experts; ++e) sum += p[e] = std::pow(e + 1.0, -exponent);
    for (double& x : p) x /= sum;
    DrawStream stream(derive(seed, "zipf order", layer));      // which expert is popular has no order
    for (int e = num_experts - 1; e > 0; --e) std::swap(p[e], p[stream.below(e + 1)]);
    return p;
}

}  // namespace

LayerRouting fit_layer_routing(const std::vector<std::vector<double>>& counts, int num_experts) {
    LayerRouting fit;
    fit.popularity.assign(num_experts, 0);
    double total = 0;
    for (const auto& document : counts)
        for (int e = 0; e < num_experts; ++e) fit.popularity[e] += document[e], total += document[e];
    if (total <= 0) {
        fit.popularity.assign(num_experts, 1.0 / num_experts);
        return fit;
    }
    for (double& p : fit.popularity) p /= total;
    double above = 0, below = 0;
    for (const auto& document : counts) {
        const double n = std::accumulate(document.begin(), document.end(), 0.0);
        for (int e = 0; e < num_experts; ++e) {
            const double p = fit.popularity[e], q = p * (1 - p);
            above += (document[e] - n * p) * (document[e] - n * p) - n * q;
            below += n * (n - 1) * q;
        }
    }
    if (below > 0) fit.dispersion = std::clamp(above / below, 0.0, 0.9);
    return fit;
}

std::string to_words(const SyntheticRouting& routing) {
    std::string words = routing.kind;
    std::replace(words.begin(), words.end(), '_', '-');
    const double figure = routing.kind == "document_pools" ? routing.document_concentration : routing.exponent;
    return figure > 0 ? words + ":" + exact_text(figure) : words;
}

struct RoutingModel::Source {
    std::vector<MoeFeedForward> layers;       // [moe layers]
    RoutingDemand demand;
    Seed seed;
    SyntheticRouting synthetic;
    std::vector<std::string> assumptions;

    // Recorded: tokens of the last steps in a row, per layer, or fitted parameters where the shapes differ.
    bool recorded = false, fitted = false;
    std::vector<std::vector<std::uint16_t>> ids;    // [trace layers] of [tokens · heads · k]
    std::int64_t trace_tokens = 0;
    int trace_heads = 1, trace_top_k = 1, trace_experts = 1;
    std::vector<LayerRouting> fits;                 // [trace layers]

    std::int64_t units(const MoeFeedForward& moe) const { return demand.tokens_per_source * moe.num_moe_heads; }

    void open(const TraceReader& trace);
    void draw_documents(const MoeFeedForward& moe, int layer, int micro_batch, const std::vector<double>& popularity, double rho,
                        RoutingLoads& out) const;
    RoutingLoads recorded_loads(int layer, int micro_batch) const;
    RoutingLoads synthetic_loads(int layer, int micro_batch) const;
};

void RoutingModel::Source::open(const TraceReader& trace) {
    const TraceHeader& header = trace.header();
    recorded = true;
    trace_heads = header.num_moe_heads;
    trace_top_k = header.top_k;
    trace_experts = header.num_experts;
    if (header.num_moe_layers < 1 || header.num_steps < 1) throw InputError("--trace", "", "an empty trace", "at least one step and one MoE layer");
    bool same_shape = true;
    for (const auto& moe : layers) {
        if (moe.num_moe_heads != header.num_moe_heads)
            throw InputError("--trace", "/num_moe_heads", std::to_string(header.num_moe_heads),
                             std::to_string(moe.num_moe_heads) + " as the model has (routing does not transfer between head counts); record a trace of such a model, or use --routing");
        if (moe.num_experts % header.num_experts != 0)
            throw InputError("--trace", "/num_experts", std::to_string(header.num_experts),
                             "the model's " + std::to_string(moe.num_experts) + " or a divisor of it (experts are scaled by cloning); record a trace of such a model, or use --routing");
        same_shape = same_shape && moe.num_experts == header.num_experts && moe.top_k == header.top_k;
    }
    fitted = !same_shape || header.counts_only;
    if (header.source != "training")
        assumptions.push_back("the routing trace comes from " + header.source + ", not from a training run");
    if (header.num_moe_layers != static_cast<int>(layers.size()))
        assumptions.push_back("the trace has " + std::to_string(header.num_moe_layers) + " MoE layers, the model " + std::to_string(layers.size()) + ": traced layers repeat in order");

    // The end of the run: enough steps for every source and micro-batch, the rest of the file stays unread.
    const int first = std::max(0, header.num_steps - kMostTraceSteps);
    ids.assign(header.num_moe_layers, {});
    std::vector<std::vector<std::vector<double>>> documents(header.num_moe_layers);
    const std::size_t slots = static_cast<std::size_t>(header.num_moe_heads) * header.top_k;
    for (int s = first; s < header.num_steps; ++s) {
        const TraceStep step = trace.step(s);
        for (int l = 0; l < header.num_moe_layers; ++l) {
            if (header.counts_only) {
                const auto& counts = step.counts.at(l);
                for (std::size_t at = 0; at + header.num_experts <= counts.size(); at += header.num_experts)
                    documents[l].emplace_back(counts.begin() + at, counts.begin() + at + header.num_experts);
                continue;
            }
            const auto& chosen = step.expert_ids.at(l);
            if (!fitted) {
                ids[l].insert(ids[l].end(), chosen.begin(), chosen.end());
                continue;
            }
            const std::size_t tokens = chosen.size() / slots;
            std::uint32_t now = 0;
            for (std::size_t t = 0; t < tokens; ++t) {
                // without recorded documents a piece of 512 tokens stands for one
                const std::uint32_t document = step.document_ids.size() == tokens ? step.document_ids[t] : static_cast<std::uint32_t>(t / 512);
                if (t == 0 || document != now) documents[l].emplace_back(header.num_experts, 0.0);
                now = document;
                for (std::size_t j = 0; j < slots; ++j)
                    if (const auto id = chosen[t * slots + j]; id != kNotRouted) documents[l].back()[id] += 1;
            }
        }
    }
    if (fitted) {
        double concentration = 0;
        for (int l = 0; l < header.num_moe_layers; ++l) {
            fits.push_back(fit_layer_routing(documents[l], header.num_experts));
            concentration += fits.back().dispersion * header.num_experts / header.num_moe_layers;
        }
        assumptions.push_back("routing fitted to a trace of " + std::to_string(header.num_experts) + " experts, top-" + std::to_string(header.top_k) +
                              " (popularity, documents; mean E·ρ " + exact_text(std::round(concentration * 100) / 100) + ")" +
                              (trace_experts != layers.front().num_experts ? ", each expert cloned " + std::to_string(layers.front().num_experts / trace_experts) + " times at equal E·ρ" : "") +
                              (header.top_k != layers.front().top_k ? ", choices scaled to top-" + std::to_string(layers.front().top_k) : ""));
    } else {
        trace_tokens = static_cast<std::int64_t>(ids.front().size() / slots);
        if (trace_tokens < 1) throw InputError("--trace", "", "a trace without tokens", "at least one token a step");
        assumptions.push_back("routing recorded over " + std::to_string(trace_tokens) + " tokens of " + std::to_string(header.num_steps - first) + " steps of " +
                              (header.model.empty() ? "a model" : header.model) +
                              (demand.tokens_per_source > trace_tokens ? ", fewer than one rank holds: repeated" : ", cut into the micro-batches of each rank"));
    }
}

void RoutingModel::Source::draw_documents(const MoeFeedForward& moe, int layer, int micro_batch, const std::vector<double>& popularity,
                                          double rho, RoutingLoads& out) const {
    const int experts = moe.num_experts;
    for (int source = 0; source < demand.num_sources; ++source) {
        const std::uint64_t index = (static_cast<std::uint64_t>(layer) << 40) ^ (static_cast<std::uint64_t>(micro_batch) << 20) ^ source;
        DrawStream stream(derive(seed, "documents", index));
        std::uint32_t* row = out.sub_tokens.data() + static_cast<std::size_t>(source) * experts;
        std::int64_t left = demand.tokens_per_source;
        while (left > 0) {
            std::int64_t length = std::max<std::int64_t>(16, std::llround(kMeanDocumentTokens * stream.exponential()));
            length = std::min({length, left, static_cast<std::int64_t>(std::max(16, demand.sequence_length))});
            if (left - length < 16) length = left;
            left -= length;
            std::vector<double> share = popularity;
            if (rho > 0) {                                   // Dirichlet(α·p), α = 1/ρ − 1
                const double alpha = 1 / rho - 1;
                double sum = 0;
                for (double& p : share) sum += p = stream.gamma(std::max(alpha * p, 1e-6));
                if (sum > 0)
                    for (double& p : share) p /= sum;
                else
                    share = popularity;
            }
            if (moe.pool) {                                  // EMO: only the pool's experts, the document's most wanted
                const int size = moe.pool->smallest + static_cast<int>(stream.below(std::max(1, moe.pool->largest - moe.pool->smallest + 1)));
                if (size < experts) {
                    std::vector<double> order = share;
                    std::nth_element(order.begin(), order.begin() + (size - 1), order.end(), std::greater<>());
                    const double least = order[size - 1];
                    double sum = 0;
                    for (double& p : share) sum += p = p >= least ? p : 0;
                    for (double& p : share) p /= sum;
                }
            }
            cap_shares(share, moe.top_k);
            multinomial(stream, length * moe.num_moe_heads * moe.top_k, share, row);
        }
        cap_counts(row, experts, units(moe));
    }
}

RoutingLoads RoutingModel::Source::recorded_loads(int layer, int micro_batch) const {
    const MoeFeedForward& moe = layers[layer];
    RoutingLoads out{demand.num_sources, moe.num_experts, std::vector<std::uint32_t>(static_cast<std::size_t>(demand.num_sources) * moe.num_experts, 0)};
    if (fitted) {
        const LayerRouting& fit = fits[layer % fits.size()];
        const int clones = moe.num_experts / trace_experts;
        std::vector<double> popularity(moe.num_experts);
        for (int e = 0; e < moe.num_experts; ++e) popularity[e] = fit.popularity[e / clones] / clones;
        draw_documents(moe, layer, micro_batch, popularity, std::min(0.9, fit.dispersion / clones), out);   // E·ρ is kept
        return out;
    }
    const auto& chosen = ids[layer % ids.size()];
    const std::size_t slots = static_cast<std::size_t>(trace_heads) * trace_top_k;
    // A window of real tokens for each rank, drawn anew for another seed: samples of a Monte Carlo see other windows.
    const std::int64_t shift = static_cast<std::int64_t>(draw(seed, "trace window") % static_cast<std::uint64_t>(trace_tokens));
    for (int source = 0; source < demand.num_sources; ++source) {
        std::uint32_t* row = out.sub_tokens.data() + static_cast<std::size_t>(source) * moe.num_experts;
        std::int64_t token = (shift + (static_cast<std::int64_t>(micro_batch) * demand.num_sources + source) * demand.tokens_per_source) % trace_tokens;
        for (std::int64_t t = 0; t < demand.tokens_per_source; ++t) {
            const std::uint16_t* choice = chosen.data() + static_cast<std::size_t>(token) * slots;
            for (std::size_t j = 0; j < slots; ++j)
                if (choice[j] != kNotRouted) ++row[choice[j]];
            if (++token == trace_tokens) token = 0;
        }
    }
    return out;
}

RoutingLoads RoutingModel::Source::synthetic_loads(int layer, int micro_batch) const {
    const MoeFeedForward& moe = layers[layer];
    const int experts = moe.num_experts;
    RoutingLoads out{demand.num_sources, experts, std::vector<std::uint32_t>(static_cast<std::size_t>(demand.num_sources) * experts, 0)};
    const std::int64_t choices = units(moe) * moe.top_k;
    if (synthetic.kind == "balanced" || synthetic.kind == "token_drop") {
        const double factor = synthetic.kind == "token_drop" ? moe.capacity_factor.value_or(1.0) : 1.0;
        const std::int64_t total = synthetic.kind == "token_drop" ? static_cast<std::int64_t>(std::ceil(factor * static_cast<double>(choices) / experts)) * experts : choices;
        for (int source = 0; source < demand.num_sources; ++source)
            for (int e = 0; e < experts; ++e) {
                // remainders rotate with the source, so that the experts' totals are even too
                const std::int64_t turn = (e + static_cast<std::int64_t>(source) * (total % experts)) % experts;
                out.sub_tokens[static_cast<std::size_t>(source) * experts + e] = static_cast<std::uint32_t>(total / experts + (experts - 1 - turn < total % experts ? 1 : 0));
            }
        return out;
    }
    if (synthetic.kind == "document_pools") {
        const double wanted = synthetic.document_concentration > 0 ? synthetic.document_concentration : moe.pool ? kStandardConcentration : kPooledConcentration;
        draw_documents(moe, layer, micro_batch, std::vector<double>(experts, 1.0 / experts), std::min(0.9, wanted / experts), out);
        return out;
    }
    std::vector<double> popularity(experts, 1.0 / experts);
    if (synthetic.kind == "zipf") popularity = zipf_popularity(experts, synthetic.exponent, seed, layer);
    if (synthetic.kind == "hot" && experts > 1) {
        const double hot = std::min({1.0, 1.0 / moe.top_k, (synthetic.exponent > 0 ? synthetic.exponent : kHotFactor) / experts});
        popularity.assign(experts, (1 - hot) / (experts - 1));
        popularity[draw(seed, "hot expert", layer) % experts] = hot;
    }
    cap_shares(popularity, moe.top_k);
    for (int source = 0; source < demand.num_sources; ++source) {
        const std::uint64_t index = (static_cast<std::uint64_t>(layer) << 40) ^ (static_cast<std::uint64_t>(micro_batch) << 20) ^ source;
        DrawStream stream(derive(seed, "choices", index));
        std::uint32_t* row = out.sub_tokens.data() + static_cast<std::size_t>(source) * experts;
        multinomial(stream, choices, popularity, row);
        cap_counts(row, experts, units(moe));
    }
    return out;
}

RoutingModel::RoutingModel(const ModelSpec& model, const std::variant<SyntheticRouting, std::shared_ptr<const TraceReader>>& routing,
                           const RoutingDemand& demand, std::uint64_t seed)
    : source_(std::make_unique<Source>()) {
    source_->demand = demand;
    source_->seed = Seed{seed};
    for (const auto& layer : model.layers)
        if (const auto* moe = std::get_if<MoeFeedForward>(&layer.feed_forward)) source_->layers.push_back(*moe);
    if (source_->layers.empty()) return;
    if (const auto* trace = std::get_if<std::shared_ptr<const TraceReader>>(&routing); trace && *trace) {
        source_->open(**trace);
        return;
    }
    const auto* synthetic = std::get_if<SyntheticRouting>(&routing);
    source_->synthetic = synthetic ? *synthetic : SyntheticRouting{};
    const SyntheticRouting& kind = source_->synthetic;
    const std::vector<std::string> kinds = {"balanced", "multinomial", "zipf", "hot", "document_pools", "token_drop"};
    if (std::find(kinds.begin(), kinds.end(), kind.kind) == kinds.end()) throw InputError("--routing", "", kind.kind, join(kinds, ", "));
    source_->assumptions.push_back(
        kind.kind == "balanced" ? "routing is synthetic: every expert gets equally many tokens (no trace was given)"
        : kind.kind == "token_drop" ? "routing is synthetic: every expert is filled to its capacity, the rest dropped"
                                    : "routing is synthetic: " + to_words(kind) + ", drawn by seed, layer and micro-batch");
}

RoutingModel::~RoutingModel() = default;
RoutingModel::RoutingModel(RoutingModel&&) noexcept = default;

RoutingLoads RoutingModel::loads(int moe_layer, int micro_batch) const {
    assert(moe_layer >= 0 && moe_layer < static_cast<int>(source_->layers.size()));
    RoutingLoads out = source_->recorded ? source_->recorded_loads(moe_layer, micro_batch) : source_->synthetic_loads(moe_layer, micro_batch);
    const MoeFeedForward& moe = source_->layers[moe_layer];
    if (moe.capacity_factor && source_->synthetic.kind != "token_drop") {
        // ⌈f·T·k/E⌉ of each source; later tokens are dropped
        const auto capacity = static_cast<std::uint32_t>(std::ceil(*moe.capacity_factor * static_cast<double>(source_->units(moe) * moe.top_k) / moe.num_experts));
        for (auto& count : out.sub_tokens) count = std::min(count, capacity);
    }
    return out;
}

bool RoutingModel::same_everywhere() const {
    return !source_->recorded && (source_->synthetic.kind == "balanced" || source_->synthetic.kind == "token_drop");
}
const std::vector<std::string>& RoutingModel::assumptions() const { return source_->assumptions; }

}  // namespace moeplan
