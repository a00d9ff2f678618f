#include "model/layers/moe.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "core/errors.hpp"
#include "traces/routing_trace.hpp"

namespace moeplan {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

}  // namespace

template <>
const EnumNames<GateScaling>& enum_names<GateScaling>() {
    static const EnumNames<GateScaling> names = {{GateScaling::over_kept, "kept"},
                                                 {GateScaling::over_all, "unpruned"}};
    return names;
}

MoeLayer::MoeLayer(Runtime& rt, ParameterSet& parameters, const std::string& name,
                   const ModelSpec& model, const MoeFeedForward& spec, ExpertGroup& group,
                   int layer_index, Seed seed)
    : rt_(rt),
      spec_(spec),
      rule_(routing_rule(spec.routing, model.name)),
      group_(group),
      seed_(seed),
      hidden_(model.hidden_size),
      heads_(spec.num_moe_heads),
      width_(model.hidden_size / std::max(1, spec.num_moe_heads)),
      layer_index_(layer_index) {
    check_routing(spec, model.hidden_size, model.name);
    if (rule_.renormalise) spec_.renormalise_gates = *rule_.renormalise;
    const int ranks = group.experts->size();
    if (spec.num_experts % ranks != 0)
        throw InputError(model.name, "moe/num_experts", std::to_string(spec.num_experts),
                         "a multiple of the expert-parallel size (" + std::to_string(ranks) + ")");
    local_experts_ = spec.num_experts / ranks;
    first_expert_ = local_experts_ * group.experts->rank();
    const int layers = int(model.layers.size());
    if (heads_ > 1) {
        // Xavier-uniform with gain 1/√2 and 1 (layers.md §1.1): variance gain² · 2 / (d + d).
        head_ =
            &parameters.make(name + ".head", {hidden_, hidden_}, std::sqrt(0.5 / double(hidden_)));
        merge_ =
            &parameters.make(name + ".merge", {hidden_, hidden_}, std::sqrt(1.0 / double(hidden_)));
        if (spec.head_bias) {
            head_bias_ =
                &parameters.make(name + ".head_bias", {hidden_}, 0, 0, Held::by_all, 0, false);
            merge_bias_ =
                &parameters.make(name + ".merge_bias", {hidden_}, 0, 0, Held::by_all, 0, false);
        }
    }
    const std::int64_t score_width = rule_.reduced_router ? spec.router_size : width_;
    if (rule_.reduced_router)
        reduce_ = &parameters.make(name + ".router_reduce", {score_width, width_},
                                   1 / std::sqrt(double(width_)), 0, Held::by_all, 0, true, true);
    if (rule_.cosine)
        temperature_ = &parameters.make(name + ".router_temperature", {1}, 0, rule_.temperature,
                                        Held::by_all, 0, false, true);
    router_ =
        &parameters.make(name + ".router", {spec.num_experts, score_width},
                         1 / std::sqrt(double(score_width)) * (rule_.reduced_router ? 1 : 0.5), 0,
                         Held::by_all, 0, true, true);
    if (spec.router_bias)
        router_bias_ = &parameters.make(name + ".router_bias", {spec.num_experts}, 0, 0,
                                        Held::by_all, 0, false, true);
    if (spec.selection_bias) {
        selection_bias_ = rt.statistic(spec.num_experts);
        rt.zero(selection_bias_);
    }
    experts_ = std::make_unique<ExpertNetworks>(
        rt, parameters, name + ".experts", width_, spec.expert_hidden_size, spec.activation,
        spec.bias, layers, Held::by_expert_rank, local_experts_, first_expert_, spec.sub_norm);
    if (spec.num_shared_experts >
        0)  // always on, of one width each: together they are one wider network
        shared_ = std::make_unique<ExpertNetworks>(
            rt, parameters, name + ".shared", hidden_,
            spec.num_shared_experts * spec.shared_expert_hidden_size, spec.activation, spec.bias,
            layers, Held::by_all, 1, 0, spec.sub_norm);
}

/// Rows of length 1, v / |v| = rms_norm(v) / √width, and back.
Tensor MoeLayer::unit_rows(const Tensor& x, std::int64_t rows, Tensor& scale) {
    const std::int64_t small = spec_.router_size;
    Tensor out = rt_.statistic(rows * small);
    scale = rt_.statistic(rows);
    rt_.run(
        rt_.kernels.rms_norm_forward,
        RmsNormForward{x.data(), nullptr, out.data(), scale.data(), rows, small, 1e-12, rt_.stat},
        "rms_norm_forward");
    scale_numbers(out, 1 / std::sqrt(double(small)));
    return out;
}
Tensor MoeLayer::unit_rows_backward(const Tensor& x, Tensor& dunit, std::int64_t rows,
                                    const Tensor& scale) {
    const std::int64_t small = spec_.router_size;
    scale_numbers(dunit, 1 / std::sqrt(double(small)));
    Tensor dx = rt_.statistic(rows * small);
    rt_.run(rt_.kernels.rms_norm_backward,
            RmsNormBackward{x.data(), nullptr, scale.data(), dunit.data(), dx.data(), nullptr, rows,
                            small, false, rt_.stat},
            "rms_norm_backward");
    return dx;
}
void MoeLayer::scale_numbers(Tensor& x, double factor) {
    rt_.run(rt_.kernels.scale, Scale{x.data(), x.data(), x.count(), factor, 0, x.format()},
            "scale");
}

/// Routers compute in stat whatever the format: a choice is a step, and rounded scores take others.
void MoeLayer::score(const Tensor& x, std::int64_t units, Saved& saved) {
    const std::int64_t experts = spec_.num_experts, small = spec_.router_size;
    const Tensor wide = rt_.format == rt_.stat ? Tensor() : rt_.converted(x, rt_.stat);
    const void* in = wide ? wide.data() : x.data();
    saved.logits = rt_.statistic(units * experts);
    if (!rule_.reduced_router) {
        linear_forward(rt_, in, router_->value.data(), saved.logits.data(), units, width_, experts,
                       rt_.stat);
    } else {
        saved.scores_in = rt_.statistic(units * small);
        linear_forward(rt_, in, reduce_->value.data(), saved.scores_in.data(), units, width_, small,
                       rt_.stat);
        saved.expert_unit = unit_rows(router_->value, experts, saved.expert_unit_scale);
        if (rule_.cosine)
            saved.token_unit = unit_rows(saved.scores_in, units, saved.token_unit_scale);
        const Tensor& tokens = rule_.cosine ? saved.token_unit : saved.scores_in;
        linear_forward(rt_, tokens.data(), saved.expert_unit.data(), saved.logits.data(), units,
                       small, experts, rt_.stat);
        if (temperature_) {
            saved.temperature =
                rt_.download(temperature_->value.data(), 1, temperature_->value.format())[0];
            scale_numbers(saved.logits, 1 / saved.temperature);
        }
    }
    if (router_bias_)
        add_bias(rt_, saved.logits.data(), router_bias_->value.data(), units, experts, rt_.stat);
}

/// Adds to dsplit.
void MoeLayer::score_backward(Tensor& dlogits, std::int64_t units, Tensor& dsplit, Saved& saved) {
    const std::int64_t experts = spec_.num_experts, small = spec_.router_size;
    if (router_bias_)
        add_bias_gradient(rt_, dlogits.data(), router_bias_->gradient.data(), units, experts,
                          rt_.stat);
    Tensor wide_x, wide_dx;
    if (rt_.format != rt_.stat) {
        wide_x = rt_.converted(saved.split, rt_.stat);
        wide_dx = rt_.converted(dsplit, rt_.stat);
    }
    const void* x = wide_x ? wide_x.data() : saved.split.data();
    void* dx = wide_dx ? wide_dx.data() : dsplit.data();
    if (!rule_.reduced_router) {
        linear_backward(rt_, x, router_->value.data(), dlogits.data(), dx, router_->gradient.data(),
                        units, width_, experts, true, rt_.stat);
        if (wide_dx) rt_.convert(wide_dx, dsplit);
        return;
    }
    const Tensor& tokens = rule_.cosine ? saved.token_unit : saved.scores_in;
    if (temperature_) {
        // logits = s/τ: ds = dlogits/τ, dτ = −Σ ds · s / τ; s is made again.
        scale_numbers(dlogits, 1 / saved.temperature);
        Tensor scores = rt_.statistic(units * experts);
        linear_forward(rt_, tokens.data(), saved.expert_unit.data(), scores.data(), units, small,
                       experts, rt_.stat);
        GemmCall product;
        product.a = dlogits.data();
        product.b = scores.data();
        product.c = temperature_->gradient.data();
        product.m = product.n = product.ldb = product.ldc = 1;
        product.k = product.lda = units * experts;
        product.alpha = -1 / saved.temperature;
        product.beta = 1;
        product.format = product.out_format = rt_.stat;
        rt_.run(rt_.kernels.gemm, product, "gemm");
    }
    Tensor dtokens = rt_.statistic(units * small), dunit = rt_.statistic(experts * small);
    rt_.zero(dunit);
    linear_backward(rt_, tokens.data(), saved.expert_unit.data(), dlogits.data(), dtokens.data(),
                    dunit.data(), units, small, experts, false, rt_.stat);
    const Tensor dexperts =
        unit_rows_backward(router_->value, dunit, experts, saved.expert_unit_scale);
    add(rt_, router_->gradient.data(), dexperts.data(), router_->gradient.data(), experts * small,
        rt_.stat);
    if (rule_.cosine)
        dtokens = unit_rows_backward(saved.scores_in, dtokens, units, saved.token_unit_scale);
    linear_backward(rt_, x, reduce_->value.data(), dtokens.data(), dx, reduce_->gradient.data(),
                    units, width_, small, true, rt_.stat);
    if (wide_dx) rt_.convert(wide_dx, dsplit);
}

/// Masks: one row a document (pools), a domain, or one for all (an expert subset).
void MoeLayer::restrict_experts(RouterForward& call, const MicroBatch& batch, Saved& saved,
                                Tensor& allowed, Tensor& mask_of_unit, MoeChoices* choices) {
    const std::int64_t experts = spec_.num_experts, units = call.units;
    const auto upload_masks = [&](const std::vector<std::uint8_t>& masks,
                                  const std::vector<std::int32_t>& rows) {
        allowed = Tensor(rt_.memory, std::int64_t(masks.size()), NumberFormat::u8);
        rt_.copy(allowed.data(), masks.data(), masks.size());
        mask_of_unit = rt_.upload(rows);
        call.allowed = allowed.flags();
        call.mask_of_unit = mask_of_unit.ids();
    };
    if (!kept_.empty()) {
        if (scaling_ == GateScaling::over_all) {
            call.selection_bias = kept_bias_.data();
            return;
        }
        upload_masks(kept_, std::vector<std::int32_t>(std::size_t(units), 0));
        return;
    }
    if (rule_.restriction == Restriction::domain) {
        const int blocks =
            spec_.num_groups > 0 ? spec_.num_groups : spec_.num_experts / spec_.top_k;
        const std::int64_t size = experts / blocks;
        std::vector<std::uint8_t> masks(std::size_t(blocks * experts), 0);
        for (int b = 0; b < blocks; ++b)
            for (std::int64_t e = b * size; e < (b + 1) * size; ++e)
                masks[std::size_t(b * experts + e)] = 1;
        std::vector<std::int32_t> rows(static_cast<std::size_t>(units));
        for (std::int64_t u = 0; u < units; ++u)
            rows[std::size_t(u)] = batch.domains[std::size_t(u / heads_)] % blocks;
        upload_masks(masks, rows);
        return;
    }
    if (rule_.restriction != Restriction::document_pool || !use_pools) return;
    const std::int64_t documents = std::int64_t(batch.document_begin.size()) - 1;
    std::vector<std::int32_t> begin, size, rows(static_cast<std::size_t>(units));
    const Seed seed = derive(derive(seed_, "document pool", std::uint64_t(batch.index)), "layer",
                             std::uint64_t(layer_index_));
    for (const std::int32_t token : batch.document_begin)
        begin.push_back(std::int32_t(token * heads_));
    for (std::int64_t d = 0; d < documents; ++d) {
        const std::uint64_t choices_of_size =
            std::uint64_t(spec_.pool->largest - spec_.pool->smallest) + 1;
        size.push_back(spec_.pool->smallest +
                       std::int32_t(draw(seed, "size", std::uint64_t(d)) % choices_of_size));
        for (std::int32_t u = begin[std::size_t(d)]; u < begin[std::size_t(d) + 1]; ++u)
            rows[std::size_t(u)] = std::int32_t(d);
    }
    if (choices) choices->pool_sizes.assign(size.begin(), size.end());
    // First softmax, over all experts; its sums by document rank the experts.
    Tensor before = rt_.statistic(units * experts), scores = rt_.statistic(documents * experts);
    RouterForward first;
    first.logits = saved.logits.data();
    first.probabilities = before.data();
    first.units = units;
    first.num_experts = experts;
    first.format = rt_.stat;
    rt_.run(rt_.kernels.router_forward, first, "router_forward");
    allowed = Tensor(rt_.memory, documents * experts, NumberFormat::u8);
    const Tensor device_begin = rt_.upload(begin), device_size = rt_.upload(size);
    rt_.run(rt_.kernels.document_pool,
            DocumentPoolMask{before.data(), device_begin.ids(), device_size.ids(), scores.data(),
                             allowed.flags(), units, experts, documents, rt_.stat},
            "document_pool");
    mask_of_unit = rt_.upload(rows);
    call.allowed = allowed.flags();
    call.mask_of_unit = mask_of_unit.ids();
}

/// L = scale · E/n · Σ_e f_e P_e with f_e the share of choices (n a unit) of expert e and P_e its
/// mean probability: 1 at uniform counts. Counts are constants; the gradient goes through P alone,
/// so every unit of a scope gets the same dp_e.
void MoeLayer::balance(const MicroBatch& batch, const std::vector<std::int32_t>& ids,
                       const Tensor& probability_sums, Saved& saved, MoeReport& report) {
    const std::int64_t experts = spec_.num_experts, k = spec_.top_k,
                       units = batch.num_tokens() * heads_;
    const std::int64_t counted = rule_.balance_counts == BalanceCounts::first_choices ? 1 : k;
    const bool by_sequence = spec_.balance == BalanceScope::sequence;
    const std::int64_t scopes = by_sequence ? batch.num_sequences : 1, scope_units = units / scopes;
    report.chosen.assign(std::size_t(experts), 0);
    std::vector<double> counts(std::size_t(scopes * experts), 0);
    for (std::int64_t u = 0; u < units; ++u)
        for (std::int64_t j = 0; j < k; ++j) {
            const std::int32_t id = ids[std::size_t(u * k + j)];
            if (id < 0) continue;
            ++report.chosen[std::size_t(id)];
            if (j < counted) ++counts[std::size_t(u / scope_units * experts + id)];
        }
    double count_units = double(scope_units);
    if (spec_.balance == BalanceScope::global && group_.world->size() > 1) {
        const auto begin = Clock::now();
        counts.push_back(count_units);
        group_.world->all_reduce(counts.data(), std::int64_t(counts.size()), NumberFormat::f64);
        count_units = counts.back();
        group_.balance_seconds += seconds_since(begin);
    }
    const double scale =
        rule_.balance_scale > 0 ? rule_.balance_scale : 1 / (double(experts) * double(experts));
    const double factor = scale * double(experts) / double(counted);
    std::vector<double> dprobability(std::size_t(scopes * experts));
    const double weight =
        spec_.balance_coefficient * batch.loss_weight * double(scope_units) / double(units);
    for (std::size_t i = 0; i < dprobability.size(); ++i)
        dprobability[i] = weight * factor * counts[i] / count_units / double(scope_units);

    std::vector<double> sums;
    if (by_sequence) {
        const std::vector<double> probabilities =
            rt_.download(saved.probabilities.data(), units * experts, rt_.stat);
        sums.assign(std::size_t(scopes * experts), 0);
        for (std::int64_t u = 0; u < units; ++u)
            for (std::int64_t e = 0; e < experts; ++e)
                sums[std::size_t(u / scope_units * experts + e)] +=
                    probabilities[std::size_t(u * experts + e)];
        std::vector<std::int32_t> row(static_cast<std::size_t>(units));
        for (std::int64_t u = 0; u < units; ++u)
            row[std::size_t(u)] = std::int32_t(u / scope_units);
        saved.dprobability_row = rt_.upload(row);
    } else {
        sums = rt_.download(probability_sums.data(), experts, rt_.stat);
    }
    report.balance_loss = 0;
    for (std::size_t i = 0; i < sums.size(); ++i)
        report.balance_loss +=
            factor * counts[i] / count_units * sums[i] / double(scope_units) / double(scopes);
    if (spec_.balance_coefficient != 0) {
        saved.dprobability = rt_.statistic(scopes * experts);
        rt_.upload(saved.dprobability.data(), dprobability, rt_.stat);
    }
    saved.z_scale = spec_.z_loss_coefficient * batch.loss_weight / double(units);
}

void MoeLayer::exchange(const void* from, const std::vector<std::int64_t>& sent_rows, void* to,
                        const std::vector<std::int64_t>& received_rows, double& seconds) {
    const std::int64_t row = width_ * std::int64_t(size_of(rt_.format).value);
    std::vector<std::int64_t> sent, received;
    std::int64_t sent_total = 0, received_total = 0;
    for (const std::int64_t rows : sent_rows) sent_total += sent.emplace_back(rows * row);
    for (const std::int64_t rows : received_rows)
        received_total += received.emplace_back(rows * row);
    check(rt_.backend.synchronise(rt_.stream), "synchronise");
    const auto begin = Clock::now();
    if (group_.experts->accepts(rt_.backend.device)) {
        group_.experts->all_to_all_v(from, sent, to, received, rt_.stream);
        group_.experts->wait(rt_.backend, rt_.stream);
    } else {  // MPI is never given device memory: by way of the host
        std::vector<char> host_sent(static_cast<std::size_t>(sent_total)),
            host_received(static_cast<std::size_t>(received_total));
        rt_.copy(host_sent.data(), from, host_sent.size());
        check(rt_.backend.synchronise(rt_.stream), "synchronise");
        group_.experts->all_to_all_v(host_sent.data(), sent, host_received.data(), received);
        rt_.copy(to, host_received.data(), host_received.size());
        check(rt_.backend.synchronise(rt_.stream), "synchronise");
    }
    seconds += seconds_since(begin);
}

/// Rows sorted by expert → rows of our own experts, sorted by expert and then by where they came
/// from.
Tensor MoeLayer::to_experts(const Tensor& sorted, Saved& saved, double& seconds) {
    Tensor received = rt_.tensor(saved.local_rows * width_);
    exchange(sorted.data(), saved.sent_rows, received.data(), saved.received_rows, seconds);
    Tensor rows = rt_.tensor(saved.local_rows * width_);
    rt_.run(rt_.kernels.permute_forward,
            PermuteForward{received.data(), saved.local_slot_of_row.ids(), rows.data(),
                           saved.local_rows, width_, 1, rt_.format},
            "permute_forward");
    return rows;
}

Tensor MoeLayer::from_experts(const Tensor& rows, Saved& saved, double& seconds) {
    Tensor to_send = rt_.tensor(saved.local_rows * width_);
    rt_.run(rt_.kernels.permute_backward,
            PermuteBackward{rows.data(), saved.local_row_of_slot.ids(), to_send.data(),
                            saved.local_rows, width_, 1, false, rt_.format},
            "permute_backward");
    Tensor sorted = rt_.tensor(saved.kept_rows * width_);
    exchange(to_send.data(), saved.received_rows, sorted.data(), saved.sent_rows, seconds);
    return sorted;
}

Tensor MoeLayer::forward(const Tensor& x, const MicroBatch& batch, Saved& saved, MoeReport& report,
                         MoeChoices* choices, MoeObserved* observed) {
    const std::int64_t tokens = batch.num_tokens(), units = tokens * heads_,
                       experts = spec_.num_experts, k = spec_.top_k, slots = units * k;
    report.units = units;

    // Split: sub-token t·h + j is the j-th slice of token t, so [tokens, hidden] is [tokens · h,
    // hidden/h] as it lies.
    saved.split = rt_.tensor(tokens * hidden_);
    if (head_) {
        linear_forward(rt_, x.data(), head_->value.data(), saved.split.data(), tokens, hidden_,
                       hidden_);
        if (head_bias_)
            add_bias(rt_, saved.split.data(), head_bias_->value.data(), tokens, hidden_);
    } else {
        rt_.copy(saved.split.data(), x.data(), x.bytes());
    }

    // Route.
    score(saved.split, units, saved);
    saved.probabilities = rt_.statistic(units * experts);
    saved.log_sum_exp = rt_.statistic(units);
    saved.ids = rt_.ids(slots);
    saved.gates = rt_.statistic(slots);
    Tensor probability_sums = rt_.statistic(experts), allowed, mask_of_unit;
    RouterForward route;
    route.logits = saved.logits.data();
    route.selection_bias = selection_bias_ ? selection_bias_.data() : nullptr;
    route.probabilities = saved.probabilities.data();
    route.log_sum_exp = saved.log_sum_exp.data();
    route.expert_ids = saved.ids.ids();
    route.gates = saved.gates.data();
    route.probability_sums = probability_sums.data();
    route.units = units;
    route.num_experts = experts;
    route.top_k = k;
    if (rule_.restriction != Restriction::domain && spec_.num_groups > 0) {
        route.num_groups = spec_.num_groups;
        route.top_k_groups = spec_.top_k_groups;
    }
    route.score = rule_.score;
    route.renormalise = spec_.renormalise_gates;
    route.gate_scale = spec_.routed_scale;
    route.format = rt_.stat;
    restrict_experts(route, batch, saved, allowed, mask_of_unit, choices);
    rt_.run(rt_.kernels.router_forward, route, "router_forward");
    saved.logits.reset();
    const std::vector<std::int32_t> ids = rt_.download_ids(saved.ids.data(), slots);
    balance(batch, ids, probability_sums, saved, report);
    const std::vector<double> gates = rt_.download(saved.gates.data(), slots, rt_.stat);
    double gate_total = 0;
    for (const double gate : gates) gate_total += gate;
    report.gate_sum = gate_total / double(std::max<std::int64_t>(1, units));
    report.z_loss = 0;
    for (const double sum : rt_.download(saved.log_sum_exp.data(), units, rt_.stat))
        report.z_loss += sum * sum / double(units);

    // Who goes where.
    std::int64_t capacity = expert_capacity(spec_, units);
    Tensor kept_ids;
    const std::int32_t* routed_ids = saved.ids.ids();
    if (rule_.second_choice != SecondChoice::kept) {
        // GShard: all first choices take places in order, then the seconds; a second takes its
        // place whether it is used or not.
        std::vector<std::int32_t> kept = ids;
        std::vector<std::int64_t> taken(std::size_t(experts), 0);
        std::vector<double> raw;
        if (rule_.second_choice == SecondChoice::by_raw_chance)
            raw = rt_.download(saved.probabilities.data(), units * experts, rt_.stat);
        const Seed seed = derive(derive(seed_, "second choice", std::uint64_t(batch.index)),
                                 "layer", std::uint64_t(layer_index_));
        for (std::int64_t j = 0; j < k; ++j)
            for (std::int64_t u = 0; u < units; ++u) {
                const std::size_t slot = std::size_t(u * k + j);
                if (ids[slot] < 0) continue;
                const bool fits = capacity == 0 || taken[std::size_t(ids[slot])] < capacity;
                ++taken[std::size_t(ids[slot])];
                const double chance =
                    double(draw(seed, "chance", std::uint64_t(u)) >> 11) * 0x1p-53;
                const double gate =
                    raw.empty() ? gates[slot] : raw[std::size_t(u * experts + ids[slot])];
                if (!fits || (j > 0 && !(2 * gate > chance))) kept[slot] = -1;
            }
        kept_ids = rt_.upload(kept);
        routed_ids = kept_ids.ids();
        capacity = 0;
    }
    saved.rows_per_expert = rt_.ids(experts);
    saved.offsets = rt_.ids(experts + 1);
    saved.row_of_slot = rt_.ids(slots);
    saved.slot_of_row = rt_.ids(slots);
    rt_.run(rt_.kernels.permutation_map,
            PermutationMap{routed_ids, saved.rows_per_expert.ids(), saved.offsets.ids(),
                           saved.row_of_slot.ids(), saved.slot_of_row.ids(), units, k, experts,
                           capacity},
            "permutation_map");
    const std::vector<std::int32_t> counts =
        rt_.download_ids(saved.rows_per_expert.data(), experts);
    saved.kept_rows = 0;
    for (const std::int32_t count : counts) saved.kept_rows += count;
    report.dropped_units = slots - saved.kept_rows;
    if (report.dropped_units > 0 || choices) {
        const std::vector<std::int32_t> rows = rt_.download_ids(saved.row_of_slot.data(), slots);
        report.dropped_tokens = 0;
        for (std::int64_t t = 0; t < tokens; ++t) {
            bool any = false;
            for (std::int64_t s = t * heads_ * k; s < (t + 1) * heads_ * k; ++s)
                any = any || rows[std::size_t(s)] >= 0;
            report.dropped_tokens += !any;
        }
        if (choices) {
            choices->expert_ids.resize(std::size_t(slots));
            for (std::size_t s = 0; s < rows.size(); ++s)
                choices->expert_ids[s] = rows[s] < 0 ? kNotRouted : std::uint16_t(ids[s]);
            choices->gates.assign(gates.begin(), gates.end());
        }
    }

    // Dispatch.
    Tensor sorted = rt_.tensor(saved.kept_rows * width_);
    rt_.run(rt_.kernels.permute_forward,
            PermuteForward{saved.split.data(), saved.slot_of_row.ids(), sorted.data(),
                           saved.kept_rows, width_, k, rt_.format},
            "permute_forward");
    const int ranks = group_.experts->size();
    saved.host_offsets.assign(1, 0);
    if (ranks == 1) {
        for (const std::int32_t count : counts)
            saved.host_offsets.push_back(saved.host_offsets.back() + count);
        saved.local_rows = saved.kept_rows;
        saved.expert_in = std::move(sorted);
    } else {
        // Counts first, so that both sides know the sizes; then the rows.
        std::vector<std::int32_t> received(std::size_t(ranks) * std::size_t(local_experts_));
        const std::vector<std::int64_t> bytes(std::size_t(ranks),
                                              local_experts_ * std::int64_t(sizeof(std::int32_t)));
        const auto begin = Clock::now();
        group_.experts->all_to_all_v(counts.data(), bytes, received.data(), bytes);
        group_.dispatch_seconds += seconds_since(begin);
        saved.sent_rows.assign(std::size_t(ranks), 0);
        saved.received_rows.assign(std::size_t(ranks), 0);
        std::vector<std::int32_t> expert_of_row;
        for (int r = 0; r < ranks; ++r)
            for (std::int64_t e = 0; e < local_experts_; ++e) {
                saved.sent_rows[std::size_t(r)] += counts[std::size_t(r * local_experts_ + e)];
                const std::int32_t rows = received[std::size_t(r * local_experts_ + e)];
                saved.received_rows[std::size_t(r)] += rows;
                expert_of_row.insert(expert_of_row.end(), std::size_t(rows), std::int32_t(e));
            }
        saved.local_rows = std::int64_t(expert_of_row.size());
        const Tensor local_ids = rt_.upload(expert_of_row);
        Tensor local_counts = rt_.ids(local_experts_);
        saved.local_offsets = rt_.ids(local_experts_ + 1);
        saved.local_row_of_slot = rt_.ids(saved.local_rows);
        saved.local_slot_of_row = rt_.ids(saved.local_rows);
        rt_.run(rt_.kernels.permutation_map,
                PermutationMap{local_ids.ids(), local_counts.ids(), saved.local_offsets.ids(),
                               saved.local_row_of_slot.ids(), saved.local_slot_of_row.ids(),
                               saved.local_rows, 1, local_experts_, 0},
                "permutation_map");
        for (std::int64_t e = 0; e < local_experts_; ++e) {
            std::int32_t rows = 0;
            for (int r = 0; r < ranks; ++r) rows += received[std::size_t(r * local_experts_ + e)];
            saved.host_offsets.push_back(saved.host_offsets.back() + rows);
        }
        saved.expert_in = to_experts(sorted, saved, group_.dispatch_seconds);
    }

    // Experts, and back.
    const Tensor& offsets = ranks == 1 ? saved.offsets : saved.local_offsets;
    Tensor expert_out = experts_->forward(saved.expert_in.data(), saved.local_rows, offsets,
                                          saved.host_offsets, saved.experts);
    saved.returned = ranks == 1 ? std::move(expert_out)
                                : from_experts(expert_out, saved, group_.combine_seconds);
    Tensor combined = rt_.tensor(tokens * hidden_);
    rt_.run(rt_.kernels.unpermute_forward,
            UnpermuteForward{saved.returned.data(), saved.row_of_slot.ids(), saved.gates.data(),
                             combined.data(), units, width_, k, false, rt_.format},
            "unpermute_forward");
    if (spec_.inner_residual)
        add(rt_, combined.data(), saved.split.data(), combined.data(), tokens * hidden_);

    Tensor y;
    if (merge_) {
        y = rt_.tensor(tokens * hidden_);
        linear_forward(rt_, combined.data(), merge_->value.data(), y.data(), tokens, hidden_,
                       hidden_);
        if (merge_bias_) add_bias(rt_, y.data(), merge_bias_->value.data(), tokens, hidden_);
        saved.combined = std::move(combined);
    } else {
        y = std::move(combined);
    }
    if (observed) observe(y, tokens, saved, *observed);
    if (shared_) {
        const Tensor shared = shared_->forward_all(x.data(), tokens, saved.shared);
        add(rt_, y.data(), shared.data(), y.data(), tokens * hidden_);
    }
    return y;
}

void MoeLayer::keep_experts(std::vector<std::uint8_t> kept, GateScaling scaling) {
    kept_ = std::move(kept);
    scaling_ = scaling;
    kept_bias_.reset();
    if (kept_.empty() || scaling == GateScaling::over_kept) return;
    std::vector<double> bias(kept_.size(), 0);
    if (selection_bias_) bias = rt_.download(selection_bias_.data(), spec_.num_experts, rt_.stat);
    for (std::size_t e = 0; e < kept_.size(); ++e)
        if (!kept_[e]) bias[e] = -std::numeric_limits<double>::infinity();
    kept_bias_ = rt_.statistic(spec_.num_experts);
    rt_.upload(kept_bias_.data(), bias, rt_.stat);
}

void MoeLayer::observe(const Tensor& routed_output, std::int64_t tokens, const Saved& saved,
                       MoeObserved& out) {
    const std::int64_t units = tokens * heads_, slots = units * spec_.top_k;
    out.probabilities =
        rt_.download(saved.probabilities.data(), units * spec_.num_experts, rt_.stat);
    out.expert_ids = rt_.download_ids(saved.ids.data(), slots);
    out.gates = rt_.download(saved.gates.data(), slots, rt_.stat);
    out.routed_output = rt_.download(routed_output.data(), tokens * hidden_, rt_.format);
    const std::vector<double> rows =
        rt_.download(saved.returned.data(), saved.kept_rows * width_, rt_.format);
    const std::vector<std::int32_t> row_of_slot = rt_.download_ids(saved.row_of_slot.data(), slots);
    out.output_norms.assign(std::size_t(slots), 0);
    for (std::size_t slot = 0; slot < row_of_slot.size(); ++slot) {
        if (row_of_slot[slot] < 0) continue;
        const double* row = rows.data() + std::int64_t(row_of_slot[slot]) * width_;
        double squares = 0;
        for (std::int64_t i = 0; i < width_; ++i) squares += row[i] * row[i];
        out.output_norms[slot] = std::sqrt(squares);
    }
}

Tensor MoeLayer::backward(const Tensor& x, const Tensor& dy, const MicroBatch& batch,
                          Saved& saved) {
    const std::int64_t tokens = batch.num_tokens(), units = tokens * heads_,
                       experts = spec_.num_experts, k = spec_.top_k;
    const int ranks = group_.experts->size();

    Tensor dcombined = rt_.tensor(tokens * hidden_);
    if (merge_) {
        if (merge_bias_)
            add_bias_gradient(rt_, dy.data(), merge_bias_->gradient.data(), tokens, hidden_);
        linear_backward(rt_, saved.combined.data(), merge_->value.data(), dy.data(),
                        dcombined.data(), merge_->gradient.data(), tokens, hidden_, hidden_);
        saved.combined.reset();
    } else {
        rt_.copy(dcombined.data(), dy.data(), dy.bytes());
    }

    Tensor dreturned = rt_.tensor(saved.kept_rows * width_), dgates = rt_.statistic(units * k);
    rt_.run(rt_.kernels.unpermute_backward,
            UnpermuteBackward{saved.returned.data(), dcombined.data(), saved.row_of_slot.ids(),
                              saved.gates.data(), dreturned.data(), dgates.data(), units, width_, k,
                              rt_.format},
            "unpermute_backward");
    saved.returned.reset();
    Tensor dexpert_out =
        ranks == 1 ? std::move(dreturned) : to_experts(dreturned, saved, group_.combine_seconds);
    const Tensor& offsets = ranks == 1 ? saved.offsets : saved.local_offsets;
    Tensor dexpert_in = experts_->backward(saved.expert_in.data(), dexpert_out, saved.local_rows,
                                           offsets, saved.host_offsets, saved.experts);
    saved.expert_in.reset();
    dexpert_out.reset();
    const Tensor dsorted = ranks == 1 ? std::move(dexpert_in)
                                      : from_experts(dexpert_in, saved, group_.dispatch_seconds);
    Tensor dsplit = rt_.tensor(tokens * hidden_);
    rt_.run(rt_.kernels.permute_backward,
            PermuteBackward{dsorted.data(), saved.row_of_slot.ids(), dsplit.data(), units, width_,
                            k, false, rt_.format},
            "permute_backward");
    if (spec_.inner_residual)
        add(rt_, dsplit.data(), dcombined.data(), dsplit.data(), tokens * hidden_);

    Tensor dlogits = rt_.statistic(units * experts);
    RouterBackward route;
    route.probabilities = saved.probabilities.data();
    route.log_sum_exp = saved.log_sum_exp.data();
    route.expert_ids = saved.ids.ids();
    route.gates = saved.gates.data();
    route.dgates = dgates.data();
    route.dprobability = saved.dprobability ? saved.dprobability.data() : nullptr;
    route.dprobability_row = saved.dprobability_row ? saved.dprobability_row.ids() : nullptr;
    route.dlogits = dlogits.data();
    route.units = units;
    route.num_experts = experts;
    route.top_k = k;
    route.score = rule_.score;
    route.renormalise = spec_.renormalise_gates;
    route.gate_scale = spec_.routed_scale;
    route.z_scale = rule_.score == ScoreKind::softmax ? saved.z_scale : 0;
    route.format = rt_.stat;
    rt_.run(rt_.kernels.router_backward, route, "router_backward");
    score_backward(dlogits, units, dsplit, saved);
    dlogits.reset();

    Tensor dx;
    if (head_) {
        if (head_bias_)
            add_bias_gradient(rt_, dsplit.data(), head_bias_->gradient.data(), tokens, hidden_);
        dx = rt_.tensor(tokens * hidden_);
        linear_backward(rt_, x.data(), head_->value.data(), dsplit.data(), dx.data(),
                        head_->gradient.data(), tokens, hidden_, hidden_);
    } else {
        dx = std::move(dsplit);
    }
    if (shared_) {
        const Tensor dshared = shared_->backward_all(x.data(), dy, tokens, saved.shared);
        add(rt_, dx.data(), dshared.data(), dx.data(), tokens * hidden_);
    }
    saved = {};
    return dx;
}

void MoeLayer::move_selection_bias(const std::vector<std::int64_t>& chosen, double rate) {
    if (!selection_bias_) return;
    double mean = 0;
    for (const std::int64_t count : chosen) mean += double(count) / double(chosen.size());
    std::vector<double> bias = rt_.download(selection_bias_.data(), spec_.num_experts, rt_.stat);
    for (std::size_t e = 0; e < bias.size(); ++e)
        bias[e] += double(chosen[e]) < mean ? rate : double(chosen[e]) > mean ? -rate : 0;
    rt_.upload(selection_bias_.data(), bias, rt_.stat);
}

}  // namespace moeplan
