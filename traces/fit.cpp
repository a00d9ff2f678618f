#include "traces/fit.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "traces/document_pieces.hpp"

namespace moeplan {
namespace {

/// Choices of each expert by document, of one layer in one step.
struct DocumentCounts {
    std::vector<std::vector<std::uint32_t>> counts;  ///< [documents] of [num_experts]
};

DocumentCounts count_documents(const TraceReader& trace, int step, int layer,
                               std::vector<std::uint32_t>* lengths) {
    const TraceHeader& h = trace.header();
    DocumentCounts out;
    const auto experts = static_cast<std::size_t>(h.num_experts);
    for (int micro_batch = 0; micro_batch < h.num_micro_batches; ++micro_batch) {
        if (h.counts_only) {
            const RoutingLoads loads = trace.loads(step, layer, micro_batch);
            for (int source = 0; source < loads.num_sources; ++source) {
                const auto begin =
                    loads.sub_tokens.begin() + static_cast<std::ptrdiff_t>(source * experts);
                out.counts.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(experts));
            }
            continue;
        }
        const RoutedTokens tokens = trace.tokens(step, layer, micro_batch);
        const auto per_token =
            static_cast<std::size_t>(h.top_k) * static_cast<std::size_t>(h.num_moe_heads);
        for (const DocumentPiece& piece : document_pieces(tokens, h.sequence_length)) {
            auto& counts = out.counts.emplace_back(experts, 0);
            for (std::size_t slot = piece.begin * per_token; slot < piece.end * per_token; ++slot)
                if (tokens.expert_ids[slot] != kNotRouted) ++counts[tokens.expert_ids[slot]];
            if (lengths) lengths->push_back(static_cast<std::uint32_t>(piece.end - piece.begin));
        }
    }
    return out;
}

constexpr std::size_t kMostLengths = 4096;

/// Φ⁻¹ of Blom's positions gives the mean of the largest of n normals: E max ≈ Φ⁻¹((n − 0.375)/(n +
/// 0.25)). Here it is integrated instead, since ranks differ in mean and spread: E max = ∫ (1 − Π
/// Φ((x − μᵢ)/σᵢ)) dx from a point below all.
double expected_maximum(const std::vector<double>& mean, const std::vector<double>& deviation) {
    double low = mean[0], high = mean[0];
    for (std::size_t i = 0; i < mean.size(); ++i) {
        low = std::min(low, mean[i] - 8 * deviation[i]);
        high = std::max(high, mean[i] + 8 * deviation[i]);
    }
    constexpr int kSteps = 2000;
    const double width = (high - low) / kSteps;
    double integral = 0;
    for (int i = 0; i < kSteps; ++i) {
        const double x = low + (i + 0.5) * width;
        double all_below = 1;
        for (std::size_t j = 0; j < mean.size(); ++j)
            all_below *= deviation[j] > 0
                             ? 0.5 * std::erfc((mean[j] - x) / (deviation[j] * std::sqrt(2.0)))
                             : (x >= mean[j] ? 1.0 : 0.0);
        integral += (1 - all_below) * width;
    }
    return low + integral;
}

}  // namespace

std::vector<DocumentPiece> document_pieces(const RoutedTokens& tokens, int sequence_length) {
    std::vector<DocumentPiece> out;
    const std::size_t n = tokens.token_rank.size();
    std::size_t in_sequence = 0;
    for (std::size_t i = 0; i < n; ++i) {
        const bool other_rank = i > 0 && tokens.token_rank[i] != tokens.token_rank[i - 1];
        if (other_rank ||
            (sequence_length > 0 && in_sequence == static_cast<std::size_t>(sequence_length)))
            in_sequence = 0;
        const bool border =
            i == 0 || in_sequence == 0 ||
            (!tokens.document.empty() && tokens.document[i] != tokens.document[i - 1]);
        if (border) out.push_back({i, i, tokens.document.empty() ? 0 : tokens.document[i]});
        out.back().end = i + 1;
        ++in_sequence;
    }
    return out;
}

TraceFit fit_trace(const TraceReader& trace, int first_step) {
    const TraceHeader& h = trace.header();
    TraceFit fit;
    fit.num_experts = h.num_experts;
    fit.top_k = h.top_k;
    fit.num_moe_heads = h.num_moe_heads;
    fit.sequence_length = h.sequence_length;
    const bool has_documents = !h.counts_only && !trace.tokens(0, 0, 0).document.empty();
    fit.basis = has_documents ? "documents" : "exchanges";
    const auto experts = static_cast<std::size_t>(h.num_experts);
    const int begin = std::clamp(first_step, 0, h.num_steps - 1);
    std::vector<std::uint32_t> lengths;
    for (int layer = 0; layer < h.num_moe_layers; ++layer) {
        // One pass suffices: Σ over documents of c, c², n, n² gives both moments once p is known.
        std::vector<double> total(experts, 0), squares(experts, 0), weighted(experts, 0);
        double n_total = 0, n_squares = 0;
        for (int step = begin; step < h.num_steps; ++step) {
            const auto documents =
                count_documents(trace, step, layer, layer == 0 ? &lengths : nullptr);
            for (const auto& counts : documents.counts) {
                double n = 0;
                for (const auto c : counts) n += c;
                n_total += n;
                n_squares += n * n;
                for (std::size_t e = 0; e < experts; ++e) {
                    const double c = counts[e];
                    total[e] += c;
                    squares[e] += c * c;
                    weighted[e] += c * n;
                }
            }
        }
        LayerFit out;
        out.popularity.assign(experts, 1.0 / static_cast<double>(experts));
        if (n_total > 0) {
            double above = 0, below = 0;
            for (std::size_t e = 0; e < experts; ++e) {
                const double p = out.popularity[e] = total[e] / n_total;
                // Σ (c − np)² = Σ c² − 2p Σ cn + p² Σ n²
                above +=
                    squares[e] - 2 * p * weighted[e] + p * p * n_squares - n_total * p * (1 - p);
                below += (n_squares - n_total) * p * (1 - p);
            }
            out.over_dispersion = below > 0 ? std::clamp(above / below, 0.0, 1.0) : 0.0;
        }
        fit.layers.push_back(std::move(out));
    }
    std::sort(lengths.begin(), lengths.end());
    if (has_documents)
        for (std::size_t i = 0, n = std::min(lengths.size(), kMostLengths); i < n; ++i)
            fit.document_lengths.push_back(lengths[i * lengths.size() / n]);
    return fit;
}

TraceFit with_experts(const TraceFit& from, int num_experts) {
    TraceFit out = from;
    out.num_experts = num_experts;
    for (LayerFit& layer : out.layers) {
        // Popularity as a density over [0, 1), constant over each expert, cut into num_experts
        // equal parts.
        const auto old_count = static_cast<double>(layer.popularity.size());
        std::vector<double> shares(static_cast<std::size_t>(num_experts), 0);
        for (int e = 0; e < num_experts; ++e) {
            const double begin = e * old_count / num_experts,
                         end = (e + 1) * old_count / num_experts;
            for (auto old = static_cast<std::size_t>(begin);
                 old < layer.popularity.size() && static_cast<double>(old) < end; ++old)
                shares[static_cast<std::size_t>(e)] +=
                    layer.popularity[old] * (std::min(end, static_cast<double>(old + 1)) -
                                             std::max(begin, static_cast<double>(old)));
        }
        layer.popularity = std::move(shares);
        layer.over_dispersion = std::min(1.0, layer.over_dispersion * old_count / num_experts);
    }
    return out;
}

double expected_imbalance(const TraceFit& fit, int layer, int num_ranks, int sequences) {
    const LayerFit& l = fit.layers[static_cast<std::size_t>(layer)];
    const double per_token = static_cast<double>(fit.top_k) * fit.num_moe_heads;
    const double slots =
        std::max(1, fit.sequence_length) * static_cast<double>(sequences) * per_token;
    // Σ (n_i/N)² of documents of the lengths seen: Σn² / (Σn · N).
    double sum = 0, squares = 0;
    for (const double n : fit.document_lengths) {
        sum += n;
        squares += n * n;
    }
    const double concentration =
        sum > 0 ? squares * per_token / (sum * slots) : 1.0 / std::max(1, sequences);
    std::vector<double> share(static_cast<std::size_t>(num_ranks), 0), deviation(share.size());
    for (std::size_t e = 0; e < l.popularity.size(); ++e)
        share[e * static_cast<std::size_t>(num_ranks) / l.popularity.size()] += l.popularity[e];
    for (std::size_t r = 0; r < share.size(); ++r)
        deviation[r] =
            std::sqrt(share[r] * (1 - share[r]) * (1 / slots + l.over_dispersion * concentration));
    return std::max(1.0, expected_maximum(share, deviation) * num_ranks);
}

Json to_json(const TraceFit& fit) {
    Json out = {{"num_experts", fit.num_experts},
                {"top_k", fit.top_k},
                {"num_moe_heads", fit.num_moe_heads},
                {"basis", fit.basis},
                {"layers", Json::array()}};
    for (const LayerFit& layer : fit.layers)
        out["layers"].push_back(
            {{"popularity", layer.popularity},
             {"over_dispersion", layer.over_dispersion},
             {"experts_times_over_dispersion",
              layer.over_dispersion * static_cast<double>(layer.popularity.size())}});
    return out;
}

}  // namespace moeplan
