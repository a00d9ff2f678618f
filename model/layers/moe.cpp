#include "model/layers/moe.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/errors.hpp"

namespace moeplan {

template <>
const EnumNames<GateScaling>& enum_names<GateScaling>() {
    static const EnumNames<GateScaling> names = {{GateScaling::over_kept, "kept"},
                                                 {GateScaling::over_all, "unpruned"}};
    return names;
}

MoeLayer::MoeLayer(Runtime& rt, ParameterSet& parameters, const std::string& name,
                   const ModelSpec& model, const MoeFeedForward& spec, RankGroups& groups,
                   int layer_index, Seed seed)
    : rt_(rt),
      spec_(spec),
      rule_(routing_rule(spec.routing, model.name)),
      groups_(groups),
      seed_(seed),
      hidden_(model.hidden_size),
      heads_(spec.num_moe_heads),
      width_(model.hidden_size / std::max(1, spec.num_moe_heads)),
      expert_parts_(groups.layout.expert_tensor_parallel_size),
      layer_index_(layer_index) {
    check_routing(spec, model.hidden_size, model.name);
    if (rule_.renormalise) spec_.renormalise_gates = *rule_.renormalise;
    const int ep = groups.layout.expert_parallel_size;
    if (spec.num_experts % ep != 0)
        throw InputError(model.name, "moe/num_experts", std::to_string(spec.num_experts),
                         "a multiple of the expert-parallel size (" + std::to_string(ep) + ")");
    local_experts_ = spec.num_experts / ep;
    // Their gradients are of our own span of the tokens.
    const Held own_rows = Held::by_all_in_parts;
    const int layers = int(model.layers.size());
    if (heads_ > 1) {
        // Xavier-uniform with gain 1/√2 and 1 (layers.md §1.1): variance gain² · 2 / (d + d).
        head_ = &parameters.make(name + ".head", {hidden_, hidden_},
                                 std::sqrt(0.5 / double(hidden_)), 0, own_rows);
        merge_ = &parameters.make(name + ".merge", {hidden_, hidden_},
                                  std::sqrt(1.0 / double(hidden_)), 0, own_rows);
        if (spec.head_bias) {
            head_bias_ = &parameters.make(name + ".head_bias", {hidden_}, 0, 0, own_rows, 0, false);
            merge_bias_ =
                &parameters.make(name + ".merge_bias", {hidden_}, 0, 0, own_rows, 0, false);
        }
    }
    const std::int64_t score_width = rule_.reduced_router ? spec.router_size : width_;
    if (rule_.reduced_router)
        reduce_ = &parameters.make(name + ".router_reduce", {score_width, width_},
                                   1 / std::sqrt(double(width_)), 0, own_rows, 0, true, true, true);
    if (rule_.cosine)
        temperature_ = &parameters.make(name + ".router_temperature", {1}, 0, rule_.temperature,
                                        own_rows, 0, false, true, true);
    router_ = &parameters.make(
        name + ".router", {spec.num_experts, score_width},
        1 / std::sqrt(double(score_width)) * (rule_.reduced_router ? 1 : 0.5), 0, own_rows, 0,
        true, true, true);
    if (spec.router_bias)
        router_bias_ = &parameters.make(name + ".router_bias", {spec.num_experts}, 0, 0, own_rows,
                                        0, false, true, true);
    if (spec.selection_bias) {
        selection_bias_ = rt.statistic(spec.num_experts);
        rt.zero(selection_bias_);
    }
    experts_ = std::make_unique<ExpertNetworks>(
        rt, parameters, name + ".experts", width_, spec.expert_hidden_size, spec.activation,
        spec.bias, layers, Held::by_expert_rank, local_experts_,
        local_experts_ * groups.place.expert, groups.place.expert_tensor, expert_parts_,
        spec.sub_norm);
    if (spec.num_shared_experts >
        0)  // always on, of one width each: together they are one wider network
        shared_ = std::make_unique<ExpertNetworks>(
            rt, parameters, name + ".shared", hidden_,
            spec.num_shared_experts * spec.shared_expert_hidden_size, spec.activation, spec.bias,
            layers, Held::by_all, 1, 0, groups.tensor.rank(), groups.tensor.size(), spec.sub_norm);
}

/// Rows of length 1, v / |v| = rms_norm(v) / √width, and back.
Tensor MoeLayer::unit_rows(const void* x, std::int64_t rows, Tensor& scale) {
    const std::int64_t small = spec_.router_size;
    Tensor out = rt_.statistic(rows * small);
    scale = rt_.statistic(rows);
    rt_.run(rt_.kernels.rms_norm_forward,
            RmsNormForward{x, nullptr, out.data(), scale.data(), rows, small, 1e-12, rt_.stat},
            "rms_norm_forward");
    scale_numbers(out, 1 / std::sqrt(double(small)));
    return out;
}
Tensor MoeLayer::unit_rows_backward(const void* x, Tensor& dunit, std::int64_t rows,
                                    const void* scale) {
    const std::int64_t small = spec_.router_size;
    scale_numbers(dunit, 1 / std::sqrt(double(small)));
    Tensor dx = rt_.statistic(rows * small);
    rt_.run(rt_.kernels.rms_norm_backward,
            RmsNormBackward{x, nullptr, scale, dunit.data(), dx.data(), nullptr, rows, small, false, rt_.stat},
            "rms_norm_backward");
    return dx;
}
void MoeLayer::scale_numbers(Tensor& x, double factor) {
    rt_.run(rt_.kernels.scale, Scale{x.data(), x.data(), x.count(), factor, 0, x.format()},
            "scale");
}

/// From the units, or from logits that an earlier call has kept. Routers compute in stat whatever the
/// format: a choice is a step, and rounded scores take others.
void MoeLayer::choose(const void* split, RouterForward& call, Saved& saved, bool keep_logits) {
    if (rule_.reduced_router && !saved.logits) score(split, call.units, saved);
    if (saved.logits) {
        call.logits = saved.logits.data();
        rt_.run(rt_.kernels.router_forward, call, "router_forward");
        return;
    }
    if (keep_logits) saved.logits = rt_.statistic(call.units * spec_.num_experts);
    RouteForward from_units;
    from_units.x = split;
    from_units.weight = router_->value.data();
    from_units.bias = router_bias_ ? router_bias_->value.data() : nullptr;
    from_units.logits = saved.logits.data();
    from_units.width = width_;
    from_units.x_format = rt_.format;
    from_units.router = call;
    rt_.run(rt_.kernels.route_forward, from_units, "route_forward");
}

/// The logits of a reduced router.
void MoeLayer::score(const void* x, std::int64_t units, Saved& saved) {
    const std::int64_t experts = spec_.num_experts, small = spec_.router_size;
    const Tensor wide = rt_.format == rt_.stat
                            ? Tensor()
                            : rt_.converted(x, units * width_, rt_.format, rt_.stat);
    const void* in = wide ? wide.data() : x;
    saved.logits = rt_.statistic(units * experts);
    saved.scores_in = rt_.statistic(units * small);
    linear_forward(rt_, in, reduce_->value.data(), saved.scores_in.data(), units, width_, small,
                   rt_.stat);
    saved.expert_unit = unit_rows(router_->value.data(), experts, saved.expert_unit_scale);
    if (rule_.cosine)
        saved.token_unit = unit_rows(saved.scores_in.data(), units, saved.token_unit_scale);
    const Tensor& tokens = rule_.cosine ? saved.token_unit : saved.scores_in;
    linear_forward(rt_, tokens.data(), saved.expert_unit.data(), saved.logits.data(), units, small,
                   experts, rt_.stat);
    if (temperature_) {
        saved.temperature =
            rt_.download(temperature_->value.data(), 1, temperature_->value.format())[0];
        scale_numbers(saved.logits, 1 / saved.temperature);
    }
    if (router_bias_)
        add_bias(rt_, saved.logits.data(), router_bias_->value.data(), units, experts, rt_.stat);
}

/// Adds to dsplit.
/// @param split  all units, of which `own` are those that these gradients are of
void MoeLayer::score_backward(const void* split, Tensor& dlogits, Span own, Tensor& dsplit,
                              Saved& saved) {
    const std::int64_t experts = spec_.num_experts, small = spec_.router_size,
                       units = own.count();
    if (router_bias_)
        add_bias_gradient(rt_, dlogits.data(), router_bias_->gradient.data(), units, experts,
                          rt_.stat);
    const void* x = at(split, own.first * width_, rt_.format);
    void* dx = dsplit.data();
    Tensor wide_x, wide_dx;
    if (rt_.format != rt_.stat) {
        wide_x = rt_.converted(x, units * width_, rt_.format, rt_.stat);
        wide_dx = rt_.converted(dsplit, rt_.stat);
        x = wide_x.data();
        dx = wide_dx.data();
    }
    if (!rule_.reduced_router) {
        linear_backward(rt_, x, router_->value.data(), dlogits.data(), dx, router_->gradient.data(),
                        units, width_, experts, true, rt_.stat);
        if (wide_dx) rt_.convert(wide_dx, dsplit);
        return;
    }
    const auto own_rows = [&](const Tensor& of) {
        return at(of.data(), own.first * small, rt_.stat);
    };
    const void* tokens = own_rows(rule_.cosine ? saved.token_unit : saved.scores_in);
    if (temperature_) {
        // logits = s/τ: ds = dlogits/τ, dτ = −Σ ds · s / τ; s is made again.
        scale_numbers(dlogits, 1 / saved.temperature);
        Tensor scores = rt_.statistic(units * experts);
        linear_forward(rt_, tokens, saved.expert_unit.data(), scores.data(), units, small, experts,
                       rt_.stat);
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
    linear_backward(rt_, tokens, saved.expert_unit.data(), dlogits.data(), dtokens.data(),
                    dunit.data(), units, small, experts, false, rt_.stat);
    const Tensor dexperts =
        unit_rows_backward(router_->value.data(), dunit, experts, saved.expert_unit_scale.data());
    add(rt_, router_->gradient.data(), dexperts.data(), router_->gradient.data(), experts * small,
        rt_.stat);
    if (rule_.cosine)
        dtokens = unit_rows_backward(own_rows(saved.scores_in), dtokens, units,
                                     at(saved.token_unit_scale.data(), own.first, rt_.stat));
    linear_backward(rt_, x, reduce_->value.data(), dtokens.data(), dx, reduce_->gradient.data(),
                    units, width_, small, true, rt_.stat);
    if (wide_dx) rt_.convert(wide_dx, dsplit);
}

/// Masks: one row a document (pools), a domain, or one for all (an expert subset).
void MoeLayer::restrict_experts(const void* split, RouterForward& call, const MicroBatch& batch,
                                Saved& saved, Tensor& allowed, Tensor& mask_of_unit,
                                MoeChoices* choices) {
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
    first.probabilities = before.data();
    first.units = units;
    first.num_experts = experts;
    first.format = rt_.stat;
    choose(split, first, saved, true);
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

/// Choices by expert, of the whole micro-batch for the report and by scope for the balance loss.
void MoeLayer::count_choices(const MicroBatch& batch, const std::vector<std::int32_t>& ids,
                             const Tensor& probability_sums, Saved& saved, MoeReport& report) {
    const std::int64_t experts = spec_.num_experts, k = spec_.top_k,
                       units = batch.num_tokens() * heads_;
    const std::int64_t counted = rule_.balance_counts == BalanceCounts::first_choices ? 1 : k;
    const bool by_sequence = spec_.balance == BalanceScope::sequence;
    saved.scopes = by_sequence ? batch.num_sequences : 1;
    saved.scope_units = units / saved.scopes;
    saved.loss_weight = batch.loss_weight;
    saved.z_scale = spec_.z_loss_coefficient * batch.loss_weight / double(units);
    report.chosen.assign(std::size_t(experts), 0);
    saved.balance_counts.assign(std::size_t(saved.scopes * experts), 0);
    for (std::int64_t u = 0; u < units; ++u)
        for (std::int64_t j = 0; j < k; ++j) {
            const std::int32_t id = ids[std::size_t(u * k + j)];
            if (id < 0) continue;
            ++report.chosen[std::size_t(id)];
            if (j < counted)
                ++saved.balance_counts[std::size_t(u / saved.scope_units * experts + id)];
        }
    if (!by_sequence) {
        saved.probability_sums = rt_.download(probability_sums.data(), experts, rt_.stat);
        return;
    }
    const std::vector<double> probabilities =
        rt_.download(saved.probabilities.data(), units * experts, rt_.stat);
    saved.probability_sums.assign(std::size_t(saved.scopes * experts), 0);
    for (std::int64_t u = 0; u < units; ++u)
        for (std::int64_t e = 0; e < experts; ++e)
            saved.probability_sums[std::size_t(u / saved.scope_units * experts + e)] +=
                probabilities[std::size_t(u * experts + e)];
    std::vector<std::int32_t> row(static_cast<std::size_t>(units));
    for (std::int64_t u = 0; u < units; ++u)
        row[std::size_t(u)] = std::int32_t(u / saved.scope_units);
    saved.dprobability_row = rt_.upload(row);
}

/// L = scale · E/n · Σ_e f_e P_e with f_e the share of choices (n a unit) of expert e and P_e its
/// mean probability: 1 at uniform counts. Counts are constants; the gradient goes through P alone,
/// so every unit of a scope gets the same dp_e.
void MoeLayer::weigh_balance(Saved& saved, MoeReport& report, const std::vector<double>& counts,
                             double units) {
    const std::int64_t experts = spec_.num_experts;
    const double counted =
        rule_.balance_counts == BalanceCounts::first_choices ? 1 : double(spec_.top_k);
    const double scale =
        rule_.balance_scale > 0 ? rule_.balance_scale : 1 / (double(experts) * double(experts));
    const double factor = scale * double(experts) / counted, scopes = double(saved.scopes),
                 mean = 1 / double(saved.scope_units);
    report.balance_loss = 0;
    for (std::size_t i = 0; i < counts.size(); ++i)
        report.balance_loss +=
            factor * counts[i] / units * saved.probability_sums[i] * mean / scopes;
    if (spec_.balance_coefficient == 0) return;
    const double weight = spec_.balance_coefficient * saved.loss_weight / scopes;
    std::vector<double> dprobability(counts.size());
    for (std::size_t i = 0; i < dprobability.size(); ++i)
        dprobability[i] = weight * factor * counts[i] / units * mean;
    saved.dprobability = rt_.statistic(saved.scopes * experts);
    rt_.upload(saved.dprobability.data(), dprobability, rt_.stat);
}

Tensor MoeLayer::forward(const Tensor& x, const MicroBatch& batch, Saved& saved, MoeReport& report,
                         MoeChoices* choices, MoeObserved* observed) {
    const std::int64_t tokens = batch.num_tokens(), units = tokens * heads_,
                       experts = spec_.num_experts, k = spec_.top_k, slots = units * k;
    const Span own = part_of(tokens, groups_.tensor.rank(), groups_.tensor.size());  // of tokens
    const std::int64_t own_units = own.count() * heads_;
    report.units = units;

    // Split: sub-token t·h + j is the j-th slice of token t, so [tokens, hidden] is [tokens · h,
    // hidden/h] as it lies.
    if (head_) {
        saved.split = rt_.tensor(tokens * hidden_);
        void* own_split = at(saved.split.data(), own.first * hidden_, rt_.format);
        linear_forward(rt_, at(x.data(), own.first * hidden_, rt_.format), head_->value.data(),
                       own_split, own.count(), hidden_, hidden_);
        if (head_bias_) add_bias(rt_, own_split, head_bias_->value.data(), own.count(), hidden_);
        std::vector<std::int64_t> bytes;
        for (int r = 0; r < groups_.tensor.size(); ++r)
            bytes.push_back(part_of(tokens, r, groups_.tensor.size()).count() * hidden_ *
                            std::int64_t(size_of(rt_.format).value));
        gather_over(rt_, groups_.tensor, saved.split.data(), bytes, groups_.times.tensor);
    }
    const void* split = head_ ? saved.split.data() : x.data();
    const void* own_split = at(split, own.first * hidden_, rt_.format);

    // Route.
    saved.probabilities = rt_.statistic(units * experts);
    saved.log_sum_exp = rt_.statistic(units);
    saved.ids = rt_.ids(slots);
    saved.gates = rt_.statistic(slots);
    Tensor probability_sums = rt_.statistic(experts), allowed, mask_of_unit,
           z_sum(rt_.memory, 1, NumberFormat::f64);
    RouterForward route;
    route.selection_bias = selection_bias_ ? selection_bias_.data() : nullptr;
    route.probabilities = saved.probabilities.data();
    route.log_sum_exp = saved.log_sum_exp.data();
    route.expert_ids = saved.ids.ids();
    route.gates = saved.gates.data();
    route.probability_sums = probability_sums.data();
    route.z_sum = static_cast<double*>(z_sum.data());
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
    restrict_experts(split, route, batch, saved, allowed, mask_of_unit, choices);
    choose(split, route, saved);
    saved.logits.reset();
    const std::vector<std::int32_t> ids = rt_.download_ids(saved.ids.data(), slots);
    count_choices(batch, ids, probability_sums, saved, report);
    if (spec_.balance != BalanceScope::global)
        weigh_balance(saved, report, saved.balance_counts, double(saved.scope_units));
    const std::vector<double> gates = rt_.download(saved.gates.data(), slots, rt_.stat);
    double gate_total = 0;
    for (const double gate : gates) gate_total += gate;
    report.gate_sum = gate_total / double(std::max<std::int64_t>(1, units));
    report.z_loss = rt_.download(z_sum.data(), 1, NumberFormat::f64)[0] /
                    double(std::max<std::int64_t>(1, units));

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
    map_rows(routed_ids, capacity, ids, gates, batch, saved, report, choices);

    // Dispatch.
    Tensor sorted = rt_.tensor(saved.kept_rows * width_);
    rt_.run(rt_.kernels.permute_forward,
            PermuteForward{own_split, saved.slot_of_row.ids(), sorted.data(), saved.kept_rows,
                           width_, k, rt_.format},
            "permute_forward");
    const bool alone = groups_.experts.size() == 1;
    saved.expert_in = alone ? std::move(sorted) : to_experts(sorted, saved, groups_.times.dispatch);
    sorted.reset();

    // Experts, and back.
    const Tensor& offsets = alone ? saved.offsets : saved.local_offsets;
    Tensor expert_out = experts_->forward(saved.expert_in.data(), saved.local_rows, offsets,
                                          saved.host_offsets, saved.experts);
    saved.returned =
        alone ? std::move(expert_out) : from_experts(expert_out, saved, groups_.times.combine);
    Tensor combined = rt_.tensor(own.count() * hidden_);
    rt_.run(rt_.kernels.unpermute_forward,
            UnpermuteForward{saved.returned.data(), saved.row_of_slot.ids(),
                             at(saved.gates.data(), own.first * heads_ * k, rt_.stat),
                             combined.data(), own_units, width_, k, false, rt_.format},
            "unpermute_forward");
    if (spec_.inner_residual)
        add(rt_, combined.data(), own_split, combined.data(), combined.count());

    Tensor y;
    if (merge_) {
        y = rt_.tensor(combined.count());
        linear_forward(rt_, combined.data(), merge_->value.data(), y.data(), own.count(), hidden_,
                       hidden_);
        if (merge_bias_) add_bias(rt_, y.data(), merge_bias_->value.data(), own.count(), hidden_);
        saved.combined = std::move(combined);
    } else {
        y = std::move(combined);
    }
    if (observed) observe(y, tokens, saved, *observed);
    Tensor shared;
    if (shared_) shared = shared_->forward_all(x.data(), tokens, saved.shared);
    return whole_of(std::move(y), tokens, shared_ ? &shared : nullptr);
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

/// On one rank: all units are ours.
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
    const std::int64_t tokens = batch.num_tokens(), experts = spec_.num_experts, k = spec_.top_k;
    const Span own = part_of(tokens, groups_.tensor.rank(), groups_.tensor.size());  // of tokens
    const std::int64_t first_unit = own.first * heads_, units = own.count() * heads_;
    const void* own_dy = at(dy.data(), own.first * hidden_, rt_.format);
    const bool alone = groups_.experts.size() == 1;

    Tensor dmerged;
    if (merge_) {
        dmerged = rt_.tensor(own.count() * hidden_);
        if (merge_bias_)
            add_bias_gradient(rt_, own_dy, merge_bias_->gradient.data(), own.count(), hidden_);
        linear_backward(rt_, saved.combined.data(), merge_->value.data(), own_dy, dmerged.data(),
                        merge_->gradient.data(), own.count(), hidden_, hidden_);
        saved.combined.reset();
    }
    const void* dcombined = merge_ ? dmerged.data() : own_dy;
    const auto gates = [&] { return at(saved.gates.data(), first_unit * k, rt_.stat); };

    Tensor dreturned = rt_.tensor(saved.kept_rows * width_), dgates = rt_.statistic(units * k);
    rt_.run(rt_.kernels.unpermute_backward,
            UnpermuteBackward{saved.returned.data(), dcombined, saved.row_of_slot.ids(), gates(),
                              dreturned.data(), dgates.data(), units, width_, k, rt_.format},
            "unpermute_backward");
    saved.returned.reset();
    Tensor dexpert_out =
        alone ? std::move(dreturned) : to_experts(dreturned, saved, groups_.times.combine);
    dreturned.reset();
    const Tensor& offsets = alone ? saved.offsets : saved.local_offsets;
    Tensor dexpert_in = experts_->backward(saved.expert_in.data(), dexpert_out, saved.local_rows,
                                           offsets, saved.host_offsets, saved.experts);
    saved.expert_in.reset();
    dexpert_out.reset();
    const Tensor dsorted =
        alone ? std::move(dexpert_in) : from_experts(dexpert_in, saved, groups_.times.dispatch);
    Tensor dsplit = rt_.tensor(own.count() * hidden_);
    rt_.run(rt_.kernels.permute_backward,
            PermuteBackward{dsorted.data(), saved.row_of_slot.ids(), dsplit.data(), units, width_,
                            k, false, rt_.format},
            "permute_backward");
    if (spec_.inner_residual) add(rt_, dsplit.data(), dcombined, dsplit.data(), dsplit.count());

    Tensor dlogits = rt_.statistic(units * experts);
    RouterBackward route;
    route.probabilities = at(saved.probabilities.data(), first_unit * experts, rt_.stat);
    route.log_sum_exp = at(saved.log_sum_exp.data(), first_unit, rt_.stat);
    route.expert_ids = saved.ids.ids() + first_unit * k;
    route.gates = gates();
    route.dgates = dgates.data();
    route.dprobability = saved.dprobability ? saved.dprobability.data() : nullptr;
    route.dprobability_row =
        saved.dprobability_row ? saved.dprobability_row.ids() + first_unit : nullptr;
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
    score_backward(head_ ? saved.split.data() : x.data(), dlogits, {first_unit, first_unit + units},
                   dsplit, saved);
    dlogits.reset();

    Tensor dx;
    if (head_) {
        if (head_bias_)
            add_bias_gradient(rt_, dsplit.data(), head_bias_->gradient.data(), own.count(),
                              hidden_);
        dx = rt_.tensor(dsplit.count());
        linear_backward(rt_, at(x.data(), own.first * hidden_, rt_.format), head_->value.data(),
                        dsplit.data(), dx.data(), head_->gradient.data(), own.count(), hidden_,
                        hidden_);
    } else {
        dx = std::move(dsplit);
    }
    Tensor dshared;
    if (shared_) dshared = shared_->backward_all(x.data(), dy, tokens, saved.shared);
    saved = {};
    return whole_of(std::move(dx), tokens, shared_ ? &dshared : nullptr);
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
