#include "traces/routing_law.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "core/errors.hpp"
#include "core/text.hpp"

namespace moeplan {
namespace {

struct Piece {
    int tokens = 0;
    std::uint64_t document = 0;
};

/// Documents that fill one sequence. Sequences are counted over the whole synthesis, so that a
/// document is one of a kind.
std::vector<Piece> pieces_of(const SynthesisShape& shape, Seed seed, std::uint64_t sequence) {
    std::vector<Piece> out;
    DrawStream draws(derive(seed, "document_lengths", sequence));
    for (int left = shape.sequence_length; left > 0;) {
        const int length =
            shape.document_lengths.empty()
                ? left
                : static_cast<int>(std::max<std::uint32_t>(
                      1, shape.document_lengths[draws.below(shape.document_lengths.size())]));
        // Longest first would waste sequences; a document is cut where its sequence ends, as
        // packing does.
        out.push_back({std::min(left, length), mix(sequence * 65537 + out.size())});
        left -= out.back().tokens;
    }
    return out;
}

std::uint64_t sequence_number(const SynthesisShape& s, int step, int micro_batch, int rank,
                              int index) {
    return ((static_cast<std::uint64_t>(step) * static_cast<std::uint64_t>(s.num_micro_batches) +
             static_cast<std::uint64_t>(micro_batch)) *
                static_cast<std::uint64_t>(s.num_ranks) +
            static_cast<std::uint64_t>(rank)) *
               static_cast<std::uint64_t>(s.sequences_per_micro_batch) +
           static_cast<std::uint64_t>(index);
}

const SharesOf& law_of(const RoutingLaw& law) {
    const auto at = routing_laws().find(law.kind);
    if (at == routing_laws().end()) {
        std::vector<std::string> names;
        for (const auto& [name, shares] : routing_laws()) names.push_back(name);
        throw InputError("--routing", "", "\"" + law.kind + "\"", join(names, ", "));
    }
    if (law.kind == "fitted" && (!law.fit || law.fit->layers.empty()))
        throw InputError("--routing", "", "fitted", "a trace to fit");
    return at->second;
}

void check(const RoutingLaw& law, const SynthesisShape& s) {
    law_of(law);
    const auto positive = [](const char* name, int value) {
        if (value < 1) throw InputError("", name, std::to_string(value), "1 or more");
    };
    positive("steps", s.num_steps);
    positive("layers", s.num_moe_layers);
    positive("experts", s.num_experts);
    positive("top_k", s.top_k);
    positive("heads", s.num_moe_heads);
    positive("ranks", s.num_ranks);
    positive("micro_batches", s.num_micro_batches);
    positive("micro_batch", s.sequences_per_micro_batch);
    positive("seq", s.sequence_length);
    if (s.top_k > s.num_experts)
        throw InputError("", "top_k", std::to_string(s.top_k),
                         "at most " + std::to_string(s.num_experts) + " (the experts)");
    if (law.fit && law.fit->num_experts != s.num_experts)
        throw InputError(
            "", "experts", std::to_string(s.num_experts),
            std::to_string(law.fit->num_experts) + " (the fit's; with_experts changes them)");
}

/// ⌈f·T·k/E⌉ choices of one exchange.
std::uint32_t capacity_of(const RoutingLaw& law, const SynthesisShape& s) {
    const double sub_tokens = static_cast<double>(s.num_ranks) * s.sequences_per_micro_batch *
                              s.sequence_length * s.num_moe_heads;
    return static_cast<std::uint32_t>(
        std::ceil(law.capacity_factor * sub_tokens * s.top_k / s.num_experts));
}

/// k distinct experts, drawn one after the other with the shares of those not yet chosen.
class DistinctChoices {
  public:
    DistinctChoices(const ExpertShares& shares, int k) : k_(static_cast<std::size_t>(k)) {
        double sum = 0;
        for (const double s : shares) cumulative_.push_back(sum += s);
    }
    void draw_into(DrawStream& draws, std::vector<std::uint16_t>& out) {
        const std::size_t begin = out.size();
        for (int tries = 0; out.size() - begin < k_;) {
            const auto at = std::upper_bound(cumulative_.begin(), cumulative_.end(),
                                             draws.uniform() * cumulative_.back()) -
                            cumulative_.begin();
            auto expert = static_cast<std::uint16_t>(
                std::min<std::ptrdiff_t>(at, static_cast<std::ptrdiff_t>(cumulative_.size()) - 1));
            const auto chosen = [&](std::uint16_t id) {
                return std::find(out.begin() + static_cast<std::ptrdiff_t>(begin), out.end(), id) !=
                       out.end();
            };
            if (chosen(expert)) {
                if (++tries < 64 * static_cast<int>(k_)) continue;
                // Nearly all share lies on experts already chosen: take the next free one.
                while (chosen(expert))
                    expert = static_cast<std::uint16_t>((expert + 1u) % cumulative_.size());
            }
            out.push_back(expert);
        }
    }

  private:
    std::vector<double> cumulative_;
    std::size_t k_;
};

/// log k! less Stirling's (k + ½)·log(k + 1) − (k + 1) + ½·log 2π.
double stirling_rest(double k) {
    constexpr std::array kTable = {0.0810614667953272,  0.0413406959554092, 0.0276779256849983,
                                   0.02079067210376509, 0.0166446911898211, 0.0138761288230707,
                                   0.0118967099458917,  0.0104112652619720, 0.00925546218271273,
                                   0.00833056343336287};
    if (k < kTable.size()) return kTable[static_cast<std::size_t>(k)];
    const double x = k + 1, square = x * x;
    return (1.0 / 12 - (1.0 / 360 - 1.0 / 1260 / square) / square) / x;
}

/// Few successes: gaps between them are geometric, floor(log(u) / log(1 − p)) failures before each.
std::uint64_t binomial_by_gaps(std::uint64_t n, double p, DrawStream& draws) {
    const double count = static_cast<double>(n), log_failure = std::log1p(-p);
    std::uint64_t successes = 0;
    double position = 0;
    while (true) {
        position += std::floor(-draws.exponential() / log_failure) + 1;
        if (position > count) return successes;
        ++successes;
    }
}

/// Transformed rejection in a time that does not depend on n (BTRS: Hörmann, The generation of
/// binomial random variates, J. Stat. Comput. Simul. 46, 1993). p ≤ 1/2, n·p ≥ 10.
struct Btrs {
    double count, p, mean, spread, b, a, c, inside;
    Btrs() = default;
    Btrs(double n, double share)
        : count(n),
          p(share),
          mean(count * p),
          spread(std::sqrt(mean * (1 - p))),
          b(1.15 + 2.53 * spread),
          a(-0.0873 + 0.0248 * b + 0.01 * p),
          c(mean + 0.5),
          inside(0.92 - 4.2 / b) {}

    /// Whether a draw outside of the quick region is taken: of a routing's, one in four comes this
    /// far.
    bool takes(double u, double v, double edge, double& k) const {
        k = std::floor((2 * a / edge + b) * u + c);
        if (edge >= 0.07 && v <= inside) return true;
        if (!(k >= 0 && k <= count)) return false;
        const double alpha = (2.83 + 5.1 / b) * spread, mode = std::floor((count + 1) * p);
        const double height = v * alpha / (a / (edge * edge) + b);
        switch (glance(height, k, mode)) {
            case Verdict::under:
                return true;
            case Verdict::above:
                return false;
            case Verdict::near:
                break;
        }
        const double odds = p / (1 - p);
        const double bound = (mode + 0.5) * std::log((mode + 1) / (odds * (count - mode + 1))) +
                             (count + 1) * std::log((count - mode + 1) / (count - k + 1)) +
                             (k + 0.5) * std::log(odds * (count - k + 1) / (k + 1)) +
                             stirling_rest(mode) + stirling_rest(count - mode) - stirling_rest(k) -
                             stirling_rest(count - k);
        return std::log(height) <= bound;
    }

    enum class Verdict { under, above, near };

    /// What needs no logarithm of a draw outside of the quick region, which is most of what there
    /// is to decide: of several draws the processor works on it side by side.
    Verdict first_glance(double u, double v, double edge, double& k) const {
        k = std::floor((2 * a / edge + b) * u + c);
        const double alpha = (2.83 + 5.1 / b) * spread, mode = std::floor((count + 1) * p),
                     height = v * alpha / (a / (edge * edge) + b);
        if (!(k >= 0 && k <= count)) return Verdict::above;
        if (!(count <= kMostCount)) return Verdict::near;
        const bool under = is_under(height, std::abs(k - mode), mode),
                   above = is_above(height, std::abs(k - mode), mode);
        return under ? Verdict::under : above ? Verdict::above : Verdict::near;
    }

  private:
    static constexpr double kSure = 1e-6, kMostCount = 0x1p28;
    bool is_under(double height, double distance, double mode) const {
        const double failing = mode * (1 - p);
        return height * 2 * failing < (2 * failing - distance * (distance + 1)) * (1 - kSure);
    }
    bool is_above(double height, double distance, double mode) const {
        const double x = distance * (distance - 1) / (2 * (mode * (1 - p) + distance + 1));
        return height * (1 + x * (1 + x / 2)) > 1 + kSure;
    }

    /// Where a height lies against f(k) / f(mode), as far as that can be said with one logarithm at
    /// most; `near` leaves it to `bound`, which is within kSure of the truth.
    ///
    /// With D = |k − mode| the ratio is a product of D factors 1 − z, and i − 1 ≤ z·(mode·(1 − p) +
    /// D + 1), z·mode·(1 − p) ≤ i for the i-th: so it is between 1 − D(D + 1)/2 over the one and
    /// exp(−D(D − 1)/2 over the other), and exp(−x) ≤ 1/(1 + x + x²/2). In between, the normal
    /// bounds of BTPE (Kachitvichyanukul and Schmeiser, Binomial random variate generation, Commun.
    /// ACM 31, 1988, step 5.2), which hold next to the mode too; then, where D is small, the
    /// product itself.
    Verdict glance(double height, double k, double mode) const {
        constexpr double kNearMode = 20;
        if (!(count <= kMostCount)) return Verdict::near;
        const double distance = std::abs(k - mode), variance = mean * (1 - p);
        if (is_under(height, distance, mode)) return Verdict::under;
        if (is_above(height, distance, mode)) return Verdict::above;
        if (distance < variance / 2 - 1) {
            const double share = distance / variance, middle = -distance * share / 2,
                         width = share *
                                 ((distance * (distance / 3 + 0.625) + 1.0 / 6) / variance + 0.5),
                         log_height = std::log(height);
            if (log_height < middle - width - kSure) return Verdict::under;
            if (log_height > middle + width + kSure) return Verdict::above;
        }
        if (distance > kNearMode) return Verdict::near;
        const double odds = p / (1 - p);
        double falling = 1, rising = 1;
        for (double y = std::min(k, mode) + 1; y <= std::max(k, mode); ++y) {
            falling *= odds * (count - y + 1);
            rising *= y;
        }
        const double ratio = k > mode ? falling / rising : rising / falling;
        return height < ratio * (1 - kSure)   ? Verdict::under
               : height > ratio * (1 + kSure) ? Verdict::above
                                              : Verdict::near;
    }
};
[[gnu::noinline]] std::uint64_t btrs_rest(const Btrs& law, double u, double v, double edge,
                                          DrawStream& draws) {
    double k = 0;
    while (!law.takes(u, v, edge, k)) {
        u = draws.uniform() - 0.5, v = draws.uniform(), edge = 0.5 - std::abs(u);
    }
    return static_cast<std::uint64_t>(k);
}

/// Binomial(n, p) draws, exact: by counting gaps while there are few, else by rejection. The first
/// try, which three of four draws take, is short enough that the processor begins the next draw
/// before this one is done.
inline std::uint64_t binomial(std::uint64_t n, double p, DrawStream& draws) {
    if (n == 0 || p <= 0) return 0;
    if (p >= 1) return n;
    const bool failures = p > 0.5;
    if (failures) p = 1 - p;
    std::uint64_t successes;
    if (static_cast<double>(n) * p < 10) {
        successes = binomial_by_gaps(n, p, draws);
    } else {
        const Btrs law(static_cast<double>(n), p);
        const double u = draws.uniform() - 0.5, v = draws.uniform(), edge = 0.5 - std::abs(u);
        // Here the draw is above −0.5 (mean ≥ 10), so that cutting digits is rounding down.
        successes = edge >= 0.07 && v <= law.inside
                        ? static_cast<std::uint64_t>((2 * law.a / edge + law.b) * u + law.c)
                        : btrs_rest(law, u, v, edge, draws);
    }
    return failures ? n - successes : successes;
}

/// `binomial` of each stream, the same draws: first what the first try decides, for all of them,
/// then what little it leaves.
class Binomials {
  public:
    explicit Binomials(std::size_t streams)
        : laws_(streams), tries_(streams), open_(streams), verdicts_(streams) {}

    /// @param n    [streams] draws
    /// @param out  [streams] successes
    void draw(std::span<const std::uint64_t> n, double p, std::span<DrawStream> streams,
              std::vector<std::uint64_t>& out) {
        const double rarer = p > 0.5 ? 1 - p : p;
        const auto least = *std::min_element(n.begin(), n.end());
        if (p <= 0 || p >= 1 || static_cast<double>(least) * rarer < 10) {
            for (std::size_t i = 0; i < n.size(); ++i) out[i] = binomial(n[i], p, streams[i]);
            return;
        }
        std::size_t num_open = 0;
        for (std::size_t i = 0; i < n.size(); ++i) {
            const Btrs& law = laws_[i] = Btrs(static_cast<double>(n[i]), rarer);
            const double u = streams[i].uniform() - 0.5, v = streams[i].uniform(),
                         edge = 0.5 - std::abs(u);
            tries_[i] = {u, v, edge};
            out[i] = static_cast<std::uint64_t>((2 * law.a / edge + law.b) * u + law.c);
            open_[num_open] = i;
            num_open += !((edge >= 0.07) & (v <= law.inside));
        }
        for (std::size_t j = 0; j < num_open; ++j) {
            const std::size_t i = open_[j];
            Try& first = tries_[i];
            verdicts_[j] = laws_[i].first_glance(first.u, first.v, first.edge, first.k);
        }
        for (std::size_t j = 0; j < num_open; ++j) {
            const std::size_t i = open_[j];
            Try& next = tries_[i];
            if (verdicts_[j] == Btrs::Verdict::under) {
                out[i] = static_cast<std::uint64_t>(next.k);
                continue;
            }
            if (verdicts_[j] == Btrs::Verdict::above) {
                next.u = streams[i].uniform() - 0.5, next.v = streams[i].uniform();
                next.edge = 0.5 - std::abs(next.u);
            }
            out[i] = btrs_rest(laws_[i], next.u, next.v, next.edge, streams[i]);
        }
        if (p > 0.5)
            for (std::size_t i = 0; i < n.size(); ++i) out[i] = n[i] - out[i];
    }

  private:
    struct Try {
        double u = 0, v = 0, edge = 0, k = 0;
    };
    std::vector<Btrs> laws_;
    std::vector<Try> tries_;
    std::vector<std::size_t> open_;  // streams whose first try is not taken at once
    std::vector<Btrs::Verdict> verdicts_;
};

/// Laws that know no documents: one set of shares a layer, for every token.
bool chooses_alike(const RoutingLaw& law) {
    return law.kind == "multinomial" || law.kind == "zipf" || law.kind == "hot" ||
           law.kind == "token_drop";
}

}  // namespace

const std::map<std::string, SharesOf>& routing_laws() {
    static const std::map<std::string, SharesOf> laws = {
        {"balanced", balanced_shares},
        {"multinomial", multinomial_shares},
        {"zipf", zipf_shares},
        {"hot", hot_shares},
        {"document_dirichlet", document_dirichlet_shares},
        {"document_pools", document_pools_shares},
        {"token_drop", token_drop_shares},
        {"fitted", fitted_shares},
    };
    return laws;
}

ExpertShares dirichlet_around(const ExpertShares& popularity, double rho, DrawStream& draws) {
    if (rho <= 0) return popularity;
    if (rho >= 1) rho = 1 - 1e-9;
    const double alpha = 1 / rho - 1;
    ExpertShares shares(popularity.size(), 0);
    double total = 0;
    for (std::size_t i = 0; i < popularity.size(); ++i)
        if (popularity[i] > 0) total += shares[i] = draws.gamma(alpha * popularity[i]);
    if (!(total > 0)) return popularity;  // every draw underflowed: α is tiny
    for (double& s : shares) s /= total;
    return shares;
}

ExpertShares capped(ExpertShares shares, double most) {
    // Cutting raises the others, which may then pass the cap too: at most one round for each
    // expert.
    for (std::size_t round = 0; round < shares.size(); ++round) {
        double excess = 0, room = 0;
        for (double& s : shares) {
            if (s > most) {
                excess += s - most;
                s = most;
            } else if (s < most) {
                room += s;
            }
        }
        if (excess <= 1e-15) break;
        const bool others = room > 0;
        const auto below = static_cast<double>(
            std::count_if(shares.begin(), shares.end(), [&](double s) { return s < most; }));
        if (below == 0) break;
        for (double& s : shares)
            if (s < most) s += others ? excess * s / room : excess / below;
    }
    return shares;
}

TraceHeader synthetic_header(const RoutingLaw& law, const SynthesisShape& s, Seed seed) {
    check(law, s);
    TraceHeader h;
    h.model = s.model;
    h.source = "synthetic:" + law.kind;
    h.num_steps = s.num_steps;
    h.num_moe_layers = s.num_moe_layers;
    h.num_experts = s.num_experts;
    h.top_k = s.top_k;
    h.num_moe_heads = s.num_moe_heads;
    h.num_ranks = s.num_ranks;
    h.num_micro_batches = s.num_micro_batches;
    h.sequence_length = s.sequence_length;
    h.tokens_per_step = std::int64_t{1} * s.num_micro_batches * s.num_ranks *
                        s.sequences_per_micro_batch * s.sequence_length;
    h.document_order = "shuffled";
    h.seed = seed.value;
    return h;
}

TraceStep synthetic_step(const RoutingLaw& law, const SynthesisShape& s, Seed seed, int step) {
    check(law, s);
    const SharesOf shares_of = law_of(law);
    TraceStep out;
    out.step = step;
    out.expert_ids.resize(static_cast<std::size_t>(s.num_moe_layers));
    const std::uint32_t capacity = capacity_of(law, s);
    for (int micro_batch = 0; micro_batch < s.num_micro_batches; ++micro_batch) {
        std::vector<std::vector<std::uint32_t>> taken(
            out.expert_ids.size(),
            std::vector<std::uint32_t>(static_cast<std::size_t>(s.num_experts), 0));
        for (int rank = 0; rank < s.num_ranks; ++rank)
            for (int index = 0; index < s.sequences_per_micro_batch; ++index) {
                const std::uint64_t sequence = sequence_number(s, step, micro_batch, rank, index);
                for (const Piece& piece : pieces_of(s, seed, sequence)) {
                    for (int layer = 0; layer < s.num_moe_layers; ++layer) {
                        auto& ids = out.expert_ids[static_cast<std::size_t>(layer)];
                        const std::size_t begin = ids.size();
                        const int sub_tokens = piece.tokens * s.num_moe_heads;
                        if (law.kind == "balanced") {
                            // Dealt out in turn, on from where the step stands.
                            for (int i = 0; i < sub_tokens * s.top_k; ++i)
                                ids.push_back(static_cast<std::uint16_t>(
                                    (begin + static_cast<std::size_t>(i)) %
                                    static_cast<std::size_t>(s.num_experts)));
                            continue;
                        }
                        const LawLayer at{s.num_experts, s.top_k, layer, seed};
                        DistinctChoices choices(shares_of(law, at, piece.document), s.top_k);
                        DrawStream draws(
                            derive(derive(seed, "choices", static_cast<std::uint64_t>(layer)),
                                   "document", piece.document));
                        for (int i = 0; i < sub_tokens; ++i) choices.draw_into(draws, ids);
                        if (law.kind != "token_drop") continue;
                        auto& count = taken[static_cast<std::size_t>(layer)];
                        for (std::size_t slot = begin; slot < ids.size(); ++slot)
                            if (++count[ids[slot]] > capacity) ids[slot] = kNotRouted;
                    }
                    out.document_ids.insert(out.document_ids.end(),
                                            static_cast<std::size_t>(piece.tokens),
                                            static_cast<std::uint32_t>(piece.document));
                    out.token_rank.insert(out.token_rank.end(),
                                          static_cast<std::size_t>(piece.tokens),
                                          static_cast<std::uint16_t>(rank));
                    out.token_micro_batch.insert(out.token_micro_batch.end(),
                                                 static_cast<std::size_t>(piece.tokens),
                                                 static_cast<std::uint16_t>(micro_batch));
                }
            }
    }
    return out;
}

namespace {

/// Shares one after another: of the draws that the experts before it left, each takes a binomial.
class ShareChain {
  public:
    explicit ShareChain(const ExpertShares& shares) : end_(shares.size()) {
        // What rounding leaves over goes to the last expert that can be chosen at all.
        while (end_ > 1 && !(shares[end_ - 1] > 0)) --end_;
        double left = 1;
        for (std::size_t e = 0; e < end_; ++e) {
            of_left_.push_back(left > 0 ? std::min(1.0, shares[e] / left) : 1.0);
            left -= shares[e];
        }
    }
    std::size_t size() const { return end_; }
    /// Share of expert e in the draws that reach it.
    double of_left(std::size_t e) const { return e + 1 == end_ ? 1 : of_left_[e]; }
    /// Of n draws that reach expert e, those that it takes of its c; no expert more than `most`.
    std::uint64_t limited(std::size_t e, std::uint64_t c, std::uint64_t n,
                          std::uint64_t most) const {
        if (n > most) {  // the experts after this one must be able to take the rest
            const std::uint64_t others = end_ - 1 - e;
            const std::uint64_t room = others > n / most ? n : others * most;
            c = std::min(std::max(c, n - std::min(n, room)), most);
        }
        return c;
    }

  private:
    std::size_t end_;
    std::vector<double> of_left_;
};

/// `add_multinomial` of every stream, as many draws each. Side by side, because they do not wait
/// for one another.
/// @param counts  [streams, stride]
void add_multinomials(std::uint64_t n, const ShareChain& chain, std::span<DrawStream> streams,
                      std::uint32_t* counts, std::size_t stride, std::uint64_t most) {
    std::vector<std::uint64_t> left(streams.size(), n), taken(streams.size());
    Binomials binomials(streams.size());
    for (std::size_t e = 0; e < chain.size(); ++e) {
        binomials.draw(left, chain.of_left(e), streams, taken);
        for (std::size_t i = 0; i < streams.size(); ++i) {
            const std::uint64_t c = chain.limited(e, taken[i], left[i], most);
            counts[i * stride + e] += static_cast<std::uint32_t>(c);
            left[i] -= c;
        }
    }
}

}  // namespace

void add_multinomial(std::uint64_t n, const ExpertShares& shares, DrawStream& draws,
                     std::uint32_t* counts, std::uint64_t most) {
    const ShareChain chain(shares);
    for (std::size_t e = 0; e < chain.size(); ++e) {
        const std::uint64_t c = chain.limited(e, binomial(n, chain.of_left(e), draws), n, most);
        counts[e] += static_cast<std::uint32_t>(c);
        n -= c;
    }
}

RoutingLoads synthetic_loads(const RoutingLaw& law, const SynthesisShape& s, Seed seed, int step,
                             int moe_layer, int micro_batch) {
    check(law, s);
    const SharesOf shares_of = law_of(law);
    const auto experts = static_cast<std::size_t>(s.num_experts);
    RoutingLoads out{
        s.num_ranks, s.num_experts,
        std::vector<std::uint32_t>(static_cast<std::size_t>(s.num_ranks) * experts, 0)};
    const LawLayer at{s.num_experts, s.top_k, moe_layer, seed};
    const auto per_token =
        static_cast<std::uint64_t>(s.top_k) * static_cast<std::uint64_t>(s.num_moe_heads);
    const bool alike = chooses_alike(law);
    const ExpertShares same = alike ? shares_of(law, at, 0) : ExpertShares{};
    std::uint64_t dealt = 0;
    for (int rank = 0; rank < s.num_ranks; ++rank) {
        std::uint32_t* counts = out.sub_tokens.data() + static_cast<std::size_t>(rank) * experts;
        if (law.kind == "balanced") {
            const std::uint64_t slots = static_cast<std::uint64_t>(s.sequences_per_micro_batch) *
                                        static_cast<std::uint64_t>(s.sequence_length) * per_token;
            for (std::size_t e = 0; e < experts; ++e)
                counts[e] = static_cast<std::uint32_t>(slots / experts);
            for (std::uint64_t i = 0; i < slots % experts; ++i) ++counts[(dealt + i) % experts];
            dealt += slots % experts;
            continue;
        }
        for (int index = 0; index < s.sequences_per_micro_batch; ++index)
            for (const Piece& piece :
                 pieces_of(s, seed, sequence_number(s, step, micro_batch, rank, index))) {
                DrawStream draws(
                    derive(derive(seed, "loads", static_cast<std::uint64_t>(moe_layer)), "document",
                           piece.document));
                add_multinomial(static_cast<std::uint64_t>(piece.tokens) * per_token,
                                alike ? same : shares_of(law, at, piece.document), draws, counts,
                                static_cast<std::uint64_t>(piece.tokens) *
                                    static_cast<std::uint64_t>(s.num_moe_heads));
            }
    }
    if (law.kind == "token_drop") {
        const std::uint32_t capacity = capacity_of(law, s);
        for (std::size_t e = 0; e < experts; ++e) {
            std::uint32_t taken = 0;
            for (std::size_t rank = 0; rank < static_cast<std::size_t>(s.num_ranks); ++rank) {
                std::uint32_t& count = out.sub_tokens[rank * experts + e];
                count = std::min(count, capacity - taken);
                taken += count;
            }
        }
    }
    return out;
}

PlacedLoads placed(const RoutingLoads& loads, int num_places, int sources_per_block) {
    const auto experts = static_cast<std::size_t>(loads.num_experts),
               places = static_cast<std::size_t>(num_places),
               sources = static_cast<std::size_t>(loads.num_sources),
               block = static_cast<std::size_t>(sources_per_block), each = experts / places;
    PlacedLoads out{std::vector<std::uint32_t>(sources * places, 0),
                    std::vector<std::uint32_t>((sources + block - 1) / block * experts, 0)};
    for (std::size_t s = 0; s < sources; ++s) {
        const std::uint32_t* from = loads.sub_tokens.data() + s * experts;
        std::uint32_t *to = out.traffic.data() + s * places,
                      *rows = out.rows.data() + s / block * experts;
        for (std::size_t place = 0; place < places; ++place)
            for (std::size_t e = place * each; e < (place + 1) * each; ++e) {
                to[place] += from[e];
                rows[e] += from[e];
            }
    }
    return out;
}

PlacedLoads synthetic_placed_loads(const RoutingLaw& law, const SynthesisShape& s, Seed seed,
                                   int step, int moe_layer, int micro_batch, int num_places,
                                   int sources_per_block) {
    if (!chooses_alike(law) || law.kind == "token_drop")
        return placed(synthetic_loads(law, s, seed, step, moe_layer, micro_batch), num_places,
                      sources_per_block);
    check(law, s);
    const auto experts = static_cast<std::size_t>(s.num_experts),
               places = static_cast<std::size_t>(num_places),
               sources = static_cast<std::size_t>(s.num_ranks),
               block = static_cast<std::size_t>(sources_per_block), each = experts / places;
    const ExpertShares shares =
        law_of(law)(law, LawLayer{s.num_experts, s.top_k, moe_layer, seed}, 0);
    ExpertShares of_place(places, 0);
    for (std::size_t e = 0; e < experts; ++e) of_place[e / each] += shares[e];
    std::vector<ExpertShares> inside(places, ExpertShares(each, 0));
    for (std::size_t e = 0; e < experts; ++e)
        inside[e / each][e % each] = of_place[e / each] > 0 ? shares[e] / of_place[e / each] : 0;

    PlacedLoads out{std::vector<std::uint32_t>(sources * places, 0),
                    std::vector<std::uint32_t>((sources + block - 1) / block * experts, 0)};
    const std::uint64_t units = static_cast<std::uint64_t>(s.sequences_per_micro_batch) *
                                static_cast<std::uint64_t>(s.sequence_length) *
                                static_cast<std::uint64_t>(s.num_moe_heads),
                        chosen = static_cast<std::uint64_t>(s.top_k);
    const Seed layer = derive(seed, "places", static_cast<std::uint64_t>(moe_layer));
    std::vector<DrawStream> streams;
    for (std::size_t source = 0; source < sources; ++source)
        streams.emplace_back(derive(
            layer, "source", sequence_number(s, step, micro_batch, static_cast<int>(source), 0)));
    add_multinomials(units * chosen, ShareChain(of_place), streams, out.traffic.data(), places,
                     units * std::min<std::uint64_t>(chosen, each));
    for (std::size_t first = 0; first < sources; first += block) {
        DrawStream draws(derive(layer, "experts",
                                sequence_number(s, step, micro_batch, static_cast<int>(first), 0)));
        for (std::size_t place = 0; place < places; ++place) {
            std::uint64_t sum = 0;
            for (std::size_t source = first; source < std::min(first + block, sources); ++source)
                sum += out.traffic[source * places + place];
            add_multinomial(sum, inside[place], draws,
                            out.rows.data() + first / block * experts + place * each,
                            units * (std::min(first + block, sources) - first));
        }
    }
    return out;
}

TraceStep synthetic_counts(const RoutingLaw& law, const SynthesisShape& s, Seed seed, int step) {
    TraceStep out;
    out.step = step;
    for (int layer = 0; layer < s.num_moe_layers; ++layer) {
        auto& counts = out.counts.emplace_back();
        for (int micro_batch = 0; micro_batch < s.num_micro_batches; ++micro_batch) {
            const RoutingLoads loads = synthetic_loads(law, s, seed, step, layer, micro_batch);
            counts.insert(counts.end(), loads.sub_tokens.begin(), loads.sub_tokens.end());
        }
    }
    return out;
}

}  // namespace moeplan
