#include "model/layout_words.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>

#include "core/errors.hpp"
#include "core/text.hpp"
#include "model/frameworks.hpp"
#include "model/import/megatron.hpp"
#include "model/import/text_file.hpp"
#include "model/stage_layers.hpp"

namespace moeplan {
namespace {

constexpr int kMostRanks = 1 << 20;

std::string flag_of(const std::string& key) {
    std::string out = "--" + key;
    std::replace(out.begin(), out.end(), '_', '-');
    return out;
}

/// Typed access to the words, with the flag's name in every message.
class Words {
  public:
    explicit Words(const LayoutWords& words) : words_(words) {}
    const std::string* find(const std::string& key) const {
        const auto found = words_.find(key);
        return found == words_.end() ? nullptr : &found->second;
    }
    [[noreturn]] void fail(const std::string& key, const std::string& expected) const {
        throw InputError(flag_of(key), "", words_.at(key), expected);
    }
    int number(const std::string& key, int otherwise, int least = 1, int most = kMostRanks) const {
        const std::string* text = find(key);
        if (!text) return otherwise;
        return whole(key, *text, least, most);
    }
    int whole(const std::string& key, const std::string& text, int least, int most) const {
        const std::string_view trimmed = trim(text);
        const bool digits = !trimmed.empty() && trimmed.size() <= 9 &&
                            trimmed.find_first_not_of("0123456789") == std::string_view::npos;
        const int value = digits ? std::atoi(std::string(trimmed).c_str()) : -1;
        if (!digits || value < least || value > most)
            fail(key, "an integer " + std::to_string(least) + " … " + std::to_string(most));
        return value;
    }
    bool on(const std::string& key, bool otherwise) const {
        const std::string* text = find(key);
        if (!text) return otherwise;
        if (*text == "true" || *text == "1" || *text == "yes") return true;
        if (*text == "false" || *text == "0" || *text == "no") return false;
        fail(key, "true or false");
    }
    template <class E>
    E choice(const std::string& key, E otherwise) const {
        const std::string* text = find(key);
        if (!text) return otherwise;
        if (const auto value = from_name<E>(*text)) return *value;
        fail(key, choices<E>());
    }
    std::vector<int> numbers(const std::string& key, int least, int most) const {
        std::vector<int> out;
        if (const std::string* text = find(key); text && !trim(*text).empty())
            for (const auto& part : split(*text, ',')) out.push_back(whole(key, part, least, most));
        return out;
    }

  private:
    const LayoutWords& words_;
};

std::string text_of(const JsonReader& json) {
    if (json.is_bool()) return json.boolean() ? "true" : "false";
    if (json.is_string()) return json.text();
    // What is no whole number is refused later, by the word it is given for.
    if (json.is_number()) {
        const double value = json.number();
        return value == std::floor(value) && std::abs(value) < 1e15
                   ? std::to_string(static_cast<long long>(value))
                   : json.value().dump();
    }
    if (json.is_array()) {
        std::vector<std::string> parts;
        for (const JsonReader& item : json.items()) parts.push_back(text_of(item));
        return join(parts, ",");
    }
    json.fail("a number, a text, true or false, or a list");
}

void assume(ResolvedLayout& out, const std::string& key, const std::string& value,
            const std::string& why) {
    out.assumed.push_back({.severity = Severity::assumption,
                           .rule = "assumed_" + key,
                           .detail = why,
                           .key = key,
                           .value = value});
}

/// The key of a flag as messages have it: "--micro-batch" → "micro_batch".
std::string key_of(const std::string& flag) {
    if (!flag.starts_with("--")) return {};
    std::string out = flag.substr(2);
    std::replace(out.begin(), out.end(), '-', '_');
    return out;
}

}  // namespace

void LayoutWords::replace(const std::string& key, const std::string& value) {
    (*this)[key] = value;
    places.erase(key);
}

InputError at_its_place(const InputError& error, const LayoutWords& words) {
    const auto place = words.places.find(key_of(error.file));
    if (place == words.places.end() || !error.field.empty()) return error;
    return InputError(place->second.file, place->second.pointer, error.value, error.expected);
}

InputError refusal(const Finding& finding, const LayoutWords& words, const std::string& otherwise) {
    std::string expected = "another layout: " + finding.detail;
    if (!finding.nearest.empty()) expected += " (would do: " + join(finding.nearest, ", ") + ")";
    const auto word = words.find(finding.key);
    if (word == words.end()) return InputError(otherwise, finding.rule, finding.value, expected);
    return at_its_place(InputError(flag_of(finding.key), "", word->second, expected), words);
}

void add_layout_words(const JsonReader& json, LayoutWords& out) {
    std::vector<std::string> known;
    for (const auto& flag : layout_flags()) known.push_back(flag.key);
    for (const auto& [key, value] : json.members()) {
        if (key == "$schema" || key == "version" || key == "made" || key.starts_with("_") ||
            value.is_null())
            continue;
        if (std::find(known.begin(), known.end(), key) == known.end()) {
            const std::string near = nearest_word(key, known);
            throw InputError(
                json.file(), json.pointer() + "/" + key, "an unknown key",
                near.empty() ? "one of " + join(known, ", ") : "\"" + near + "\" perhaps");
        }
        const std::string text = text_of(value);
        if (const auto before = out.find(key); before != out.end() && before->second != text)
            value.fail("\"" + before->second + "\", which " + out.places[key].pointer + " says");
        out[key] = text;
        out.places[key] = {json.file(), value.pointer()};
    }
}

const std::vector<LayoutFlag>& layout_flags() {
    static const std::vector<LayoutFlag> flags = {
        {"tp", "tensor parallel size"},
        {"pp", "pipeline parallel size"},
        {"vpp", "chunks a pipeline rank holds (interleaved schedule; zero_bubble_v: 2)"},
        {"ep", "expert parallel size"},
        {"etp", "expert tensor parallel size (silent: Megatron takes TP, others 1)"},
        {"cp", "context parallel size"},
        {"dp", "data parallel size (silent: the world over TP·CP·PP)"},
        {"micro_batch", "sequences of one micro-batch"},
        {"global_batch", "sequences of one step"},
        {"seq", "tokens of a sequence"},
        {"schedule", "gpipe, 1f1b, interleaved, zero_bubble, zero_bubble_v or dual_pipe"},
        {"stage_layers", "layers of each stage, with commas (with --vpp: of each chunk)"},
        {"pipeline_layout", "a Megatron layout string, as Et|(tt|)*30mL"},
        {"recompute", "none, selective or full"},
        {"recompute_modules",
         "core_attn, moe_act, layernorm, mla_up_proj, mlp, moe, shared_experts; with commas"},
        {"zero",
         "0 … 3: what data parallel ranks share (1 optimizer, 2 and gradients, 3 and weights: "
         "FSDP)"},
        {"precision", "fp32, fp16, bf16, fp8, mxfp8 or nvfp4"},
        {"main_grads", "number format of accumulated gradients: fp32 or bf16"},
        {"dispatcher", "all_gather, all_to_all, deduplicating (deepep, hybridep)"},
        {"sequence_parallel", "split norms and residuals over the tensor parallel ranks", true},
        {"overlap_gradients", "reduce gradients during backward", true},
        {"overlap_parameters", "gather parameters during forward", true},
        {"overlap_tensor", "overlap tensor parallel transfers with their GEMMs", true},
        {"overlap_experts", "overlap dispatch and combine with another micro-batch's compute",
         true},
        {"overlap_shared_experts", "overlap dispatch and combine with the shared experts' compute",
         true},
        {"communication_sms",
         "SMs that an exchange takes from kernels beside it (silent: as the "
         "software does)"},
        {"framework",
         "NAME[@VERSION], whose rules and defaults apply (megatron-core, megatron-bridge, "
         "deepspeed, torchtitan, vllm …)"},
        {"moe_backend", "the framework's expert kernels, where rules depend on them"},
        {"load_balancing",
         "the framework's balancing loss: aux_loss, seq_aux_loss, global_aux_loss, none"},
        {"account_for_embedding_in_pipeline_split",
         "the embedding counts as a layer of the first stage", true},
        {"account_for_loss_in_pipeline_split", "the head counts as a layer of the last stage",
         true},
        {"fusion", "the software's kernel fusion, by name"},
        {"graph_scope", "what runs in CUDA graphs, by name"},
        {"fp8_recipe", "delayed, tensorwise, blockwise, mxfp8"},
    };
    return flags;
}

LayoutWords read_layout_words(const std::string& name_or_file) {
    std::error_code error;
    if (!std::filesystem::exists(name_or_file, error)) {
        if (looks_like_pipeline_layout(name_or_file)) return {{"pipeline_layout", name_or_file}};
        throw InputError("--layout", "", name_or_file,
                         "a file, or a Megatron layout string such as Et|(tt|)*30mL");
    }
    const std::string text = read_text_file(name_or_file);
    if (const auto start = trim(text); !start.empty() && start.front() == '{') {
        const JsonReader json = JsonReader::from_text(text, name_or_file);
        LayoutWords out;
        if (const auto layout = json.find("layout");
            layout && layout->is_object()) {  // a plan's candidate
            add_layout_words(*layout, out);
            if (const auto schedule = json.find("schedule"); schedule && schedule->is_object())
                add_layout_words(*schedule, out);
            return out;
        }
        add_layout_words(json, out);
        return out;
    }
    if (looks_like_script(text))
        return layout_from_megatron(looks_like_yaml(text) ? arguments_of_yaml(text, name_or_file)
                                                          : arguments_of_script(text, name_or_file),
                                    name_or_file);
    if (looks_like_yaml(text))
        return layout_from_megatron(arguments_of_yaml(text, name_or_file), name_or_file);
    if (looks_like_pipeline_layout(text)) return {{"pipeline_layout", std::string(trim(text))}};
    throw InputError(name_or_file, "", "",
                     "a layout: our own JSON (keys are the flags), a Megatron launch script or "
                     "YAML, or a layout string");
}

ResolvedLayout resolve(const LayoutWords& given, const ModelSpec& model,
                       std::optional<int> world_size) {
    const Words words(given);
    {
        std::vector<std::string> known;
        for (const auto& flag : layout_flags()) known.push_back(flag.key);
        for (const auto& [key, value] : given)
            if (std::find(known.begin(), known.end(), key) == known.end()) {
                const std::string near = nearest_word(key, known);
                throw InputError(
                    flag_of(key), "", value,
                    near.empty() ? "a flag of the layout" : flag_of(near) + " perhaps");
            }
    }
    ResolvedLayout out;
    ParallelLayout& layout = out.layout;
    StepSchedule& schedule = out.schedule;

    if (const std::string* framework = words.find("framework")) {
        const auto at = framework->find('@');
        schedule.software.framework = framework->substr(0, at);
        if (at != std::string::npos) schedule.software.release = framework->substr(at + 1);
        out.framework_words["framework"] = *framework;
    }
    for (const auto& [key, field] :
         std::map<std::string, std::string*>{{"fusion", &schedule.software.fusion},
                                             {"graph_scope", &schedule.software.graph_scope},
                                             {"fp8_recipe", &schedule.software.fp8_recipe},
                                             {"moe_backend", &schedule.software.moe_backend},
                                             {"load_balancing", &schedule.software.load_balancing}})
        if (const std::string* text = words.find(key)) {
            *field = *text;
            out.framework_words[key] = *text;
        }
    const FrameworkRules& rules = framework_rules(schedule.software.framework);

    layout.tensor_parallel_size = words.number("tp", 1);
    layout.context_parallel_size = words.number("cp", 1);
    layout.expert_parallel_size = words.number("ep", 1);
    schedule.virtual_pipeline_size = words.number("vpp", 1);
    layout.pipeline_parallel_size = words.number("pp", 1);
    const bool v_shape = words.find("schedule") &&
                         words.choice("schedule", Pipeline::one_f_one_b) == Pipeline::zero_bubble_v;
    if (v_shape && !words.find("vpp") && layout.pipeline_parallel_size > 1) {
        schedule.virtual_pipeline_size = 2;
        assume(out, "vpp", "2", "zero_bubble_v lays two chunks a stage out as a V");
    }

    // A layout string says how many chunks there are; with only one of pp and vpp given, it says
    // the other.
    if (const std::string* text = words.find("pipeline_layout")) {
        const PipelineLayout parsed = parse_pipeline_layout(*text, "--pipeline-layout");
        const int chunks = static_cast<int>(parsed.layers.size());
        out.framework_words["pipeline_layout"] = *text;
        if (!words.find("pp")) {
            layout.pipeline_parallel_size = std::max(1, chunks / schedule.virtual_pipeline_size);
            assume(out, "pp", std::to_string(layout.pipeline_parallel_size),
                   "the layout string has " + std::to_string(chunks) + " stages");
        } else if (!words.find("vpp") && chunks % layout.pipeline_parallel_size == 0) {
            schedule.virtual_pipeline_size = chunks / layout.pipeline_parallel_size;
            if (schedule.virtual_pipeline_size > 1)
                assume(out, "vpp", std::to_string(schedule.virtual_pipeline_size),
                       "the layout string has " + std::to_string(chunks) + " stages");
        }
        schedule.stage_layers = parsed.layers;
        if (parsed.num_mtp_layers > 0 && parsed.num_mtp_layers != model.num_mtp_layers)
            out.broken.push_back({.rule = "mtp_layers",
                                  .detail = "the layout string has " +
                                            std::to_string(parsed.num_mtp_layers) +
                                            " multi-token-prediction layers, the model " +
                                            std::to_string(model.num_mtp_layers),
                                  .key = "pipeline_layout",
                                  .value = *text});
        if (words.find("stage_layers"))
            out.broken.push_back({.rule = "stage_layers",
                                  .detail = "both a layout string and --stage-layers are given",
                                  .key = "stage_layers",
                                  .value = *words.find("stage_layers")});
    } else if (words.find("stage_layers")) {
        schedule.stage_layers = words.numbers("stage_layers", 0, 10'000);
        const int chunks = static_cast<int>(schedule.stage_layers.size());
        if (!words.find("pp") && chunks > 0) {
            layout.pipeline_parallel_size = std::max(1, chunks / schedule.virtual_pipeline_size);
            assume(out, "pp", std::to_string(layout.pipeline_parallel_size),
                   "--stage-layers names " + std::to_string(chunks) + " stages");
        }
    }
    // Megatron can count the embedding and the head as a layer each, of the first and of the last
    // chunk.
    const bool embedding = words.on("account_for_embedding_in_pipeline_split", false),
               loss = words.on("account_for_loss_in_pipeline_split", false);
    const int stages = layout.pipeline_parallel_size * schedule.virtual_pipeline_size;
    if ((embedding || loss) && schedule.stage_layers.empty()) {
        const int counted = static_cast<int>(model.layers.size()) + embedding + loss;
        if (counted % stages != 0) {
            out.broken.push_back({.rule = "layers_per_stage",
                                  .detail = std::to_string(model.layers.size()) +
                                            " layers, with embedding and head as counted " +
                                            std::to_string(counted) + ", over " +
                                            std::to_string(stages) + " stages leave " +
                                            std::to_string(counted % stages),
                                  .key = "pp",
                                  .value = std::to_string(layout.pipeline_parallel_size),
                                  .figures = {{"remainder", counted % stages}}});
        } else {
            schedule.stage_layers.assign(static_cast<std::size_t>(stages), counted / stages);
            if (embedding) --schedule.stage_layers.front();
            if (loss) --schedule.stage_layers.back();
            if (stages == 1) schedule.stage_layers.clear();
        }
    }
    if (embedding) out.framework_words["account_for_embedding_in_pipeline_split"] = "true";
    if (loss) out.framework_words["account_for_loss_in_pipeline_split"] = "true";

    // Expert tensor parallelism: a wrong guess changes which layouts are possible, so the rule is
    // named.
    const bool has_moe = num_moe_layers(model) > 0;
    if (words.find("etp")) {
        layout.expert_tensor_parallel_size = words.number("etp", 1);
    } else if (has_moe) {
        layout.expert_tensor_parallel_size = rules.etp_is_tp ? layout.tensor_parallel_size : 1;
        assume(out, "etp", std::to_string(layout.expert_tensor_parallel_size),
               rules.etp_is_tp ? rules.name + " takes ETP = TP where the flag is missing"
                               : "experts are not split over tensor parallel ranks unless asked");
    }

    // Beyond a million ranks no machine is meant, and products of sizes would leave an int.
    const auto bounded = [&](std::initializer_list<int> sizes, const char* what) {
        long long product = 1;
        for (const int size : sizes)
            if ((product *= size) > kMostRanks)
                throw InputError("layout", "", what,
                                 "at most " + std::to_string(kMostRanks) + " ranks");
    };
    bounded({layout.tensor_parallel_size, layout.context_parallel_size,
             layout.pipeline_parallel_size, words.number("dp", 1)},
            "TP·CP·PP·DP");
    bounded({layout.expert_tensor_parallel_size, layout.expert_parallel_size,
             layout.pipeline_parallel_size},
            "ETP·EP·PP");
    bounded({layout.pipeline_parallel_size, schedule.virtual_pipeline_size}, "PP·VPP");
    const int model_ranks =
        layout.tensor_parallel_size * layout.context_parallel_size * layout.pipeline_parallel_size;
    const bool world_divides =
        world_size && model_ranks <= *world_size && *world_size % model_ranks == 0;
    if (words.find("dp")) {
        layout.data_parallel_size = words.number("dp", 1);
    } else if (world_size) {
        layout.data_parallel_size = std::max(1, *world_size / std::max(1, model_ranks));
        assume(
            out, "dp", std::to_string(layout.data_parallel_size),
            std::to_string(*world_size) + " GPUs over TP·CP·PP = " + std::to_string(model_ranks));
    } else {
        // The least that makes room for the expert groups.
        const long long expert_ranks = static_cast<long long>(layout.expert_parallel_size) *
                                       layout.expert_tensor_parallel_size;
        const int inner = layout.tensor_parallel_size * layout.context_parallel_size;
        layout.data_parallel_size =
            static_cast<int>(expert_ranks / std::gcd(expert_ranks, static_cast<long long>(inner)));
        assume(out, "dp", std::to_string(layout.data_parallel_size),
               "no cluster is named: the least that holds the expert groups");
    }

    schedule.sequence_length = words.number("seq", 4096, 1, 1 << 26);
    if (!words.find("seq")) assume(out, "seq", "4096", "the usual pre-training length");
    schedule.micro_batch_size = words.number("micro_batch", 1);
    if (!words.find("micro_batch")) assume(out, "micro_batch", "1", "the smallest");
    const int sequences = static_cast<int>(std::min<long long>(
        static_cast<long long>(schedule.micro_batch_size) * layout.data_parallel_size,
        kMostRanks * 64LL));
    if (words.find("global_batch")) {
        const int global = words.number("global_batch", 1, 1, 1 << 26);
        schedule.num_micro_batches = std::max(1, global / sequences);
        // Where the world itself does not divide, the batch rule would only repeat that.
        if (global % sequences != 0 && (!world_size || world_divides))
            out.broken.push_back(
                {.rule = "global_batch",
                 .detail = "global batch " + std::to_string(global) +
                           " is no multiple of micro-batch · DP = " + std::to_string(sequences),
                 .key = "global_batch",
                 .value = std::to_string(global),
                 .nearest =
                     global < sequences
                         ? std::vector{std::to_string(sequences)}
                         : std::vector{std::to_string(global / sequences * sequences),
                                       std::to_string((global / sequences + 1) * sequences)}});
    } else {
        // Enough micro-batches that a pipeline is mostly full: bubble (p−1)/(m+p−1) below a fifth.
        schedule.num_micro_batches =
            layout.pipeline_parallel_size == 1 ? 1 : 4 * layout.pipeline_parallel_size;
        assume(out, "global_batch",
               std::to_string(static_cast<long long>(sequences) * schedule.num_micro_batches),
               layout.pipeline_parallel_size == 1 ? "one micro-batch a step"
                                                  : "four micro-batches a pipeline stage");
    }

    schedule.pipeline =
        words.choice("schedule", schedule.virtual_pipeline_size > 1 ? Pipeline::interleaved
                                                                    : Pipeline::one_f_one_b);
    schedule.precision = words.choice("precision", Precision::bf16);
    if (!words.find("precision")) assume(out, "precision", "bf16", "the usual recipe");
    if (const std::string* text = words.find("main_grads")) {
        if (*text == "fp32" || *text == "f32")
            schedule.main_gradients = NumberFormat::f32;
        else if (*text == "bf16")
            schedule.main_gradients = NumberFormat::bf16;
        else
            words.fail("main_grads", "fp32 or bf16");
    } else if (!rules.fp32_main_gradients && schedule.precision != Precision::fp32) {
        schedule.main_gradients = NumberFormat::bf16;
    }
    schedule.sequence_parallel = words.on(
        "sequence_parallel", rules.sequence_parallel_with_tp && layout.tensor_parallel_size > 1);
    schedule.sharding = words.choice("zero", rules.sharding);
    if (!words.find("zero"))
        assume(out, "zero", std::string(name_of(rules.sharding)),
               rules.name.empty() ? "a distributed optimizer" : "the default of " + rules.name);
    if (const std::string* text = words.find("recompute")) {
        if (*text == "full")
            schedule.recompute.full = true;
        else if (*text == "selective")
            schedule.recompute.modules = {"core_attn"};  // Megatron's default module
        else if (*text != "none")
            words.fail("recompute", "none, selective or full");
    }
    if (!words.find("recompute") && !words.find("recompute_modules"))
        assume(out, "recompute", "none", "nothing is rebuilt unless asked");
    if (const std::string* text = words.find("recompute_modules")) {
        static const std::vector<std::string> kModules = {
            "core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts"};
        schedule.recompute.modules.clear();
        std::string list = *text;
        std::replace(list.begin(), list.end(), ' ', ',');
        for (const auto& part : split(list, ',')) {
            const std::string module(trim(part));
            if (module.empty()) continue;
            if (std::find(kModules.begin(), kModules.end(), module) == kModules.end())
                words.fail("recompute_modules", "some of " + join(kModules, ", "));
            schedule.recompute.modules.insert(module);
        }
    }
    schedule.overlap.gradients = words.on("overlap_gradients", true);
    schedule.overlap.parameters = words.on("overlap_parameters", true);
    schedule.overlap.tensor = words.on("overlap_tensor", false);
    schedule.overlap.experts = words.on("overlap_experts", false);
    schedule.overlap.shared_experts = words.on("overlap_shared_experts", false);
    if (words.find("communication_sms"))
        schedule.overlap.communication_sms = words.number("communication_sms", 0, 1, 1024);
    schedule.dispatcher = words.choice("dispatcher", Dispatcher::all_to_all);
    return out;
}

ResolvedLayout resolve_layout(const LayoutWords& words, const ModelSpec& model,
                              std::optional<int> world_size) {
    try {
        return resolve(words, model, world_size);
    } catch (const InputError& error) {
        throw at_its_place(error, words);
    }
}

Json to_json(const StepSchedule& schedule) {
    Json out = Json::object();
    out["seq"] = schedule.sequence_length;
    out["micro_batch"] = schedule.micro_batch_size;
    out["vpp"] = schedule.virtual_pipeline_size;
    out["schedule"] = std::string(name_of(schedule.pipeline));
    if (!schedule.stage_layers.empty()) out["stage_layers"] = schedule.stage_layers;
    out["precision"] = std::string(name_of(schedule.precision));
    out["main_grads"] = schedule.main_gradients == NumberFormat::bf16 ? "bf16" : "fp32";
    out["sequence_parallel"] = schedule.sequence_parallel;
    out["zero"] = std::string(name_of(schedule.sharding));
    out["recompute"] = schedule.recompute.full              ? "full"
                       : schedule.recompute.modules.empty() ? "none"
                                                            : "selective";
    if (!schedule.recompute.modules.empty())
        out["recompute_modules"] = std::vector<std::string>(schedule.recompute.modules.begin(),
                                                            schedule.recompute.modules.end());
    out["dispatcher"] = std::string(name_of(schedule.dispatcher));
    out["overlap_gradients"] = schedule.overlap.gradients;
    out["overlap_parameters"] = schedule.overlap.parameters;
    out["overlap_tensor"] = schedule.overlap.tensor;
    out["overlap_experts"] = schedule.overlap.experts;
    if (schedule.overlap.shared_experts) out["overlap_shared_experts"] = true;
    if (schedule.overlap.communication_sms > 0)
        out["communication_sms"] = schedule.overlap.communication_sms;
    const SoftwareState& software = schedule.software;
    if (!software.framework.empty())
        out["framework"] =
            software.framework + (software.release.empty() ? "" : "@" + software.release);
    for (const auto& [key, text] :
         {std::pair<const char*, const std::string*>{"fusion", &software.fusion},
          {"graph_scope", &software.graph_scope},
          {"fp8_recipe", &software.fp8_recipe},
          {"moe_backend", &software.moe_backend},
          {"load_balancing", &software.load_balancing}})
        if (!text->empty()) out[key] = *text;
    return out;
}

Json layout_to_json(const ParallelLayout& layout, const StepSchedule& schedule) {
    Json out = json_header("layout");
    out.update(to_json(layout));
    Json rest = to_json(schedule);
    rest["global_batch"] = static_cast<long long>(schedule.micro_batch_size) *
                           layout.data_parallel_size * schedule.num_micro_batches;
    out.update(rest);
    return out;
}

}  // namespace moeplan
