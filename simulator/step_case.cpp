/// What can be said of a case before it is walked: what forbids it, the least it can take, its
/// digest; and its spread.

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "core/digest.hpp"
#include "core/errors.hpp"
#include "core/quantity_text.hpp"
#include "core/seed.hpp"
#include "core/text.hpp"
#include "model/layout_words.hpp"
#include "model/op_counts.hpp"
#include "model/stage_layers.hpp"
#include "simulator/interval.hpp"
#include "simulator/routing_model.hpp"
#include "simulator/step_graph.hpp"

namespace moeplan {

double expert_copies(const StepCase& step) {
    if (!step.placement) return 1;
    double most = 1;
    for (const LayerPlacement& layer : step.placement->layers)
        most = std::max(most, static_cast<double>(slots_per_rank(layer, step.placement->num_ranks)) *
                                  step.placement->num_ranks /
                                  static_cast<double>(layer.ranks_of_expert.size()));
    return most;
}

std::vector<Finding> step_findings(const StepCase& step) {
    const int gpus = num_gpus(step.cluster);
    std::vector<Finding> findings = check_layout(step.model, step.layout, step.schedule, gpus);
    const auto add = [&](std::string rule, std::string detail,
                         std::vector<std::string> nearest = {}) {
        Finding finding;
        finding.rule = std::move(rule);
        finding.detail = std::move(detail);
        finding.nearest = std::move(nearest);
        findings.push_back(std::move(finding));
    };
    if (!step.cluster.gpu.peak.empty() && !step.cluster.gpu.peak.contains(step.schedule.precision))
        add("precision", step.cluster.gpu.name + " does not compute in " +
                             std::string(name_of(step.schedule.precision)));
    if (step.schedule.pipeline == Pipeline::one_f_one_b &&
        step.schedule.virtual_pipeline_size > 1 && step.layout.pipeline_parallel_size > 1 &&
        step.schedule.num_micro_batches % step.layout.pipeline_parallel_size != 0)
        add("schedule", "interleaved chunks need micro-batches (" +
                            std::to_string(step.schedule.num_micro_batches) +
                            ") in multiples of the pipeline size (" +
                            std::to_string(step.layout.pipeline_parallel_size) + ")");
    if (step.schedule.pipeline == Pipeline::interleaved &&
        step.schedule.num_micro_batches % step.layout.pipeline_parallel_size != 0)
        add("schedule", "interleaved needs micro-batches (" +
                            std::to_string(step.schedule.num_micro_batches) +
                            ") in multiples of the pipeline size (" +
                            std::to_string(step.layout.pipeline_parallel_size) + ")");
    for (const auto& [rank, factor] : step.disturbances.stragglers)
        if (rank < 0 || rank >= world_size(step.layout))
            throw InputError("--straggler", "", std::to_string(rank),
                             "a rank of 0 … " + std::to_string(world_size(step.layout) - 1));
        else if (!(factor > 0) || !std::isfinite(factor))
            throw InputError("--straggler", "", exact_text(factor), "a factor above 0");
    const bool sound = std::none_of(findings.begin(), findings.end(), [](const Finding& f) {
        return f.severity == Severity::broken;
    });
    if (sound && step.cluster.gpu.memory.value > 0)
        for (const StageMemory& stage : memory_by_stage(step.model, step.layout, step.schedule, 1,
                                                        expert_copies(step)))
            if (stage.total() > step.cluster.gpu.memory)
                add("memory", "stage " + std::to_string(stage.stage) + ", rank " +
                                  std::to_string(stage.rank) + " needs " + to_text(stage.total()) +
                                  " of " + to_text(step.cluster.gpu.memory));
    return findings;
}

std::string digest_of(const StepCase& step) {
    Digest digest;
    digest.add(to_json(step.model).dump())
        .add(to_json(step.cluster).dump())
        .add(layout_to_json(step.layout, step.schedule).dump());
    digest.add(step.profile ? step.profile->digest.empty() ? to_json(*step.profile).dump()
                                                           : step.profile->digest
                            : "");
    if (const auto* synthetic = std::get_if<SyntheticRouting>(&step.routing))
        digest.add(to_words(*synthetic));
    else if (const auto& trace = std::get<std::shared_ptr<const TraceReader>>(step.routing))
        digest.add(trace->digest());
    if (step.placement) digest.add(to_json(*step.placement).dump());
    digest.add(std::to_string(step.seed));
    if (step.distinct_micro_batches > 0)
        digest.add("distinct " + std::to_string(step.distinct_micro_batches));
    for (const auto& [rank, factor] : step.disturbances.stragglers)
        digest.add(std::to_string(rank) + ":" + exact_text(factor));
    for (const auto& [link, factor] : step.disturbances.link_faults)
        digest.add(link + ":" + exact_text(factor));
    return digest.hex();
}

Json to_json(const StepCase& step, const std::string& trace) {
    Json out = json_header("case");
    out["model"] = to_json(step.model);
    out["cluster"] = to_json(step.cluster);
    out["layout"] = layout_to_json(step.layout, step.schedule);
    out["profile"] = to_json(*step.profile);
    if (const auto* synthetic = std::get_if<SyntheticRouting>(&step.routing))
        out["routing"] = Json{{"kind", synthetic->kind},
                              {"exponent", synthetic->exponent},
                              {"document_concentration", synthetic->document_concentration}};
    else
        out["trace"] = trace;
    if (step.placement) out["placement"] = to_json(*step.placement);
    out["seed"] = step.seed;
    if (step.distinct_micro_batches > 0)
        out["distinct_micro_batches"] = step.distinct_micro_batches;
    out["stragglers"] = Json::array();
    for (const auto& [rank, factor] : step.disturbances.stragglers)
        out["stragglers"].push_back(Json{{"rank", rank}, {"factor", factor}});
    out["link_faults"] = Json::array();
    for (const auto& [link, factor] : step.disturbances.link_faults)
        out["link_faults"].push_back(Json{{"link", link}, {"factor", factor}});
    return out;
}

StepCase step_case_from_json(const JsonReader& reader) {
    reader.refuse_unknown({"model", "cluster", "layout", "profile", "routing", "trace", "placement",
                           "seed", "distinct_micro_batches", "stragglers", "link_faults"});
    StepCase step;
    // each part is a whole file of its own kind
    const auto part = [&](const char* key) {
        return JsonReader::from_value(reader.at(key).value(), reader.file() + ": /" + key);
    };
    step.model = model_from_json(part("model"));
    step.cluster = cluster_from_json(part("cluster"));
    LayoutWords words;
    add_layout_words(reader.at("layout"), words);
    const ResolvedLayout resolved = resolve_layout(words, step.model, num_gpus(step.cluster));
    step.layout = resolved.layout;
    step.schedule = resolved.schedule;
    step.profile = std::make_shared<const Profile>(profile_from_json(part("profile")));
    if (const auto trace = reader.find("trace")) {
        step.routing = std::make_shared<const TraceReader>(trace->text());
    } else {
        const JsonReader routing = reader.at("routing");
        routing.refuse_unknown({"kind", "exponent", "document_concentration"});
        step.routing = SyntheticRouting{routing.at("kind").text(), routing.number_or("exponent", 0),
                                        routing.number_or("document_concentration", 0)};
    }
    if (reader.find("placement"))
        step.placement =
            std::make_shared<const ExpertPlacement>(placement_from_json(part("placement")));
    if (const auto seed = reader.find("seed"))
        step.seed = seed->value().is_number_unsigned()
                        ? seed->value().get<std::uint64_t>()
                        : static_cast<std::uint64_t>(seed->integer(0));
    step.distinct_micro_batches = reader.count_or("distinct_micro_batches", 0);
    if (const auto list = reader.find("stragglers"))
        for (const auto& item : list->items())
            step.disturbances.stragglers.emplace_back(item.at("rank").count(),
                                                      item.at("factor").number(0));
    if (const auto list = reader.find("link_faults"))
        for (const auto& item : list->items())
            step.disturbances.link_faults.emplace_back(item.at("link").text(),
                                                       item.at("factor").number(0));
    return step;
}

Seconds lower_bound(const StepCase& step) {
    // Every stage works off its flops at the peak rate for each micro-batch, and waits once for the
    // stages before it, there and back. Communication, memory traffic and skew only add. O(layers),
    // no kernel is looked up.
    FlopsPerSecond peak;
    for (const auto& [precision, rate] : step.profile->roofline.peak) peak = std::max(peak, rate);
    if (!(peak.value > 0))
        for (const auto& [precision, rate] : step.cluster.gpu.peak) peak = std::max(peak, rate);
    if (!(peak.value > 0)) return {};
    const auto& layout = step.layout;
    const auto& schedule = step.schedule;
    const double hidden = step.model.hidden_size, s = schedule.sequence_length;
    const double tokens =
        static_cast<double>(schedule.micro_batch_size) * s / layout.context_parallel_size;
    const double tp = layout.tensor_parallel_size;
    std::vector<double> layer_flops;  // forward, one micro-batch, one rank
    for (std::size_t l = 0; l < step.model.layers.size(); ++l) {
        const LayerSpec& layer = step.model.layers[l];
        if (l > 0 && layer == step.model.layers[l - 1]) {
            layer_flops.push_back(layer_flops.back());
            continue;
        }
        const LayerParameters p = layer_parameters(step.model, layer);
        double head_sum = 0;  // Σ heads · (query + value width) of the core
        if (const auto* gqa = std::get_if<GroupedQueryAttention>(&layer.attention))
            head_sum = 2.0 * gqa->num_attention_heads * gqa->head_size;
        if (const auto* mla = std::get_if<LatentAttention>(&layer.attention))
            head_sum = static_cast<double>(mla->num_attention_heads) *
                       (mla->nope_size + mla->rope_size + mla->value_size);
        const double keys = layer.window ? std::min<double>(*layer.window, s) : s;
        double flops =
            2 * tokens * static_cast<double>(p.attention + p.dense + p.shared_experts) / tp +
            tokens * keys * head_sum / tp * 0.5;
        if (const auto* moe = std::get_if<MoeFeedForward>(&layer.feed_forward)) {
            const double heads = std::max(1, moe->num_moe_heads);
            const bool drops = moe->capacity_factor.has_value();
            flops += 2 * tokens / tp * static_cast<double>(p.router) * heads +
                     2 * tokens / tp * static_cast<double>(p.mh_projections);
            // the mean over expert ranks: the fullest has no less; with capacity nothing is
            // promised
            if (!drops)
                flops += 2 * tokens / tp * heads * moe->top_k * static_cast<double>(p.one_expert);
        }
        layer_flops.push_back(flops);
    }
    const auto chunks = stage_chunks(static_cast<int>(step.model.layers.size()), layout, schedule);
    const int v = num_chunks(layout, schedule);
    const bool dual = schedule.pipeline == Pipeline::dual_pipe && v == 2;
    const int last = (dual ? 1 : v) * static_cast<int>(chunks.size()) - 1;
    double bound = 0, before = 0;
    for (std::size_t stage = 0; stage < chunks.size(); ++stage) {
        double all = 0, first = 0, head = 0;
        for (std::size_t c = 0; c < chunks[stage].size(); ++c) {
            double here = 0;
            for (int l = chunks[stage][c].first;
                 l < chunks[stage][c].first + chunks[stage][c].count; ++l)
                here += layer_flops[l];
            // each direction of a DualPipe has half of the micro-batches
            all += dual ? here / 2 : here;
            if (c == 0) first = here;
            // the head is not recomputed
            if (virtual_stage(schedule.pipeline, static_cast<int>(chunks.size()),
                              static_cast<int>(stage), static_cast<int>(c)) == last)
                head += 3 * 2 * tokens * hidden * step.model.vocab_size / tp / (dual ? 2 : 1);
        }
        const double passes = schedule.recompute.full ? 4 : 3;
        const double times = schedule.num_micro_batches;
        // there and back through the first chunks before it; where weight gradients fill the drain,
        // only the way there is sure; a stage of a DualPipe begins from the nearer end
        const double way = dual ? 0
                           : v > 1 || schedule.pipeline == Pipeline::zero_bubble ? 1
                                                                                 : 3;
        bound = std::max(bound, (all * passes + head) * times + before * way);
        before += first;
    }
    return Flops{bound} / peak;
}

StepReport with_samples(const StepCase& step, const StepRunner& runner, int samples) {
    StepReport report = runner(step);
    if (samples < 2) return report;
    std::vector<double> times = {report.step_time.value};
    for (int i = 1; i < samples; ++i) {
        StepCase again = step;
        again.keep_timeline = false;
        again.seed = derive(Seed{step.seed}, "sample", static_cast<std::uint64_t>(i)).value;
        times.push_back(runner(again).step_time.value);
    }
    std::sort(times.begin(), times.end());
    const auto quantile = [&](double q) {
        const double at = q * static_cast<double>(times.size() - 1);
        const auto low = static_cast<std::size_t>(at);
        const double share = at - static_cast<double>(low);
        return low + 1 < times.size() ? times[low] * (1 - share) + times[low + 1] * share
                                      : times[low];
    };
    report.routing_interval = {{Seconds{quantile(0.1)}, Seconds{quantile(0.9)}}};
    const ErrorBand* errors = errors_of(step);
    report.interval = errors
                          ? interval_of(report.step_time, *errors, report.routing_interval)
                          : *report.routing_interval;
    report.assumptions.push_back(
        "the 80 % interval spans " + std::to_string(samples) + " draws of the routing" +
        (errors ? " and the errors of the model on published runs like this one"
                : "; errors of the model itself are not in it"));
    return report;
}

}  // namespace moeplan
