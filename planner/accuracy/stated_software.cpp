#include "planner/accuracy/stated_software.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <nlohmann/json.hpp>

#include "core/text.hpp"

namespace moeplan {
namespace {

std::string lower(std::string_view text) {
    std::string out(text);
    std::transform(out.begin(), out.end(), out.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return out;
}

bool contains(std::string_view text, std::string_view part) {
    return text.find(part) != std::string_view::npos;
}

/// Lists print as words: ["attn", "moe_router"] and "[attn moe_router]" alike.
std::string plain(const Json& value) {
    if (value.is_array()) {
        std::vector<std::string> parts;
        for (const Json& item : value) parts.push_back(plain(item));
        return join(parts, " ");
    }
    std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    if (text.starts_with("[")) {
        std::vector<std::string> parts;
        for (const std::string& word : lower_words(text)) parts.push_back(word);
        return join(parts, " ");
    }
    const std::string small = lower(text);
    return small == "true" || small == "false" || small == "none" ? small : text;
}

std::string text_at(const Json& object, const char* key) {
    const auto found = object.is_object() ? object.find(key) : object.end();
    return !object.is_object() || found == object.end() || found->is_null() ? "" : plain(*found);
}

/// The first match decides; more telling names first.
std::string framework_of(const std::string& software) {
    static constexpr std::array<std::pair<std::string_view, std::string_view>, 18> kNames = {{
        {"megatron bridge", "megatron-bridge"},
        {"megatron-bridge", "megatron-bridge"},
        {"automodel", "nemo-automodel"},
        {"megatron-deepspeed", "megatron-deepspeed"},
        {"megatron-core", "megatron-core"},
        {"megatron core", "megatron-core"},
        {"mcore", "megatron-core"},
        {"megatron-lm", "megatron-lm"},
        {"megatron", "megatron-lm"},
        {"nemo", "nemo"},
        {"torchtitan", "torchtitan"},
        {"llm foundry", "llm-foundry"},
        {"llm-foundry", "llm-foundry"},
        {"composer", "llm-foundry"},
        {"oneflow", "oneflow"},
        {"megascale", "megascale"},
        {"deepspeed", "deepspeed"},
        {"maxtext", "maxtext"},
    }};
    const std::string text = lower(software);
    for (const auto& [part, name] : kNames)
        if (contains(text, part)) return std::string(name);
    return software;
}

/// "26.04.01", "0.14", "25.04.rc2": the first word that begins with a digit (after a "v") and has a
/// dot; else "April 2021" as 2021-04; else "dev"; else the date of the source.
std::string release_of(const std::string& software, const std::string& date) {
    // Versions behind the first comma are of libraries: "Megatron-LM 8aa4619, NGC PyTorch 20.12".
    for (const std::string& word : lower_words(split(software + ",", ',').front())) {
        const std::string number = word.starts_with("v") ? word.substr(1) : word;
        if (!number.empty() && std::isdigit(static_cast<unsigned char>(number[0])) &&
            contains(number, "."))
            return number;
    }
    static constexpr std::array<std::string_view, 12> kMonths = {
        "january", "february", "march",     "april",   "may",      "june",
        "july",    "august",   "september", "october", "november", "december"};
    const auto words = lower_words(software);
    for (std::size_t i = 0; i + 1 < words.size(); ++i)
        for (std::size_t m = 0; m < kMonths.size(); ++m)
            if (words[i] == kMonths[m] && words[i + 1].size() == 4)
                return words[i + 1] + "-" + (m < 9 ? "0" : "") + std::to_string(m + 1);
    for (const std::string& word : words)
        if (word == "dev" || word == "nightly") return "dev";
    return date;
}

std::string graph_scope_of(const Json& workload,
                           const std::map<std::string, std::string>& arguments) {
    const auto argument = [&](const char* key) {
        const auto found = arguments.find(key);
        return found == arguments.end() ? std::string() : found->second;
    };
    std::string text = argument("cuda_graph_scope");
    if (text.empty() && workload.is_object() && workload.contains("cuda_graph"))
        text = workload["cuda_graph"].is_null() ? "none" : plain(workload["cuda_graph"]);
    if (text.empty()) {
        const std::string features = lower(text_at(workload, "features"));
        if (contains(features, "full cg") || contains(features, "fullcg")) return "full_iteration";
        if (contains(features, "router/preprocess cg")) return "moe_preprocess,moe_router";
        if (contains(features, "partial cg")) return "attn,moe_preprocess,moe_router";
        return argument("cuda_graph_impl") == "none" ? "none" : "";
    }
    std::set<std::string> scopes;
    for (const std::string& word : lower_words(text)) {
        if (word == "none") return "none";
        if (word == "full_iteration" || word == "full") return "full_iteration";
        if (word == "attn" || word == "mlp" || word == "moe" || word == "mamba" ||
            word.starts_with("moe_"))
            scopes.insert(word);
    }
    return join({scopes.begin(), scopes.end()}, ",");
}

std::string fp8_recipe_of(const std::string& framework, const Json& workload,
                          const std::map<std::string, std::string>& arguments) {
    if (const auto found = arguments.find("fp8_recipe"); found != arguments.end())
        return found->second;
    const std::string precision = lower(text_at(workload, "precision"));
    const auto says = [&](std::initializer_list<std::string_view> parts) {
        return std::any_of(parts.begin(), parts.end(),
                           [&](std::string_view part) { return contains(precision, part); });
    };
    // "FP8-CS (FP8-MX)": the value without brackets is the first
    if (says({"fp8-cs", "fp8_cs", "fp8cs", "current scaling", "tensorwise"})) return "tensorwise";
    if (says({"rowwise"})) return "rowwise";
    if (says({"blockwise", "fp8-sc", "subchannel"})) return "blockwise";
    if (says({"mxfp8", "fp8-mx", "fp8mx"})) return "mxfp8";
    if (says({"nvfp4"})) return "nvfp4";
    if (says({"delayed", "fp8-ds"})) return "delayed";
    if (!says({"fp8", "float8"})) return "";
    const std::string function = workload.is_object() && workload.contains("recipe")
                                     ? lower(text_at(workload["recipe"], "function"))
                                     : "";
    if (contains(function, "fp8cs")) return "tensorwise";
    if (contains(function, "fp8mx")) return "mxfp8";
    // torchtitan's "float8" without a word is tensorwise; Transformer Engine under Composer's
    // amp_fp8 and in NeMo before 25 scales with a delay.
    if (framework == "torchtitan") return "tensorwise";
    if (contains(precision, "amp_fp8")) return "delayed";
    return "";
}

std::optional<bool> truth(const std::string& text) {
    if (text == "true" || text == "1" || text == "on") return true;
    if (text == "false" || text == "0" || text == "none" || text == "off") return false;
    return std::nullopt;
}

}  // namespace

std::vector<std::string> lower_words(std::string_view text) {
    std::vector<std::string> out;
    std::string word;
    const auto end = [&] {
        while (!word.empty() && word.back() == '.') word.pop_back();
        if (!word.empty()) out.push_back(std::move(word));
        word.clear();
    };
    for (const char c : text) {
        const auto u = static_cast<unsigned char>(c);
        if (std::isalnum(u) || c == '_' || c == '.')
            word += static_cast<char>(std::tolower(u));
        else
            end();
    }
    end();
    return out;
}

std::map<std::string, std::string> stated_arguments(const Json& workload) {
    std::map<std::string, std::string> out;
    const auto take = [&](const Json& object) {
        if (!object.is_object()) return;
        for (const auto& [key, value] : object.items()) {
            if (value.is_null()) continue;
            std::string name = key;
            std::replace(name.begin(), name.end(), '-', '_');
            out.emplace(name, plain(value));
        }
    };
    if (!workload.is_object()) return out;
    if (const auto found = workload.find("megatron_args"); found != workload.end()) take(*found);
    if (const auto found = workload.find("recipe"); found != workload.end() && found->is_object())
        if (const auto knobs = found->find("knobs"); knobs != found->end()) take(*knobs);
    return out;
}

StatedSoftware stated_software(const std::string& software, const std::string& date,
                               const Json& workload, const std::string& notes) {
    StatedSoftware out;
    const auto arguments = stated_arguments(workload);
    const auto argument = [&](const char* key) {
        const auto found = arguments.find(key);
        return found == arguments.end() ? std::string() : found->second;
    };
    SoftwareState& state = out.state;
    state.framework = framework_of(software);
    state.release = release_of(software, date);
    state.graph_scope = graph_scope_of(workload, arguments);
    state.fp8_recipe = fp8_recipe_of(state.framework, workload, arguments);

    // The dispatcher: a field, Megatron's arguments, or a word among features and kernels.
    const std::string features = lower(text_at(workload, "features")),
                      dispatcher = lower(text_at(workload, "dispatcher") + " " +
                                         argument("moe_flex_dispatcher_backend") + " " +
                                         text_at(workload, "kernels") + " " + software) +
                                   " " + features;
    const std::string type = argument("moe_token_dispatcher_type");
    if (contains(dispatcher, "hybridep")) {
        state.moe_backend = "hybridep";
        out.dispatcher = Dispatcher::deduplicating;
    } else if (contains(dispatcher, "deepep")) {
        state.moe_backend = "deepep";
        out.dispatcher = Dispatcher::deduplicating;
    } else if (type == "alltoall" || contains(dispatcher, "alltoall") ||
               contains(dispatcher, "all-to-all")) {
        state.moe_backend = "alltoall";
        out.dispatcher = Dispatcher::all_to_all;
    } else if (type == "allgather" || contains(dispatcher, "allgather")) {
        state.moe_backend = "allgather";
        out.dispatcher = Dispatcher::all_gather;
    }

    // Expert overlap: a switch, or the words of a table.
    const std::string overlap = lower(text_at(workload, "ep_overlap"));
    if (!overlap.empty())
        out.overlap_experts = truth(overlap).value_or(contains(overlap, "overlap"));
    for (const char* key : {"overlap_moe_expert_parallel_comm", "moe_a2a_overlap"})
        if (const auto on = truth(argument(key))) out.overlap_experts = on;
    if (!out.overlap_experts &&
        (contains(features, "ep overlap") || contains(lower(notes), "ep overlap")))
        out.overlap_experts = true;

    out.sequence_parallel = truth(lower(text_at(workload, "sequence_parallel")));
    if (const auto on = truth(argument("sequence_parallel"))) out.sequence_parallel = on;
    if (contains(lower(text_at(workload, "overlap")), "not overlapped"))
        out.overlap_gradients = out.overlap_parameters = false;
    if (const auto on = truth(argument("overlap_grad_reduce"))) out.overlap_gradients = on;
    if (const auto on = truth(argument("overlap_param_gather"))) out.overlap_parameters = on;
    const std::string tensor = lower(text_at(workload, "tp_overlap"));
    if (!tensor.empty()) out.overlap_tensor = contains(tensor, "async");
    if (contains(lower(text_at(workload, "variant")), "async tp")) out.overlap_tensor = true;
    if (const auto on = truth(argument("tp_comm_overlap")))
        out.overlap_tensor = on;
    else if (!argument("tp_comm_overlap_cfg").empty())
        out.overlap_tensor = true;

    std::set<std::string> fusion;
    const auto flag = [&](const std::string& text, const char* yes, const char* no) {
        if (const auto on = truth(lower(text)); on && (*on ? yes : no))
            fusion.insert(*on ? yes : no);
    };
    flag(text_at(workload, "permute_fusion"), "permute", "no_permute");
    flag(argument("moe_permute_fusion"), "permute", "no_permute");
    flag(text_at(workload, "cross_entropy_fusion"), "cross_entropy", nullptr);
    flag(argument("cross_entropy_loss_fusion"), "cross_entropy", nullptr);
    flag(text_at(workload, "compile"), "compile", "eager");
    flag(argument("moe_paged_stash"), "paged_stash", nullptr);
    flag(argument("delay_wgrad_compute"), "delay_wgrad", nullptr);
    const std::string precision = lower(text_at(workload, "precision"));
    if (contains(precision, "eager")) fusion.insert("eager");
    if (contains(precision, "compile")) fusion.insert("compile");
    if (contains(features, "paged stash")) fusion.insert("paged_stash");
    if (contains(overlap, "delay_wgrad")) fusion.insert("delay_wgrad");
    if (contains(lower(text_at(workload, "kernels")), "flexattn")) fusion.insert("flex_attention");
    if (lower(text_at(workload, "mixed_precision_mode")) == "pure") fusion.insert("pure_16_bit");
    state.fusion = join({fusion.begin(), fusion.end()}, ",");

    const std::string layout = argument("pipeline_model_parallel_layout");
    if (!layout.empty() && layout != "none") out.pipeline_layout = layout;
    out.embedding_counts_as_layer =
        truth(argument("account_for_embedding_in_pipeline_split")).value_or(false);
    out.head_counts_as_layer =
        truth(argument("account_for_loss_in_pipeline_split")).value_or(false);
    return out;
}

}  // namespace moeplan
