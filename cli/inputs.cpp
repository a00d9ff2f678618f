#include "cli/inputs.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>

#include "cli/report/pages.hpp"
#include "core/errors.hpp"
#include "core/output_file.hpp"

namespace moeplan::cli {

void add_model_flag(CLI::App& app, ModelWords& words, bool required) {
    auto* option = app.add_option(
        "--model", words.model,
        "A shipped name (mixtral-8x7b, deepseek-v3 …), or a file: own JSON, Hugging Face "
        "config.json, Megatron script or YAML");
    option->type_name("NAME|FILE");
    if (required) option->required();
}

void add_cluster_flags(CLI::App& app, ClusterWords& words) {
    const std::string group = "Cluster";
    app.add_option("--cluster", words.cluster,
                   "A shipped name with its size (dgx-h100:16 nodes, gb200-nvl72:2 racks), "
                   "localhost, or a file")
        ->type_name("NAME[:N]|FILE")
        ->group(group);
    app.add_option("--gpu", words.gpu, "Make a cluster up from this GPU (h100-sxm, a100-sxm-80 …)")
        ->type_name("GPU")
        ->group(group);
    app.add_option("--nodes", words.nodes, "… with so many nodes")
        ->check(CLI::PositiveNumber)
        ->group(group);
    app.add_option("--gpus-per-node", words.gpus_per_node, "… of so many GPUs")
        ->check(CLI::PositiveNumber)
        ->group(group);
    app.add_option("--gpus", words.gpus, "… or so many GPUs in all, 8 a node")
        ->check(CLI::PositiveNumber)
        ->group(group);
    app.add_option("--nics-per-node", words.nics_per_node, "… and network adapters")
        ->check(CLI::PositiveNumber)
        ->group(group);
    app.add_option("--nic-gbps", words.nic_gbps, "… of so many Gb/s")
        ->check(CLI::PositiveNumber)
        ->group(group);
}

ClusterSpec read_cluster(const ClusterWords& words) {
    if (!words.cluster.empty() && !words.gpu.empty())
        throw InputError("--cluster and --gpu", "", "", "one of them");
    if (!words.cluster.empty()) return load_cluster(words.cluster);
    if (words.gpu.empty())
        throw InputError("--cluster", "", "",
                         "a cluster, as --cluster dgx-h100:8, or --gpu h100-sxm --nodes 8");
    int per_node = words.gpus_per_node.value_or(8), nodes = words.nodes.value_or(1);
    if (words.gpus) {
        if (words.nodes && !words.gpus_per_node) {
            if (*words.gpus % nodes != 0)
                throw InputError("--gpus", "", std::to_string(*words.gpus),
                                 "a multiple of --nodes " + std::to_string(nodes));
            per_node = *words.gpus / nodes;
        } else if (words.nodes && words.gpus_per_node) {
            if (nodes * per_node != *words.gpus)
                throw InputError(
                    "--gpus", "", std::to_string(*words.gpus),
                    "--nodes times --gpus-per-node (" + std::to_string(nodes * per_node) + ")");
        } else {
            per_node = std::min(per_node, *words.gpus);
            if (*words.gpus % per_node != 0)
                throw InputError(
                    "--gpus", "", std::to_string(*words.gpus),
                    "a multiple of " + std::to_string(per_node) + ", or --gpus-per-node");
            nodes = *words.gpus / per_node;
        }
    }
    return make_cluster(words.gpu, nodes, per_node, words.nics_per_node, words.nic_gbps);
}

void add_layout_flags(CLI::App& app, LayoutInput& input) {
    const std::string group = "Layout and schedule";
    app.add_option("--layout", input.layout,
                   "A layout file (keys = these flags), or a Megatron layout string")
        ->type_name("FILE|WORDS")
        ->group(group);
    for (const LayoutFlag& flag : layout_flags()) {
        std::string name = flag.key;
        std::replace(name.begin(), name.end(), '_', '-');
        if (flag.is_switch)
            app.add_flag_function(
                   "--" + name + ",!--no-" + name,
                   [&input, key = flag.key](std::int64_t on) {
                       input.words[key] = on > 0 ? "true" : "false";
                   },
                   flag.help)
                ->group(group);
        else
            app.add_option_function<std::string>(
                   "--" + name,
                   [&input, key = flag.key](const std::string& value) { input.words[key] = value; },
                   flag.help)
                ->group(group);
    }
}

LayoutWords merged_words(const LayoutInput& input) {
    LayoutWords words = input.layout.empty() ? LayoutWords{} : read_layout_words(input.layout);
    for (const auto& [key, value] : input.words) words.replace(key, value);
    return words;
}

ResolvedLayout read_layout(const LayoutInput& input, const ModelSpec& model,
                           std::optional<int> world_size) {
    return resolve_layout(merged_words(input), model, world_size);
}

ResolvedLayout read_sound_layout(const LayoutInput& input, const ModelSpec& model,
                                 std::optional<int> world_size) {
    const LayoutWords words = merged_words(input);
    ResolvedLayout out = resolve_layout(words, model, world_size);
    std::vector<Finding> findings = out.broken;
    for (Finding& finding : check_layout(model, out.layout, out.schedule, world_size.value_or(0)))
        findings.push_back(std::move(finding));
    for (const Finding& finding : findings)
        if (finding.severity == Severity::broken) throw refusal(finding, words, "layout");
    return out;
}

void add_profile_flag(CLI::App& app, std::string& profile) {
    app.add_option("--profile", profile,
                   "What the hardware can do: a shipped name or a file of `moeplan profile`; "
                   "without it the shipped one of the cluster's GPU")
        ->type_name("NAME|FILE");
}

std::shared_ptr<const Profile> read_profile(const std::string& profile,
                                            const ClusterSpec& cluster) {
    auto out =
        std::make_shared<const Profile>(load_profile(profile.empty() ? cluster.gpu.name : profile));
    if (out->name != cluster.gpu.name && cluster.gpu.name != "cpu")
        std::fprintf(stderr,
                     "moeplan: warning: the profile is of %s (%s), the cluster has %s: kernel "
                     "times are the profile's as they stand\n",
                     out->name.c_str(), out->device.c_str(), cluster.gpu.name.c_str());
    return out;
}

void add_routing_flags(CLI::App& app, RoutingInput& input) {
    const std::string group = "Routing";
    app.add_option("--trace", input.trace, "A recorded routing trace")
        ->type_name("FILE")
        ->group(group);
    app.add_option("--routing", input.routing,
                   "Without a trace: balanced, multinomial, zipf:S, hot[:FACTOR], "
                   "document-pools[:E_RHO], token-drop, token-drop-padded")
        ->group(group);
}

SyntheticRouting synthetic_routing(const std::string& word) {
    const auto colon = word.find(':');
    SyntheticRouting out;
    out.kind = word.substr(0, colon);
    std::replace(out.kind.begin(), out.kind.end(), '-', '_');
    const std::vector<std::string>& kinds = synthetic_routing_kinds();
    if (std::find(kinds.begin(), kinds.end(), out.kind) == kinds.end())
        throw InputError(
            "--routing", "", "\"" + word + "\"",
            "balanced, multinomial, zipf:S, hot[:FACTOR], document-pools[:E_RHO], token-drop "
            "or token-drop-padded");
    double number = 0;
    if (colon != std::string::npos) {
        const char* end = word.data() + word.size();
        const auto [at, error] = std::from_chars(word.data() + colon + 1, end, number);
        if (error != std::errc{} || at != end || !(number >= 0) || number > 1e6)
            throw InputError("--routing", "", "\"" + word + "\"",
                             "a number of 0 or more after the colon, as zipf:1.2");
    }
    if (colon != std::string::npos && out.kind != "zipf" && out.kind != "hot" &&
        out.kind != "document_pools")
        throw InputError("--routing", "", "\"" + word + "\"",
                         word.substr(0, colon) + " without a number");
    if (out.kind == "hot" && colon != std::string::npos && number < 1)
        throw InputError("--routing", "", "\"" + word + "\"",
                         "a factor of 1 or more over the mean, as hot:3");
    if (out.kind == "zipf" || out.kind == "hot")
        out.exponent = colon == std::string::npos ? (out.kind == "zipf" ? 1.0 : 3.0) : number;
    if (out.kind == "document_pools") out.document_concentration = number;
    return out;
}

std::variant<SyntheticRouting, std::shared_ptr<const TraceReader>> read_routing(
    const RoutingInput& input) {
    if (!input.trace.empty() && !input.routing.empty())
        throw InputError("--trace and --routing", "", "", "one of them");
    if (!input.trace.empty()) return std::make_shared<const TraceReader>(input.trace);
    return input.routing.empty() ? SyntheticRouting{} : synthetic_routing(input.routing);
}

std::string why_not_writable(const std::string& file) {
    if (file == "-") return {};
    std::error_code error;
    if (std::filesystem::exists(file, error) && !std::filesystem::is_regular_file(file, error) &&
        !std::filesystem::is_directory(file, error))
        return {};  // a device or a pipe is written into
    try {
        const PendingFile pending(file);
        return {};
    } catch (const InputError& wrong) {
        return wrong.what();
    }
}

void add_output_flags(CLI::App& app, OutputWords& words, bool html) {
    app.add_option("--json", words.json, "Write the whole answer (- = standard output)")
        ->type_name("FILE")
        ->check(why_not_writable);
    if (html)
        app.add_option("--html", words.html, "Write one self-contained page")
            ->type_name("FILE")
            ->check(why_not_writable);
}

void write_answer(const OutputWords& words, const Json& answer) {
    if (words.json == "-" && words.html == "-")
        throw InputError("--json and --html", "", "-", "standard output for one of them");
    if (!words.json.empty()) write_whole(words.json, to_file_text(answer));
    write_page(words.html, answer, "");
}

void add_seed_flag(CLI::App& app, std::uint64_t& seed) {
    app.add_option("--seed", seed,
                   "Of everything drawn at random; same seed, same bytes (default 0)")
        ->type_name("N")
        ->check([](const std::string& word) {  // the parser would wrap −1 to 2^64 − 1
            return word.starts_with('-') ? "a seed is a whole number of 0 or more, not " + word
                                         : std::string();
        });
}

}  // namespace moeplan::cli
