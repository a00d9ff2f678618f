#include "planner/accuracy/record_case.hpp"

#include <algorithm>
#include <set>

#include "core/errors.hpp"
#include "core/text.hpp"
#include "model/layout_words.hpp"
#include "model/stage_layers.hpp"

namespace moeplan {
namespace {

/// Of natural routing, whose loads are seldom published: Zipf's exponent at which 128 experts have
/// the Gini coefficient 0.7 that trained MoE models have on average (routing.json, lpr-gini).
constexpr double kNaturalExponent = 1.1;

/// Routings that are drawn for a step: its time averages over layers and micro-batches, and 8 of
/// them in some dozens of layers leave a few tenths of a per cent of noise.
constexpr int kDistinctMicroBatches = 8;

class Builder {
  public:
    Builder(const TrainingRecord& record, const ProfileSource& profiles)
        : record_(record),
          profiles_(profiles),
          framework_(record.software.state.framework),
          moe_(first_moe(record.model) != nullptr) {}

    std::variant<RecordCase, SkippedRecord> build() {
        try {
            out_.step.model = record_.model;
            for (const std::string& line : record_.model_assumptions) {
                const auto colon = line.find(": ");
                out_.assumed.push_back({line.substr(0, colon), "",
                                        colon == std::string::npos ? "" : line.substr(colon + 2)});
            }
            cluster();
            layout();
            sharding();
            software();
            routing();
            if (auto refused = resolve()) return *refused;
            if (!record_.recompute && words_["recompute"] == "none")
                if (auto refused = fit_recompute()) return *refused;
            if (auto refused = check()) return *refused;
            out_.step.profile = profiles_(record_.gpu);
            return std::move(out_);
        } catch (const InputError& error) {
            return skip(error.file == "--gpu" ? "unknown_gpu" : "field",
                        (error.file.empty() ? "" : error.file + " ") + error.value +
                            (error.value.empty() ? "" : ", ") + "expected " + error.expected);
        }
    }

  private:
    SkippedRecord skip(std::string rule, std::string reason) const {
        return {record_.id, "training", record_.source.title, std::move(reason), std::move(rule)};
    }
    void assume(std::string key, std::string value, std::string why) {
        out_.assumed.push_back({std::move(key), std::move(value), std::move(why)});
    }
    bool framework_is(std::initializer_list<std::string_view> names) const {
        return std::find(names.begin(), names.end(), framework_) != names.end();
    }
    /// Megatron of today, with its distributed optimizer and selective recomputation.
    bool recent_megatron() const {
        return framework_is({"megatron-bridge", "megatron-core", "nemo"}) ||
               (framework_ == "megatron-lm" && !early_megatron());
    }
    /// Megatron-LM up to 2022 and its kin: no distributed optimizer, no overlap of the gradients.
    bool early_megatron() const {
        if (framework_is({"megatron-deepspeed", "oneflow"})) return true;
        if (framework_ != "megatron-lm") return false;
        const std::string& date = record_.source.date;
        const std::string& release = record_.software.state.release;
        return (date.starts_with("20") && date < "2023") || release == "1.0" ||
               (release.starts_with("20") && release < "2023");
    }

    void cluster() {
        int per_node = 8, nodes = 1;
        if (record_.gpus_per_node) {
            per_node = *record_.gpus_per_node;
        } else {
            make_cluster(record_.gpu, 1, 1, {}, {});  // refuses a GPU that is not known
            per_node = load_cluster(record_.gpu).gpus_per_node;
            assume("gpus_per_node", std::to_string(per_node), "unstated; as the shipped system");
        }
        if (record_.gpus <= per_node) {
            per_node = record_.gpus;
        } else {
            if (record_.gpus % per_node != 0)
                throw InputError(
                    "gpus", "", std::to_string(record_.gpus),
                    "a multiple of the " + std::to_string(per_node) + " GPUs of a node");
            nodes = record_.gpus / per_node;
        }
        std::optional<int> nics = record_.network.nics_per_node;
        std::optional<double> gbps = record_.network.nic_gbps;
        if (nics && per_node<record_.gpus_per_node&& * nics> per_node) nics = per_node;
        if (nics && per_node % *nics != 0 && *nics % per_node != 0) nics.reset();
        ClusterSpec& cluster = out_.step.cluster;
        cluster = make_cluster(record_.gpu, nodes, per_node, nics, gbps);
        if (record_.gpus > gpus_per_domain(cluster) && !gbps) {
            const bool b300 = record_.gpu == "b300-sxm";
            if (b300) cluster.scale_out.bandwidth = BytesPerSecond{400e9 / 8};
            assume("network", b300 ? "400 Gb/s a GPU" : "as the shipped " + record_.gpu,
                   b300 ? "unstated; B300 systems of other records behave so" : "unstated");
        }
        segment_racks();
    }

    /// Jobs of several racks take 16 of a rack's 18 nodes, so that groups of powers of two lie
    /// inside one NVLink domain.
    void segment_racks() {
        ClusterSpec& cluster = out_.step.cluster;
        auto* fabric = std::get_if<Fabric>(&cluster.topology);
        auto* domain = fabric ? std::get_if<NvSwitch>(&fabric->scale_up) : nullptr;
        if (!domain || domain->gpus_per_domain != 72 || num_gpus(cluster) <= 72 ||
            64 % cluster.gpus_per_node != 0)
            return;
        domain->gpus_per_domain = 64;
        assume("nvlink_domain", "64 GPUs of a rack",
               "unstated; jobs of several racks take 16 of their 18 nodes");
    }

    void layout() {
        const auto set = [&](const char* key, int value) { words_[key] = std::to_string(value); };
        set("tp", record_.tp);
        set("pp", record_.pp);
        set("vpp", record_.vpp);
        set("cp", record_.cp);
        set("ep", record_.ep);
        set("micro_batch", record_.micro_batch);
        set("global_batch", record_.global_batch);
        set("seq", record_.seq);
        words_["precision"] = std::string(name_of(record_.precision));
        if (moe_) {
            set("etp", record_.etp.value_or(1));
            if (!record_.etp && record_.ep > 1)
                assume("etp", "1", "unstated with expert parallelism");
        }
        const int stages = record_.pp * record_.vpp;
        const int layers = static_cast<int>(record_.model.layers.size());
        const StatedSoftware& software = record_.software;
        if (software.pipeline_layout && stages > 1) {
            words_["pipeline_layout"] = *software.pipeline_layout;
        } else if (stages > 1 &&
                   (software.embedding_counts_as_layer || software.head_counts_as_layer)) {
            if (software.embedding_counts_as_layer)
                words_["account_for_embedding_in_pipeline_split"] = "true";
            if (software.head_counts_as_layer)
                words_["account_for_loss_in_pipeline_split"] = "true";
        } else if (stages > 1 && layers % stages != 0 && (layers + 2) % stages == 0) {
            words_["account_for_embedding_in_pipeline_split"] = "true";
            words_["account_for_loss_in_pipeline_split"] = "true";
            assume("stage_layers", "embedding and head count as a layer each",
                   std::to_string(layers) + " layers do not divide over " + std::to_string(stages) +
                       " stages, " + std::to_string(layers + 2) + " do");
        } else if (stages > 1 && layers % stages != 0 && layers >= stages) {
            ParallelLayout split;
            split.pipeline_parallel_size = record_.pp;
            StepSchedule schedule;
            schedule.virtual_pipeline_size = record_.vpp;
            std::vector<std::string> parts;
            for (const int count : virtual_stage_layers(layers, split, schedule))
                parts.push_back(std::to_string(count));
            words_["stage_layers"] = join(parts, ",");
            assume("stage_layers", words_["stage_layers"],
                   std::to_string(layers) + " layers do not divide over " + std::to_string(stages) +
                       " stages: as even as can be");
        }
    }

    void sharding() {
        Sharding sharding = Sharding::zero1;
        if (record_.sharding) {
            sharding = *record_.sharding;
        } else {
            if (early_megatron() || framework_ == "deepspeed") sharding = Sharding::none;
            assume("sharding", std::string(name_of(sharding)),
                   sharding == Sharding::none ? "unstated, software before distributed optimizers"
                                              : "unstated: a distributed optimizer");
        }
        words_["zero"] = std::string(name_of(sharding));
        recompute();
    }

    void recompute() {
        if (record_.recompute == Recomputation::full) {
            words_["recompute"] = "full";
        } else if (record_.recompute == Recomputation::none) {
            words_["recompute"] = "none";
        } else if (record_.recompute == Recomputation::selective) {
            words_["recompute_modules"] = modules();
            if (words_["recompute_modules"].empty()) {
                words_["recompute_modules"] = default_modules();
                assume("recompute_modules", default_modules(),
                       "selective, modules unstated or not ours: " + record_.recompute_modules);
            }
        } else if (framework_ == "megatron-deepspeed") {
            words_["recompute"] = "full";
            assume("recompute", "full", "unstated; Megatron-DeepSpeed's published sweeps use it");
        } else {
            words_["recompute"] = "none";
        }
    }

    /// What selective recomputation rebuilds unless told otherwise: Megatron's core attention; in
    /// MoE recipes norms and the experts' activation.
    std::string default_modules() const { return moe_ ? "layernorm,moe_act" : "core_attn"; }

    /// "selective: layernorm, moe", "norm, act", "mlp + core_attn", "per-op selective".
    std::string modules() {
        std::set<std::string> out;
        const auto words = lower_words(record_.recompute_modules);
        for (std::size_t i = 0; i < words.size(); ++i) {
            const std::string& word = words[i];
            for (const char* known : {"core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp",
                                      "moe", "shared_experts"})
                if (word == known) out.insert(known);
            if (word == "norm") out.insert("layernorm");
            if (word == "act") out.insert("moe_act");
            if (word == "attention" && i + 1 < words.size() && words[i + 1] == "core")
                out.insert("core_attn");
            if (word == "per" || word == "ac") {
                // torchtitan keeps every other matrix product and the attention's output
                out.insert({"layernorm", "mlp"});
                assume("recompute_modules", "layernorm,mlp",
                       "per-op selective checkpointing keeps half of the products; ours rebuilds "
                       "the feed-forward part");
                break;
            }
        }
        return join({out.begin(), out.end()}, ",");
    }

    void software() {
        const StatedSoftware& stated = record_.software;
        words_["framework"] =
            framework_ + (stated.state.release.empty() ? "" : "@" + stated.state.release);
        const auto set = [&](const char* key, const std::string& value) {
            if (!value.empty()) words_[key] = value;
        };
        set("fusion", stated.state.fusion);
        set("graph_scope", stated.state.graph_scope);
        set("fp8_recipe", stated.state.fp8_recipe);
        set("moe_backend", stated.state.moe_backend);
        const auto flag = [&](const char* key, std::optional<bool> value) {
            if (value) words_[key] = *value ? "true" : "false";
        };
        flag("overlap_experts", stated.overlap_experts);
        if (stated.overlap_gradients) {
            flag("overlap_gradients", stated.overlap_gradients);
            flag("overlap_parameters",
                 stated.overlap_parameters.value_or(*stated.overlap_gradients));
        } else if (early_megatron() && framework_ != "oneflow") {
            words_["overlap_gradients"] = words_["overlap_parameters"] = "false";
            assume("overlap_gradients", "false", "software before overlapped gradient reduction");
        }
        if (record_.tp > 1) {
            if (stated.sequence_parallel) {
                flag("sequence_parallel", stated.sequence_parallel);
            } else if (recent_megatron() || framework_ == "torchtitan") {
                words_["sequence_parallel"] = "true";
                assume("sequence_parallel", "true", "unstated; " + framework_ + " with TP > 1");
            } else {
                words_["sequence_parallel"] = "false";
            }
            if (stated.overlap_tensor) {
                flag("overlap_tensor", stated.overlap_tensor);
            } else if (framework_is({"megatron-bridge", "nemo"}) && !moe_) {
                words_["overlap_tensor"] = "true";
                assume("overlap_tensor", "true",
                       "unstated; recipes of " + framework_ + " for dense models overlap it");
            }
        }
        if (moe_ && record_.ep > 1) {
            Dispatcher dispatcher = Dispatcher::all_to_all;
            if (stated.dispatcher) {
                dispatcher = *stated.dispatcher;
            } else {
                // Bridge's recipes went from NCCL's all-to-all to DeepEP and HybridEP with 25.11.
                const bool recent = framework_is({"megatron-bridge"}) &&
                                    !(stated.state.release < "25.11") &&
                                    record_.routing != "token_drop";
                if (recent) dispatcher = Dispatcher::deduplicating;
                assume("dispatcher", std::string(name_of(dispatcher)),
                       recent ? "unstated; recipes of Megatron-Bridge from 25.11" : "unstated");
            }
            words_["dispatcher"] = std::string(name_of(dispatcher));
        }
    }

    void routing() {
        SyntheticRouting routing;
        if (moe_) {
            const std::string kind = record_.routing.value_or("balanced");
            if (!record_.routing) assume("routing", "balanced", "unstated; benchmarks force it");
            if (kind == "natural") {
                routing.kind = "zipf";
                routing.exponent = kNaturalExponent;
                assume("routing", "zipf:" + exact_text(kNaturalExponent),
                       "natural, its loads are not published: Gini 0.7, as trained models have");
            } else {
                routing.kind = kind == "token_drop" ? "token_drop_padded" : kind;
            }
            if (kind == "token_drop")
                for (LayerSpec& layer : out_.step.model.layers)
                    if (auto* moe = std::get_if<MoeFeedForward>(&layer.feed_forward))
                        if (!moe->capacity_factor) moe->capacity_factor = 1;
        }
        out_.step.routing = routing;
        out_.step.distinct_micro_batches = kDistinctMicroBatches;
    }

    std::optional<SkippedRecord> resolve() {
        const ResolvedLayout resolved = resolve_layout(words_, out_.step.model, record_.gpus);
        std::vector<std::string> broken;
        for (const Finding& finding : resolved.broken) broken.push_back(finding.detail);
        if (!broken.empty()) return skip("layout", "impossible layout: " + join(broken, "; "));
        out_.step.layout = resolved.layout;
        out_.step.schedule = resolved.schedule;
        return std::nullopt;
    }

    bool fits() const {
        if (!(out_.step.cluster.gpu.memory.value > 0)) return true;
        for (const StageMemory& stage :
             memory_by_stage(out_.step.model, out_.step.layout, out_.step.schedule))
            if (stage.total() > out_.step.cluster.gpu.memory) return false;
        return true;
    }

    /// Recomputation unstated: none if it fits, else what the framework would have done.
    std::optional<SkippedRecord> fit_recompute() {
        std::vector<std::string> broken;
        for (const Finding& finding :
             check_layout(out_.step.model, out_.step.layout, out_.step.schedule, record_.gpus))
            if (finding.severity == Severity::broken) broken.push_back(finding.detail);
        if (!broken.empty()) return skip("layout", "impossible layout: " + join(broken, "; "));
        if (fits()) {
            assume("recompute", "none", "unstated, and memory does not call for it");
            return std::nullopt;
        }
        words_.erase("recompute");
        if (recent_megatron()) {
            words_["recompute_modules"] = default_modules();
            assume("recompute", "selective (" + default_modules() + ")",
                   "unstated; without it memory would not fit");
        } else {
            words_["recompute"] = "full";
            assume("recompute", "full", "unstated; without it memory would not fit");
        }
        return resolve();
    }

    std::optional<SkippedRecord> check() {
        std::vector<std::string> broken;
        for (const Finding& finding : step_findings(out_.step)) {
            if (finding.severity == Severity::assumption) continue;
            if (finding.severity == Severity::broken && finding.rule != "memory")
                broken.push_back(finding.detail);
            else
                out_.warnings.push_back(finding.rule + ": " + finding.detail);
            if (finding.severity == Severity::broken && finding.rule == "memory") out_.fits = false;
        }
        if (!broken.empty()) return skip("layout", "impossible layout: " + join(broken, "; "));
        return std::nullopt;
    }

    const TrainingRecord& record_;
    const ProfileSource& profiles_;
    const std::string framework_;
    const bool moe_;
    LayoutWords words_;
    RecordCase out_;
};

}  // namespace

std::variant<RecordCase, SkippedRecord> case_of(const TrainingRecord& record,
                                                const ProfileSource& profiles) {
    return Builder(record, profiles).build();
}

}  // namespace moeplan
