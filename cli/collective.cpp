/// `moeplan collective`: time and bandwidths of one collective over sizes, as nccl-tests prints
/// them.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>

#include "cli/command.hpp"
#include "cli/inputs.hpp"
#include "cli/table.hpp"
#include "core/errors.hpp"
#include "core/memory_steps.hpp"
#include "core/text.hpp"
#include "profiler/profile.hpp"
#include "simulator/collective_table.hpp"
#include "simulator/link_graph.hpp"

namespace moeplan::cli {
namespace {

struct Words {
    std::string collective, bytes, algorithm = "automatic", matrix = "uniform",
                                   fidelity = "closed-form", profile;
    std::optional<int> ranks;
    ClusterWords cluster;
    OutputWords output;
};

template <class E>
E choice(const char* flag, std::string word) {
    for (char& c : word)
        if (c == '-') c = '_';
    if (const auto value = from_name<E>(word)) return *value;
    throw InputError(flag, "", "\"" + word + "\"", choices<E>());
}

int collective(const Words& words) {
    take_memory_in_large_steps();
    const auto kind = choice<Collective>("collective", words.collective);
    const auto algorithm = choice<Algorithm>("--algorithm", words.algorithm);
    const auto fidelity = words.fidelity == "flow" ? Fidelity::flow : Fidelity::closed_form;
    const ClusterSpec cluster = read_cluster(words.cluster);
    const int ranks = words.ranks.value_or(num_gpus(cluster));
    if (ranks > num_gpus(cluster))
        throw InputError("--ranks", "", std::to_string(ranks),
                         fmt::format("at most the {} GPUs of {}", num_gpus(cluster), cluster.name));
    std::vector<int> group(static_cast<std::size_t>(ranks));
    std::iota(group.begin(), group.end(), 0);
    const bool from_file = words.matrix != "uniform" && words.matrix.compare(0, 5, "zipf:") != 0;
    if (words.bytes.empty() && !from_file)
        throw InputError("--bytes", "", "", "sizes, as --bytes 64M or --bytes 1K..1G");
    const auto sizes = words.bytes.empty() ? std::vector<Bytes>{} : read_sizes(words.bytes);
    // A device that no shipped profile knows: the cluster's stated efficiencies alone.
    std::shared_ptr<const Profile> profile;
    const auto shipped = shipped_profiles();
    if (!words.profile.empty() ||
        std::find(shipped.begin(), shipped.end(), cluster.gpu.name) != shipped.end())
        profile = read_profile(words.profile, cluster);

    const LinkGraph graph = build_link_graph(cluster);
    const CollectiveTable answer = collective_table(graph, kind, algorithm, group, sizes,
                                                    {words.matrix}, fidelity, profile.get());
    Json json = to_json(answer);
    json["cluster"] = cluster.name;
    write_answer(words.output, json);
    if (words.output.quiet()) return kDone;
    fmt::print("# {} over {} ranks of {}, {} ({})\n", name_of(kind), ranks, cluster.name,
               words.fidelity, answer.engine);
    Table table({"size (B)", "time (us)", "algbw (GB/s)", "busbw (GB/s)", "algorithm"});
    for (const auto& row : answer.rows)
        table.row({fmt::format("{:.0f}", row.bytes.value),
                   fmt::format("{:.2f}", row.time.value * 1e6),
                   fmt::format("{:.2f}", row.algorithm_bandwidth.value / 1e9),
                   fmt::format("{:.2f}", row.bus_bandwidth.value / 1e9), row.algorithm});
    std::fputs(table.text().c_str(), stdout);
    return kDone;
}

}  // namespace

void add_collective(CLI::App& app, Run& run) {
    auto words = std::make_shared<Words>();
    CLI::App* sub = app.add_subcommand(
        "collective", "Time and bandwidth of one collective, as nccl-tests prints them");
    sub->add_option("name", words->collective,
                    "all_reduce, all_gather, reduce_scatter, all_to_all, send_recv, broadcast")
        ->required()
        ->type_name("NAME");
    sub->add_option(
           "--bytes", words->bytes,
           "Sizes as nccl-tests counts them: 64M, 1K,1M, or a range 8..1G (doubling), 1K..1G*4")
        ->type_name("SIZE[,…]");
    sub->add_option("--ranks", words->ranks, "The first so many GPUs (default: all)")
        ->check(CLI::PositiveNumber);
    sub->add_option("--algorithm", words->algorithm,
                    "automatic, ring, double_binary_tree, nvls, hierarchical; all_to_all: direct, "
                    "pairwise, two_level")
        ->type_name("NAME");
    sub->add_option("--matrix", words->matrix,
                    "What an all_to_all sends: uniform, zipf:S, or a file of n × n bytes")
        ->type_name("FILE|zipf:S|uniform");
    sub->add_option("--fidelity", words->fidelity, "closed-form or flow")
        ->check(CLI::IsMember({"closed-form", "flow"}));
    add_cluster_flags(*sub, words->cluster);
    add_profile_flag(*sub, words->profile);
    add_output_flags(*sub, words->output);
    sub->footer(
        "Example: moeplan collective all_to_all --bytes 1M..1G --ranks 16 --cluster dgx-h100:2 "
        "--fidelity flow");
    sub->callback([=, &run] { run = [=] { return collective(*words); }; });
}

}  // namespace moeplan::cli
