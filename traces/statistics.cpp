#include "traces/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "traces/document_pieces.hpp"

namespace moeplan {
namespace {

constexpr double kThresholds[] = {0.01, 0.25, 0.5, 1, 2};
constexpr std::size_t kLongDocument = 200;  ///< tokens
constexpr int kMostWindows = 16;
constexpr int kMostExpertsForPairs = 1024;  ///< E² counters of 8 bytes

std::vector<int> rank_counts(int num_experts) {
    std::vector<int> out;
    for (int n = 2; n <= num_experts && n <= 1024; n *= 2) out.push_back(n);
    return out;
}

Spread spread_of(std::vector<double> values) {
    if (values.empty()) return {};
    std::sort(values.begin(), values.end());
    const double mean =
        std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
    const auto at =
        static_cast<std::size_t>(std::ceil(0.95 * static_cast<double>(values.size()))) - 1;
    return {mean, values[at], values.back()};
}

/// Fewest experts that hold 90 %.
template <class Count>
double experts_for_90(std::vector<Count> counts) {
    std::sort(counts.begin(), counts.end(), std::greater<>());
    const double total = std::accumulate(counts.begin(), counts.end(), 0.0);
    double sum = 0;
    std::size_t n = 0;
    while (n < counts.size() && sum < 0.9 * total) sum += static_cast<double>(counts[n++]);
    return static_cast<double>(n);
}

double cosine(const std::vector<double>& a, const std::vector<double>& b) {
    double ab = 0, aa = 0, bb = 0;
    for (std::size_t i = 0; i < a.size(); ++i)
        ab += a[i] * b[i], aa += a[i] * a[i], bb += b[i] * b[i];
    return aa > 0 && bb > 0 ? ab / std::sqrt(aa * bb) : 0;
}

double correlation(const std::vector<std::uint64_t>& a, const std::vector<std::uint64_t>& b) {
    const auto n = static_cast<double>(a.size());
    const double mean_a = std::accumulate(a.begin(), a.end(), 0.0) / n,
                 mean_b = std::accumulate(b.begin(), b.end(), 0.0) / n;
    std::vector<double> x, y;
    for (std::size_t i = 0; i < a.size(); ++i) {
        x.push_back(static_cast<double>(a[i]) - mean_a);
        y.push_back(static_cast<double>(b[i]) - mean_b);
    }
    return cosine(x, y);
}

/// Sums over the steps of one layer.
class LayerCollector {
  public:
    LayerCollector(const TraceHeader& h, int layer) : h_(h), ranks_(rank_counts(h.num_experts)) {
        out_.layer = layer;
        out_.tokens_per_expert.assign(static_cast<std::size_t>(h.num_experts), 0);
        if (!h.counts_only && h.num_experts <= kMostExpertsForPairs &&
            h.top_k * h.num_moe_heads > 1)
            pairs_.assign(
                static_cast<std::size_t>(h.num_experts) * static_cast<std::size_t>(h.num_experts),
                0);
    }

    /// @return the micro-batch's counts
    std::vector<std::uint64_t> add_counts(const RoutingLoads& loads) {
        std::vector<std::uint64_t> counts(static_cast<std::size_t>(h_.num_experts), 0);
        for (std::size_t i = 0; i < loads.sub_tokens.size(); ++i)
            counts[i % counts.size()] += loads.sub_tokens[i];
        for (std::size_t e = 0; e < counts.size(); ++e) out_.tokens_per_expert[e] += counts[e];
        if (std::any_of(counts.begin(), counts.end(), [](auto c) { return c > 0; })) {
            exchange_.push_back(max_over_mean(counts));
            for (const int n : ranks_)
                exchange_by_ranks_[n].push_back(max_over_mean(by_rank(counts, n)));
        }
        return counts;
    }

    void add_tokens(const RoutedTokens& tokens, const std::vector<std::uint16_t>& domains) {
        const auto per_token =
            static_cast<std::size_t>(h_.top_k) * static_cast<std::size_t>(h_.num_moe_heads);
        const std::size_t n = tokens.token_rank.size();
        std::vector<std::uint16_t> own;
        for (std::size_t token = 0; token < n; ++token) {
            const std::uint16_t* ids = tokens.expert_ids.data() + token * per_token;
            own.assign(ids, ids + per_token);
            std::sort(own.begin(), own.end());
            own.erase(std::unique(own.begin(), own.end()), own.end());
            if (!own.empty() && own.back() == kNotRouted) own.pop_back();
            out_.not_routed +=
                static_cast<std::uint64_t>(std::count(ids, ids + per_token, kNotRouted));
            if (token > 0 && ids[0] != kNotRouted) {
                ++repeat_chances_;
                repeats_ += ids[0] == ids[-static_cast<std::ptrdiff_t>(per_token)];
            }
            if (!pairs_.empty())
                for (std::size_t a = 0; a < own.size(); ++a)
                    for (std::size_t b = a + 1; b < own.size(); ++b)
                        ++pairs_[own[a] * static_cast<std::size_t>(h_.num_experts) + own[b]];
            distinct_ += own.size();
            for (const int ranks : ranks_) {
                int distinct = 0;
                long long last = -1;
                for (const auto id : own) {
                    const long long rank = static_cast<long long>(id) * ranks / h_.num_experts;
                    distinct += rank != last;
                    last = rank;
                }
                ranks_per_token_[ranks] += static_cast<std::uint64_t>(distinct);
            }
        }
        tokens_ += n;
        if (!domains.empty()) {
            for (std::size_t token = 0; token < n; ++token) {
                auto& shares = domain_shares_[domains[token]];
                if (shares.empty()) shares.assign(static_cast<std::size_t>(h_.num_experts), 0);
                for (std::size_t slot = token * per_token; slot < (token + 1) * per_token; ++slot)
                    if (tokens.expert_ids[slot] != kNotRouted) ++shares[tokens.expert_ids[slot]];
            }
        }
        if (!tokens.document.empty()) {
            for (const DocumentPiece& piece : document_pieces(tokens, h_.sequence_length)) {
                if (piece.end - piece.begin < kLongDocument) continue;
                std::vector<std::uint32_t> counts(static_cast<std::size_t>(h_.num_experts), 0);
                for (std::size_t slot = piece.begin * per_token; slot < piece.end * per_token;
                     ++slot)
                    if (tokens.expert_ids[slot] != kNotRouted) ++counts[tokens.expert_ids[slot]];
                document_experts_ += static_cast<double>(
                    std::count_if(counts.begin(), counts.end(), [](auto c) { return c > 0; }));
                document_90_ += experts_for_90(std::move(counts));
                ++long_documents_;
            }
        }
    }

    void add_gates(const std::vector<float>& gates) {
        for (const float g : gates) gate_sum_ += g;
        gate_rows_ += gates.size() / static_cast<std::size_t>(h_.top_k);
    }

    LayerStatistics finish() {
        const auto& counts = out_.tokens_per_expert;
        out_.max_over_mean = max_over_mean(counts);
        out_.gini = gini(counts);
        out_.entropy = relative_entropy_of_uniform(counts);
        const double total = std::accumulate(counts.begin(), counts.end(), 0.0),
                     mean = total / static_cast<double>(counts.size());
        for (const double threshold : kThresholds)
            out_.activation_ratio.emplace_back(
                threshold,
                static_cast<double>(std::count_if(
                    counts.begin(), counts.end(),
                    [&](auto c) { return c > 0 && static_cast<double>(c) >= threshold * mean; })) /
                    static_cast<double>(counts.size()));
        for (const int n : ranks_) out_.by_ranks[n] = max_over_mean(by_rank(counts, n));
        out_.exchange = spread_of(std::move(exchange_));
        for (auto& [n, values] : exchange_by_ranks_)
            out_.exchange_by_ranks[n] = spread_of(std::move(values));
        if (gate_rows_ > 0) out_.chosen_gates = gate_sum_ / static_cast<double>(gate_rows_);
        if (tokens_ == 0) return std::move(out_);
        out_.experts_for_90_of_text = experts_for_90(counts);
        if (long_documents_ > 0) {
            out_.experts_per_document = document_experts_ / static_cast<double>(long_documents_);
            out_.experts_for_90_of_document = document_90_ / static_cast<double>(long_documents_);
        }
        if (repeat_chances_ > 0)
            out_.repeats = static_cast<double>(repeats_) / static_cast<double>(repeat_chances_);
        domains();
        if (total > 0) co_activation(total);
        return std::move(out_);
    }

  private:
    void domains() {
        double sum = 0;
        int count = 0;
        for (auto a = domain_shares_.begin(); a != domain_shares_.end(); ++a)
            for (auto b = std::next(a); b != domain_shares_.end(); ++b, ++count)
                sum += cosine(a->second, b->second);
        if (count > 0) out_.domain_cosine = sum / count;
    }

    void co_activation(double total) {
        const auto experts = static_cast<std::size_t>(h_.num_experts);
        const double mean_distinct = static_cast<double>(distinct_) / static_cast<double>(tokens_);
        for (const auto& [ranks, sum] : ranks_per_token_) {
            out_.ranks_per_token[ranks] = static_cast<double>(sum) / static_cast<double>(tokens_);
            // Choices drawn alone: a token reaches rank r unless all its m distinct experts lie
            // elsewhere.
            double expected = 0;
            const auto load = by_rank(out_.tokens_per_expert, ranks);
            for (const auto n : load)
                expected += 1 - std::pow(1 - static_cast<double>(n) / total, mean_distinct);
            out_.ranks_per_token_if_independent[ranks] = expected;
        }
        const double all_pairs = std::accumulate(pairs_.begin(), pairs_.end(), 0.0);
        if (!(all_pairs > 0)) return;
        std::vector<std::pair<std::uint64_t, std::size_t>> order;
        std::vector<double> independent;
        double independent_sum = 0;
        for (std::size_t a = 0; a < experts; ++a)
            for (std::size_t b = a + 1; b < experts; ++b) {
                order.emplace_back(pairs_[a * experts + b], a * experts + b);
                const double p = static_cast<double>(out_.tokens_per_expert[a]) *
                                 static_cast<double>(out_.tokens_per_expert[b]);
                independent.push_back(p);
                independent_sum += p;
            }
        const std::size_t tenth = std::max<std::size_t>(1, order.size() / 10),
                          shown = std::min<std::size_t>(10, order.size());
        std::sort(order.begin(), order.end(), [](const auto& x, const auto& y) {
            return x.first != y.first ? x.first > y.first : x.second < y.second;
        });
        std::sort(independent.begin(), independent.end(), std::greater<>());
        double top = 0, top_independent = 0;
        for (std::size_t i = 0; i < tenth; ++i)
            top += static_cast<double>(order[i].first), top_independent += independent[i];
        out_.top_pairs = top / all_pairs;
        if (independent_sum > 0) out_.top_pairs_if_independent = top_independent / independent_sum;
        for (std::size_t i = 0; i < shown && order[i].first > 0; ++i)
            out_.most_frequent_pairs.push_back({{static_cast<int>(order[i].second / experts),
                                                 static_cast<int>(order[i].second % experts)},
                                                static_cast<double>(order[i].first) / all_pairs});
    }

    const TraceHeader& h_;
    std::vector<int> ranks_;
    LayerStatistics out_;
    std::vector<double> exchange_;
    std::map<int, std::vector<double>> exchange_by_ranks_;
    std::vector<std::uint64_t> pairs_;  ///< [E, E], first below second
    std::map<std::uint16_t, std::vector<double>> domain_shares_;
    std::map<int, std::uint64_t> ranks_per_token_;
    std::uint64_t tokens_ = 0, distinct_ = 0, repeats_ = 0, repeat_chances_ = 0,
                  long_documents_ = 0, gate_rows_ = 0;
    double document_experts_ = 0, document_90_ = 0, gate_sum_ = 0;
};

}  // namespace

double max_over_mean(std::span<const std::uint64_t> counts) {
    if (counts.empty()) return 1;
    const double total = std::accumulate(counts.begin(), counts.end(), 0.0);
    const auto most = static_cast<double>(*std::max_element(counts.begin(), counts.end()));
    return total > 0 ? most * static_cast<double>(counts.size()) / total : 1.0;
}

double gini(std::span<const std::uint64_t> counts) {
    std::vector<std::uint64_t> sorted(counts.begin(), counts.end());
    std::sort(sorted.begin(), sorted.end());
    // G = 2·Σ i·xᵢ / (n·Σ xᵢ) − (n+1)/n, xᵢ rising, i from 1.
    double weighted = 0, total = 0;
    for (std::size_t i = 0; i < sorted.size(); ++i) {
        weighted += static_cast<double>(i + 1) * static_cast<double>(sorted[i]);
        total += static_cast<double>(sorted[i]);
    }
    const auto n = static_cast<double>(sorted.size());
    return total > 0 ? std::max(0.0, 2 * weighted / (n * total) - (n + 1) / n) : 0.0;
}

double relative_entropy_of_uniform(std::span<const std::uint64_t> counts) {
    const double total = std::accumulate(counts.begin(), counts.end(), 0.0);
    if (!(total > 0) || counts.size() < 2) return 1;
    double entropy = 0;
    for (const auto c : counts)
        if (c > 0)
            entropy -= static_cast<double>(c) / total * std::log(static_cast<double>(c) / total);
    return std::min(1.0, entropy / std::log(static_cast<double>(counts.size())));
}

std::vector<std::uint64_t> by_rank(std::span<const std::uint64_t> tokens_per_expert,
                                   int num_ranks) {
    std::vector<std::uint64_t> out(static_cast<std::size_t>(num_ranks), 0);
    for (std::size_t e = 0; e < tokens_per_expert.size(); ++e)
        out[e * out.size() / tokens_per_expert.size()] += tokens_per_expert[e];
    return out;
}

TraceStatistics trace_statistics(const TraceReader& trace) {
    const TraceHeader& h = trace.header();
    TraceStatistics out;
    out.header = h;
    out.tokens =
        static_cast<std::uint64_t>(h.tokens_per_step) * static_cast<std::uint64_t>(h.num_steps);
    std::vector<LayerCollector> collectors;
    for (int layer = 0; layer < h.num_moe_layers; ++layer) collectors.emplace_back(h, layer);
    const int windows = std::min(h.num_steps, kMostWindows);
    std::vector<std::vector<std::uint64_t>> before;
    for (int window = 0; window < windows; ++window) {
        const int begin = static_cast<int>(static_cast<long long>(window) * h.num_steps / windows),
                  end =
                      static_cast<int>(static_cast<long long>(window + 1) * h.num_steps / windows);
        std::vector<std::vector<std::uint64_t>> sums(
            static_cast<std::size_t>(h.num_moe_layers),
            std::vector<std::uint64_t>(static_cast<std::size_t>(h.num_experts), 0));
        WindowDrift drift;
        double exchanges = 0;
        for (int step = begin; step < end; ++step) {
            const TraceStepFacts facts = trace.facts(step);
            if (step == begin) drift.from_step = facts.step;
            drift.to_step = facts.step;
            drift.loss += facts.loss / (end - begin);
            for (int layer = 0; layer < h.num_moe_layers; ++layer) {
                auto& collector = collectors[static_cast<std::size_t>(layer)];
                for (int micro_batch = 0; micro_batch < h.num_micro_batches; ++micro_batch) {
                    const auto counts = collector.add_counts(trace.loads(step, layer, micro_batch));
                    drift.exchange_max_over_mean += max_over_mean(counts);
                    ++exchanges;
                    for (std::size_t e = 0; e < counts.size(); ++e)
                        sums[static_cast<std::size_t>(layer)][e] += counts[e];
                    if (!h.counts_only)
                        collector.add_tokens(trace.tokens(step, layer, micro_batch),
                                             facts.domains(micro_batch));
                }
                collector.add_gates(trace.gates(step, layer));
            }
        }
        drift.exchange_max_over_mean /= std::max(1.0, exchanges);
        for (std::size_t layer = 0; layer < sums.size(); ++layer) {
            drift.max_over_mean += max_over_mean(sums[layer]) / h.num_moe_layers;
            if (!before.empty())
                drift.popularity_correlation +=
                    correlation(before[layer], sums[layer]) / h.num_moe_layers;
        }
        before = std::move(sums);
        out.drift.push_back(drift);
    }
    for (auto& collector : collectors) out.layers.push_back(collector.finish());
    return out;
}

namespace {

template <class T>
Json by_number(const std::map<int, T>& values) {
    Json out = Json::object();
    for (const auto& [n, value] : values) {
        if constexpr (std::is_same_v<T, Spread>)
            out[std::to_string(n)] = {
                {"mean", value.mean}, {"p95", value.p95}, {"largest", value.largest}};
        else
            out[std::to_string(n)] = value;
    }
    return out;
}

}  // namespace

Json to_json(const TraceStatistics& s) {
    Json out = json_header("trace-stats");
    out["model"] = s.header.model;
    out["source"] = s.header.source;
    out["steps"] = s.header.num_steps;
    out["tokens"] = s.tokens;
    out["num_experts"] = s.header.num_experts;
    out["top_k"] = s.header.top_k;
    out["num_moe_heads"] = s.header.num_moe_heads;
    out["num_ranks"] = s.header.num_ranks;
    out["num_micro_batches"] = s.header.num_micro_batches;
    out["counts_only"] = s.header.counts_only;
    out["gates"] = s.header.gates;
    out["document_order"] = s.header.document_order;
    out["layers"] = Json::array();
    for (const LayerStatistics& l : s.layers) {
        Json layer = {{"layer", l.layer},
                      {"tokens_per_expert", l.tokens_per_expert},
                      {"not_routed", l.not_routed},
                      {"max_over_mean", l.max_over_mean},
                      {"gini", l.gini},
                      {"entropy", l.entropy}};
        Json ratios = Json::array();
        for (const auto& [threshold, ratio] : l.activation_ratio)
            ratios.push_back({threshold, ratio});
        layer["activation_ratio"] = std::move(ratios);
        layer["by_ranks"] = by_number(l.by_ranks);
        layer["micro_batch"] = {
            {"max_over_mean",
             {{"mean", l.exchange.mean}, {"p95", l.exchange.p95}, {"largest", l.exchange.largest}}},
            {"by_ranks", by_number(l.exchange_by_ranks)}};
        const auto add = [&](const char* name, const std::optional<double>& value) {
            if (value) layer[name] = *value;
        };
        add("sum_of_chosen_gates", l.chosen_gates);
        if (l.experts_for_90_of_text) {
            Json documents = {{"experts_for_90_percent_of_text", *l.experts_for_90_of_text}};
            if (l.experts_per_document) documents["distinct_experts"] = *l.experts_per_document;
            if (l.experts_for_90_of_document)
                documents["experts_for_90_percent"] = *l.experts_for_90_of_document;
            layer["document_spread"] = std::move(documents);
        }
        add("domain_cosine", l.domain_cosine);
        add("first_choice_repeats", l.repeats);
        if (l.top_pairs) {
            Json pairs = Json::array();
            for (const auto& [pair, share] : l.most_frequent_pairs)
                pairs.push_back({pair.first, pair.second, share});
            layer["co_activation"] = {{"share_of_top_tenth_of_pairs", *l.top_pairs},
                                      {"if_independent", l.top_pairs_if_independent.value_or(0)},
                                      {"pairs", std::move(pairs)}};
        }
        if (!l.ranks_per_token.empty()) {
            layer["ranks_per_token"] = by_number(l.ranks_per_token);
            layer["ranks_per_token_if_independent"] = by_number(l.ranks_per_token_if_independent);
        }
        out["layers"].push_back(std::move(layer));
    }
    out["drift"] = Json::array();
    for (std::size_t i = 0; i < s.drift.size(); ++i) {
        const WindowDrift& d = s.drift[i];
        Json window = {{"from_step", d.from_step},
                       {"to_step", d.to_step},
                       {"loss", d.loss},
                       {"max_over_mean", d.max_over_mean},
                       {"micro_batch_max_over_mean", d.exchange_max_over_mean}};
        if (i > 0) window["popularity_correlation"] = d.popularity_correlation;
        out["drift"].push_back(std::move(window));
    }
    return out;
}

}  // namespace moeplan
