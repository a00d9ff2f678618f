/// The rules a layout must keep. Each looks at the layout alone and says its own piece, so that all
/// faults show at once.
#include "model/check.hpp"

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "core/text.hpp"
#include "model/frameworks.hpp"
#include "model/op_counts.hpp"
#include "model/stage_layers.hpp"

namespace moeplan {
namespace {

/// Of the balance loss that is 1 at uniform counts.
/// @source Switch (2101.03961) and MH-MoE (2404.15045), table 10
constexpr double kCommonBalance = 0.01;

std::string text(long long value) { return std::to_string(value); }

/// Three figures of a number, for people.
std::string short_text(double value) {
    char out[32];
    std::snprintf(out, sizeof out, "%.3g", value);
    return out;
}

std::vector<int> divisors(int value) {
    std::vector<int> out;
    for (int i = 1; i <= value; ++i)
        if (value % i == 0) out.push_back(i);
    return out;
}

std::vector<std::string> texts(const std::vector<int>& values) {
    std::vector<std::string> out;
    for (const int value : values) out.push_back(text(value));
    return out;
}

/// The values nearest to the asked one, at most two on each side.
std::vector<std::string> nearest_of(const std::vector<int>& values, int asked) {
    std::vector<std::string> out;
    const auto above = std::lower_bound(values.begin(), values.end(), asked);
    for (auto it = above - std::min<std::ptrdiff_t>(2, above - values.begin());
         it != values.end() && it < above + 2; ++it)
        out.push_back(text(*it));
    return out;
}

struct Heads {
    int query = 1, key = 1;  ///< common divisors over all layers: every layer must be split alike
    bool latent = false;
};
Heads heads_of(const ModelSpec& model) {
    Heads out{.query = 0, .key = 0};
    for (const auto& layer : model.layers) {
        if (const auto* gqa = std::get_if<GroupedQueryAttention>(&layer.attention)) {
            out.query = std::gcd(out.query, gqa->num_attention_heads);
            out.key = std::gcd(out.key, gqa->num_kv_heads);
        } else {
            const int heads = std::get<LatentAttention>(layer.attention).num_attention_heads;
            out.query = std::gcd(out.query, heads);
            out.key = std::gcd(out.key, heads);
            out.latent = true;
        }
    }
    return out;
}

/// The rules of one layout, gathered.
class Check {
  public:
    Check(const ModelSpec& model, const ParallelLayout& layout, const StepSchedule& schedule,
          int world)
        : model_(model),
          layout_(layout),
          schedule_(schedule),
          rules_(framework_rules(schedule.software.framework)),
          world_(world) {}

    std::vector<Finding> run() {
        world();
        expert_groups();
        heads();
        experts();
        widths();
        stages();
        pipeline();
        sequences();
        software();
        model();
        return std::move(out_);
    }

  private:
    Finding& add(Severity severity, std::string rule, std::string detail, std::string key = "",
                 std::string value = "") {
        out_.push_back({.severity = severity,
                        .rule = std::move(rule),
                        .detail = std::move(detail),
                        .key = std::move(key),
                        .value = std::move(value)});
        return out_.back();
    }
    Finding& broken(std::string rule, std::string detail, std::string key, int value) {
        return add(Severity::broken, std::move(rule), std::move(detail), std::move(key),
                   text(value));
    }
    Finding& warn(std::string rule, std::string detail, std::string key = "",
                  std::string value = "") {
        return add(Severity::warning, std::move(rule), std::move(detail), std::move(key),
                   std::move(value));
    }
    bool has_moe() const { return first_moe(model_) != nullptr; }
    std::string by() const { return rules_.name.empty() ? "" : " (" + rules_.name + ")"; }

    void world() {
        if (world_ <= 0) return;
        const long long ranks = 1LL * layout_.tensor_parallel_size * layout_.context_parallel_size *
                                layout_.pipeline_parallel_size;
        if (world_ % ranks != 0) {
            Finding& finding =
                broken("world_size",
                       "TP·CP·PP = " + text(ranks) + " does not divide " + text(world_) +
                           " GPUs (remainder " + text(world_ % ranks) + ")",
                       "pp", layout_.pipeline_parallel_size);
            finding.figures["remainder"] = static_cast<double>(world_ % ranks);
            const int inner = layout_.tensor_parallel_size * layout_.context_parallel_size;
            if (world_ % inner == 0)
                finding.nearest =
                    nearest_of(divisors(world_ / inner), layout_.pipeline_parallel_size);
        } else if (ranks * layout_.data_parallel_size != world_) {
            Finding& finding = broken("world_size",
                                      "TP·CP·PP·DP = " + text(ranks * layout_.data_parallel_size) +
                                          ", but there are " + text(world_) + " GPUs",
                                      "dp", layout_.data_parallel_size);
            finding.nearest = {text(world_ / ranks)};
        }
    }

    void expert_groups() {
        const int ep = layout_.expert_parallel_size, etp = layout_.expert_tensor_parallel_size,
                  pp = layout_.pipeline_parallel_size;
        if (!has_moe()) {
            if (ep > 1)
                broken("no_experts", "EP " + text(ep) + " for a model without MoE layers", "ep", ep)
                    .nearest = {"1"};
            return;
        }
        // The expert grid (etp, ep, expert-dp, pp) covers the same ranks as attention's (tp, cp,
        // dp, pp).
        const long long needed = 1LL * etp * ep * pp;
        const long long world = world_ > 0 ? world_
                                           : 1LL * layout_.tensor_parallel_size *
                                                 layout_.context_parallel_size *
                                                 layout_.data_parallel_size * pp;
        if (world % needed != 0) {
            Finding& finding =
                broken("expert_groups",
                       "ETP·EP·PP = " + text(etp) + "·" + text(ep) + "·" + text(pp) + " = " +
                           text(needed) + " does not divide " + text(world) + " GPUs",
                       "ep", ep);
            const LayoutFacts facts =
                layout_facts(model_, layout_, schedule_, static_cast<int>(world));
            finding.nearest = nearest_of(facts.valid_ep, ep);
            finding.figures["min_gpus"] = static_cast<double>(facts.min_gpus);
            if (facts.max_valid_ep) finding.figures["max_valid_ep"] = *facts.max_valid_ep;
        } else if (rules_.expert_group_in_data && layout_.data_parallel_size % ep != 0) {
            broken(
                "expert_groups",
                "EP " + text(ep) + " does not divide DP " + text(layout_.data_parallel_size) + by(),
                "ep", ep)
                .nearest = nearest_of(divisors(layout_.data_parallel_size), ep);
        }
    }

    void heads() {
        const int tp = layout_.tensor_parallel_size;
        if (tp == 1) return;
        const Heads heads = heads_of(model_);
        std::vector<int> good;
        for (const int size : divisors(heads.query))
            if (heads.key % size == 0 || (!rules_.kv_heads_divide && size % heads.key == 0))
                good.push_back(size);
        if (heads.query % tp != 0) {
            Finding& finding = broken("attention_heads",
                                      text(heads.query) + " attention heads % TP " + text(tp) +
                                          " = " + text(heads.query % tp),
                                      "tp", tp);
            finding.nearest = nearest_of(good, tp);
            finding.figures["remainder"] = heads.query % tp;
        }
        if (heads.latent || heads.key % tp == 0) return;
        if (rules_.kv_heads_divide) {
            Finding& finding = broken("kv_heads",
                                      text(heads.key) + " key-value heads % TP " + text(tp) +
                                          " = " + text(heads.key % tp) + by(),
                                      "tp", tp);
            finding.nearest = nearest_of(good, tp);
        } else if (tp % heads.key == 0) {
            warn("kv_heads",
                 "TP " + text(tp) + " exceeds " + text(heads.key) +
                     " key-value heads: each is held by " + text(tp / heads.key) +
                     " ranks, where the software allows it",
                 "tp", text(tp));
        } else if (heads.query % tp == 0) {  // otherwise the rule above has said it
            broken("kv_heads",
                   text(heads.key) + " key-value heads and TP " + text(tp) +
                       " do not divide each other",
                   "tp", tp)
                .nearest = nearest_of(good, tp);
        }
    }

    void experts() {
        const MoeFeedForward* moe = first_moe(model_);
        if (!moe) return;
        const int ep = layout_.expert_parallel_size, etp = layout_.expert_tensor_parallel_size;
        if (moe->num_experts % ep != 0) {
            const std::string detail = text(moe->num_experts) + " experts % EP " + text(ep) +
                                       " = " + text(moe->num_experts % ep);
            const int redundant = (ep - moe->num_experts % ep) % ep;
            // vLLM spreads a remainder unless the expert kernels or the load balancer need equal
            // shares.
            const bool strict = rules_.experts_divide ||
                                schedule_.software.moe_backend == "deep_gemm_mega_moe" ||
                                schedule_.software.moe_backend == "eplb";
            if (strict) {
                Finding& finding = broken(
                    "experts",
                    detail + (schedule_.software.moe_backend.empty()
                                  ? by()
                                  : " (rule of " + schedule_.software.moe_backend + "; " +
                                        text(redundant) + " redundant experts would mend it)"),
                    "ep", ep);
                finding.nearest = nearest_of(divisors(moe->num_experts), ep);
                finding.figures["redundant_needed"] = redundant;
            } else {
                warn("experts", detail + ": ranks hold unequal numbers of experts", "ep", text(ep));
            }
        }
        if (moe->expert_hidden_size % etp != 0) {
            Finding& finding = broken("expert_width",
                                      "expert width " + text(moe->expert_hidden_size) + " % ETP " +
                                          text(etp) + " = " + text(moe->expert_hidden_size % etp),
                                      "etp", etp);
            finding.nearest = nearest_of(divisors(moe->expert_hidden_size), etp);
        }
        const int tp = layout_.tensor_parallel_size;
        if (moe->num_shared_experts > 0 &&
            (1LL * moe->shared_expert_hidden_size * moe->num_shared_experts) % tp != 0)
            broken("shared_expert_width",
                   "shared experts' width " +
                       text(1LL * moe->shared_expert_hidden_size * moe->num_shared_experts) +
                       " % TP " + text(tp) + " ≠ 0",
                   "tp", tp);
        if (moe->num_moe_heads > 1 && model_.hidden_size % tp != 0)
            broken("mh_projection_width",
                   "hidden size " + text(model_.hidden_size) + " % TP " + text(tp) + " = " +
                       text(model_.hidden_size % tp) + " (head and merge projections)",
                   "tp", tp);
    }

    void widths() {
        const int tp = layout_.tensor_parallel_size;
        int seen = 0;
        for (const auto& layer : model_.layers)
            if (const auto* dense = std::get_if<DenseFeedForward>(&layer.feed_forward);
                dense && dense->dense_hidden_size % tp != 0 && dense->dense_hidden_size != seen) {
                seen = dense->dense_hidden_size;
                broken("dense_width",
                       "dense width " + text(seen) + " % TP " + text(tp) + " = " + text(seen % tp),
                       "tp", tp);
            }
        if (model_.vocab_size % tp != 0) {
            const std::string detail = "vocabulary " + text(model_.vocab_size) + " % TP " +
                                       text(tp) + " = " + text(model_.vocab_size % tp);
            if (rules_.pads_vocabulary)
                warn("vocabulary", detail + ": padded to the next multiple", "tp", text(tp));
            else
                broken("vocabulary", detail + by(), "tp", tp);
        }
    }

    void stages() {
        const int pp = layout_.pipeline_parallel_size, vpp = schedule_.virtual_pipeline_size,
                  chunks = pp * vpp;
        const int layers = static_cast<int>(model_.layers.size());
        const auto& given = schedule_.stage_layers;
        if (!given.empty()) {
            const long long sum = std::accumulate(given.begin(), given.end(), 0LL);
            if (static_cast<int>(given.size()) != chunks)
                broken("stage_layers",
                       text(static_cast<long long>(given.size())) +
                           " stages are listed, PP·VPP = " + text(chunks),
                       "pp", pp);
            if (sum != layers)
                broken("stage_layers",
                       "the listed stages hold " + text(sum) + " layers, the model has " +
                           text(layers),
                       "pp", pp)
                    .figures["missing"] = static_cast<double>(layers - sum);
            if (sum != layers || static_cast<int>(given.size()) != chunks) return;
        } else if (layers % chunks != 0) {
            const std::string split =
                join(texts(virtual_stage_layers(layers, layout_, schedule_)), ",");
            const std::string detail = text(layers) + " layers over PP" + (vpp > 1 ? "·VPP" : "") +
                                       " = " + text(chunks) + " leave " + text(layers % chunks);
            if (rules_.even_stages || layers < chunks) {
                Finding& finding = broken(
                    "layers_per_stage",
                    detail + (layers < chunks ? ": some stage would be empty"
                                              : "; floor division would build " +
                                                    text(layers / chunks * chunks) + " of them"),
                    "pp", pp);
                if (layers >= chunks) finding.nearest = {"stage_layers " + split};
                finding.figures = {{"remainder", layers % chunks},
                                   {"built_layers", layers / chunks * chunks},
                                   {"missing", layers % chunks}};
                return;
            }
            warn("layers_per_stage", detail + ": uneven stages " + split, "pp", text(pp));
        }
        if (!has_moe() || pp == 1) return;
        const LayoutFacts facts = layout_facts(model_, layout_, schedule_, world_);
        std::vector<int> without;
        for (int stage = 0; stage < pp; ++stage)
            if (facts.moe_layers_per_stage[static_cast<std::size_t>(stage)] == 0)
                without.push_back(stage);
        if (!without.empty())
            warn("stage_without_moe",
                 "pipeline stage " + join(texts(without), ", ") +
                     " holds no MoE layer: what gathers expert loads must accept an empty list "
                     "there",
                 "pp", text(pp));
        for (int stage = 0; stage < pp; ++stage)
            if (facts.layers_per_stage[static_cast<std::size_t>(stage)] == 0)
                warn("empty_stage", "pipeline stage " + text(stage) + " holds no layer", "pp",
                     text(pp));
    }

    void pipeline() {
        const int pp = layout_.pipeline_parallel_size, vpp = schedule_.virtual_pipeline_size,
                  m = schedule_.num_micro_batches;
        if (vpp > 1 && pp == 1)
            broken("virtual_stages", "VPP " + text(vpp) + " without a pipeline (PP 1)", "vpp", vpp)
                .nearest = {"1"};
        if (schedule_.pipeline == Pipeline::zero_bubble_v) {
            if (pp > 1 && vpp != 2)
                broken("zero_bubble_v",
                       "ZB-V lays two chunks a stage out as a V (VPP 2), not " + text(vpp), "vpp",
                       vpp)
                    .nearest = {"2"};
        } else if (vpp > 1 && pp > 1 && schedule_.pipeline != Pipeline::interleaved)
            broken("virtual_stages",
                   "VPP " + text(vpp) + " needs the interleaved schedule, not " +
                       std::string(name_of(schedule_.pipeline)),
                   "vpp", vpp)
                .nearest = {"1"};
        if (schedule_.pipeline == Pipeline::interleaved && vpp == 1 && pp > 1)
            warn("virtual_stages", "an interleaved schedule with one chunk a rank is 1f1b", "vpp",
                 "1");
        if (rules_.interleaved_needs_multiple && schedule_.pipeline != Pipeline::zero_bubble_v &&
            vpp > 1 && pp > 1 && m % pp != 0)
            broken("micro_batches",
                   text(m) + " micro-batches are no multiple of PP " + text(pp) +
                       ", as the interleaved schedule needs" + by(),
                   "global_batch", m)
                .figures["remainder"] = m % pp;
        if (schedule_.pipeline == Pipeline::dual_pipe && pp % 2 != 0)
            broken("dual_pipe", "DualPipe needs an even number of stages, not " + text(pp), "pp",
                   pp);
        if (schedule_.pipeline == Pipeline::dual_pipe && pp > 1 && m < 2 * pp)
            broken("dual_pipe", "DualPipe needs at least 2·PP micro-batches, not " + text(m),
                   "global_batch", m);
        else if (schedule_.pipeline == Pipeline::dual_pipe && pp > 1 && m % 2 != 0)
            broken("dual_pipe",
                   "DualPipe feeds half of the micro-batches in at either end: " + text(m) +
                       " are odd",
                   "global_batch", m)
                .figures["remainder"] = 1;
        if (pp > 1 && m < pp)
            warn("micro_batches",
                 text(m) + " micro-batches for " + text(pp) + " stages: most of the step is bubble",
                 "global_batch", text(m));
        if (rules_.refuses_sharded_pipeline && pp > 1 &&
            (schedule_.sharding == Sharding::zero2 || schedule_.sharding == Sharding::zero3))
            broken("sharding", std::string(name_of(schedule_.sharding)) + " with a pipeline" + by(),
                   "pp", pp)
                .nearest = {"zero 1"};
        else if (schedule_.sharding == Sharding::zero3 && pp > 1 && m > 1)
            warn("sharding",
                 "weights shared by zero3 are gathered again for every micro-batch of a pipeline",
                 "zero", "3");
    }

    void sequences() {
        const int tp = layout_.tensor_parallel_size, cp = layout_.context_parallel_size,
                  s = schedule_.sequence_length;
        // Each context rank takes a piece from the front and its mirror from the back, so that
        // causal work is equal.
        if (cp > 1 && s % (2 * cp) != 0) {
            Finding& finding = broken("sequence_length",
                                      "sequence length " + text(s) + " % 2·CP " + text(2 * cp) +
                                          " = " + text(s % (2 * cp)),
                                      "seq", s);
            finding.nearest = {text(s / (2 * cp) * 2 * cp), text((s / (2 * cp) + 1) * 2 * cp)};
        }
        if (schedule_.sequence_parallel && tp > 1 && s % (tp * cp) != 0)
            broken("sequence_length",
                   "sequence length " + text(s) + " % TP·CP " + text(tp * cp) + " = " +
                       text(s % (tp * cp)) + " with sequence parallelism",
                   "seq", s);
        if (schedule_.sequence_parallel && tp == 1)
            warn("sequence_parallel",
                 "sequence parallelism does nothing without tensor parallelism",
                 "sequence_parallel", "true");
        if (has_moe() && tp > 1 && !schedule_.sequence_parallel) {
            const std::string detail =
                "MoE layers with TP " + text(tp) +
                " without sequence parallelism: every tensor rank would route all tokens";
            if (rules_.moe_needs_sequence_parallel)
                add(Severity::broken, "sequence_parallel", detail + by(), "sequence_parallel",
                    "false")
                    .nearest = {"--sequence-parallel"};
            else
                warn("sequence_parallel", detail, "sequence_parallel", "false");
        }
        if (model_.max_sequence_length > 0 && s > model_.max_sequence_length)
            warn("sequence_length",
                 "sequence length " + text(s) + " exceeds the " + text(model_.max_sequence_length) +
                     " positions the model states",
                 "seq", text(s));
        if (cp > 1 && schedule_.pipeline == Pipeline::dual_pipe)
            warn("dual_pipe", "no public DualPipe runs context parallelism", "cp", text(cp));
    }

    void software() {
        const SoftwareState& software = schedule_.software;
        if (!software.framework.empty() && !is_known_framework(software.framework))
            warn("framework",
                 "\"" + software.framework +
                     "\" is no framework whose rules are known here: only general rules were "
                     "checked",
                 "framework", software.framework);
        if (software.load_balancing == "seq_aux_loss" && schedule_.micro_batch_size > 1)
            warn("load_balancing",
                 "with per-token loss, affected Megatron releases weaken seq_aux_loss by "
                 "1/micro-batch (here 1/" +
                     text(schedule_.micro_batch_size) + ")",
                 "micro_batch", text(schedule_.micro_batch_size));
        const MoeFeedForward* moe = first_moe(model_);
        if (moe && software.load_balancing == "none")
            warn("load_balancing",
                 moe->balance_coefficient > 0
                     ? "the balancing coefficient has no effect: the loss is off"
                     : "no balancing loss: expect uneven expert loads, and a slower step",
                 "load_balancing", "none");
        if (moe && rules_.etp_is_tp && layout_.expert_parallel_size > 1 &&
            layout_.tensor_parallel_size > 1 && schedule_.dispatcher == Dispatcher::all_to_all)
            warn("cold_expert_rank",
                 "an expert rank may receive no token in a micro-batch; it must still enter both "
                 "all-to-alls (some releases hang there)",
                 "ep", text(layout_.expert_parallel_size));
    }

    void model() {
        const MoeFeedForward* moe = first_moe(model_);
        if (!moe) return;
        if (moe->num_moe_heads > 1 && model_.hidden_size / moe->num_moe_heads < 128)
            warn("sub_token_width",
                 "sub-tokens of width " + text(model_.hidden_size / moe->num_moe_heads) +
                     ": MH-MoE lost quality below 128",
                 "num_moe_heads", text(moe->num_moe_heads));
        // GShard's loss, (1/E)·Σ f·P, is 1/E² of E·Σ f·P, which the others take: a coefficient means
        // as much less (docs/training.md). Switch's is 1e-2; a tenth of it is worth a word.
        const double experts = moe->num_experts, squared = experts * experts;
        if (moe->routing.starts_with("gshard") && moe->balance_coefficient > 0 &&
            moe->balance_coefficient / squared < kCommonBalance / 10) {
            Finding& finding =
                warn("balance_coefficient",
                     "GShard's balance loss is 1/E² of the other routings': with " +
                         text(moe->num_experts) + " experts " +
                         exact_text(moe->balance_coefficient) + " weighs as " +
                         short_text(moe->balance_coefficient / squared) +
                         " does there, where 0.01 is common; " +
                         short_text(kCommonBalance * squared) + " here would equal that",
                     "balance_coefficient", exact_text(moe->balance_coefficient));
            finding.figures["equivalent"] = moe->balance_coefficient / squared;
            finding.figures["common_here"] = kCommonBalance * squared;
        }
        if (moe->pool && (layout_.tensor_parallel_size > 1 || layout_.context_parallel_size > 1))
            warn("document_pool",
                 "document pools under TP or CP: the published EMO code refuses this; a document's "
                 "scores must be summed over its ranks",
                 "cp", text(layout_.context_parallel_size));
    }

    const ModelSpec& model_;
    const ParallelLayout& layout_;
    const StepSchedule& schedule_;
    const FrameworkRules& rules_;
    int world_;
    std::vector<Finding> out_;
};

}  // namespace

std::vector<Finding> check_layout(const ModelSpec& model, const ParallelLayout& layout,
                                  const StepSchedule& schedule, int world_size) {
    return Check(model, layout, schedule, world_size).run();
}

LayoutFacts layout_facts(const ModelSpec& model, const ParallelLayout& layout,
                         const StepSchedule& schedule, int world) {
    LayoutFacts out;
    const FrameworkRules& rules = framework_rules(schedule.software.framework);
    const int tp = layout.tensor_parallel_size, cp = layout.context_parallel_size,
              pp = layout.pipeline_parallel_size;
    const int ep = layout.expert_parallel_size, etp = layout.expert_tensor_parallel_size;
    out.world_size = world > 0 ? world : world_size(layout);
    out.expert_model_size = etp * ep * pp;
    out.min_gpus = static_cast<int>(std::lcm(1LL * tp * cp, 1LL * etp * ep) * pp);
    out.virtual_stages = pp * schedule.virtual_pipeline_size;
    out.decoder_layers = static_cast<int>(model.layers.size());
    out.mtp_layers = model.num_mtp_layers;
    const Heads heads = heads_of(model);
    for (const int size : divisors(out.world_size))
        if (heads.query % size == 0 &&
            (heads.key % size == 0 || (!rules.kv_heads_divide && size % heads.key == 0)))
            out.valid_tp.push_back(size);
    const MoeFeedForward* moe = first_moe(model);
    if (moe) {
        const int reach = rules.expert_group_in_data         ? layout.data_parallel_size
                          : out.world_size % (etp * pp) == 0 ? out.world_size / (etp * pp)
                                                             : 0;
        for (const int size : divisors(reach))
            if (moe->num_experts % size == 0) out.valid_ep.push_back(size);
        if (!out.valid_ep.empty()) out.max_valid_ep = out.valid_ep.back();
        if (out.world_size % out.expert_model_size == 0)
            out.expert_data_parallel_size = out.world_size / out.expert_model_size;
        if (moe->num_experts % ep == 0) out.experts_per_rank = moe->num_experts / ep;
    }
    double gathered = 0;
    for (const auto& stage : stage_chunks(out.decoder_layers, layout, schedule)) {
        int layers = 0, moe_layers = 0;
        double expert_params = 0;
        for (const LayerChunk& chunk : stage)
            for (int i = chunk.first; i < chunk.first + chunk.count; ++i) {
                const LayerSpec& layer = model.layers[static_cast<std::size_t>(i)];
                const LayerParameters one = layer_parameters(model, layer);
                const auto* here = std::get_if<MoeFeedForward>(&layer.feed_forward);
                ++layers;
                moe_layers += here != nullptr;
                const double share = here ? static_cast<double>(one.one_expert) *
                                                here->num_experts / (1.0 * ep * etp)
                                          : 0;
                expert_params += share;
                // The unit that FSDP gathers and that decides: all experts of a layer, else the
                // whole layer.
                gathered =
                    std::max(gathered, here ? share
                                            : static_cast<double>(one.attention + one.dense) / tp +
                                                  static_cast<double>(one.norms));
            }
        out.layers_per_stage.push_back(layers);
        out.moe_layers_per_stage.push_back(moe_layers);
        out.expert_params_per_gpu = std::max(out.expert_params_per_gpu, expert_params);
    }
    if (schedule.sharding == Sharding::zero3)
        out.gathered_layer = Bytes{gathered * (schedule.precision == Precision::fp32 ? 4 : 2)};
    return out;
}

Verdict verdict_of(const std::vector<Finding>& findings, const std::vector<StageMemory>& memory,
                   std::optional<Bytes> limit) {
    for (const Finding& finding : findings)
        if (finding.severity == Severity::broken) return Verdict::invalid;
    if (limit)
        for (const StageMemory& stage : memory)
            if (stage.total() > *limit) return Verdict::out_of_memory;
    return Verdict::valid;
}

}  // namespace moeplan
