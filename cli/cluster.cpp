/// `moeplan cluster show|import|export`: what a cluster is, from and to the files people have.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/command.hpp"
#include "cli/inputs.hpp"
#include "cli/table.hpp"
#include "core/errors.hpp"
#include "core/output_file.hpp"
#include "core/quantity_text.hpp"
#include "simulator/cluster_spec.hpp"
#include "simulator/link_graph.hpp"
#include "simulator/topology/drawing.hpp"
#include "simulator/topology/import.hpp"

namespace moeplan::cli {
namespace {

/// Above this the maximum flow takes minutes; the links' table says as much.
constexpr int kMostGpusCut = 8192;

struct ShowWords {
    std::string cluster;
    OutputWords output;
};
struct ImportFlags {
    std::string file, out;
    ImportWords words;
    OutputWords output;
};
struct ExportFlags {
    std::string cluster, to = "simgrid", out = "-";
};

/// What a page draws.
Json to_json(const Drawing& drawing) {
    Json vertices = Json::array(), lines = Json::array();
    for (const auto& vertex : drawing.vertices)
        vertices.push_back({{"name", vertex.name},
                            {"kind", std::string(name_of(vertex.kind))},
                            {"row", vertex.row},
                            {"node", vertex.node}});
    for (const auto& line : drawing.lines)
        lines.push_back({{"from", line.from},
                         {"to", line.to},
                         {"bandwidth", line.bandwidth.value},
                         {"level", line.level == Level::scale_up ? "scale_up" : "scale_out"}});
    return {{"vertices", vertices}, {"lines", lines}, {"gpus_left_out", drawing.gpus_left_out}};
}

/// The whole answer: the cluster as its file has it, and what follows from it.
Json answer_of(const ClusterSpec& cluster, const LinkGraph& graph, bool drawn) {
    Json out = to_json(cluster);
    out["gpus"] = graph.num_gpus;
    out["gpus_per_domain"] = gpus_per_domain(cluster);
    out["links"] = Json::array();
    for (const LinkKind& kind : link_kinds(graph))
        out["links"].push_back(
            {{"kind", kind.name},
             {"count", kind.count},
             {"bandwidth", kind.bandwidth.value},
             {"level", kind.level == Level::scale_up ? "scale_up" : "scale_out"}});
    const Hops way = hops(graph);
    out["hops"] = {{"fewest", way.fewest},
                   {"most", way.most},
                   {"mean", way.mean},
                   {"longest_latency_s", way.longest_latency.value}};
    if (graph.num_gpus <= kMostGpusCut)
        out["bisection_bandwidth"] = bisection_bandwidth(graph).value;
    if (drawn) out["drawing"] = to_json(drawing_of(graph));
    return out;
}

void print(const ClusterSpec& cluster, const Json& answer) {
    fmt::print("{}: {} nodes of {} GPUs = {} GPUs {} ({} a NVLink domain)\n", cluster.name,
               cluster.num_nodes, cluster.gpus_per_node, num_gpus(cluster), cluster.gpu.name,
               gpus_per_domain(cluster));
    fmt::print("GPU        memory {} at {}, {} SMs, L2 {}\n", to_text(cluster.gpu.memory),
               to_text(cluster.gpu.memory_bandwidth), cluster.gpu.num_sms, to_text(cluster.gpu.l2));
    std::string peaks;
    for (const auto& [precision, rate] : cluster.gpu.peak)
        peaks += fmt::format("{}{} {}", peaks.empty() ? "" : ", ", name_of(precision), to_text(rate));
    fmt::print("           dense peak {}\n", peaks);
    const auto level = [](const char* name, const LinkSpec& link) {
        fmt::print("{}  {} a way, {} of which {:.3g} usable, latency {}\n", name,
                   to_text(link.bandwidth), to_text(link.usable()), link.efficiency,
                   to_text(link.latency));
    };
    level("scale-up ", cluster.scale_up);
    level("scale-out", cluster.scale_out);
    fmt::print("collective launch {}{}\n\n", to_text(cluster.collective_launch),
               cluster.in_switch_reduction ? ", in-switch reduction" : "");
    Table table({"links", "count", "rate", "level"});
    for (const auto& kind : answer["links"])
        table.row({kind["kind"].get<std::string>(), std::to_string(kind["count"].get<long>()),
                   to_text(BytesPerSecond{kind["bandwidth"].get<double>()}),
                   kind["level"].get<std::string>()});
    std::fputs(table.text().c_str(), stdout);
    if (answer.contains("bisection_bandwidth"))
        fmt::print("\nbisection {} one way, ",
                   to_text(BytesPerSecond{answer["bisection_bandwidth"].get<double>()}));
    else
        fmt::print("\nbisection not computed above {} GPUs, ", kMostGpusCut);
    const auto& way = answer["hops"];
    fmt::print("hops {} to {} (mean {:.3g}), longest latency {}\n", way["fewest"].get<int>(),
               way["most"].get<int>(), way["mean"].get<double>(),
               to_text(Seconds{way["longest_latency_s"].get<double>()}));
    for (const auto& line : cluster.assumed) fmt::print("assumed: {}\n", line);
    if (!cluster.source.empty()) fmt::print("source: {}\n", cluster.source);
}

int show(const ShowWords& words) {
    if (words.cluster.empty()) {
        Json answer = Json::array();
        Table table({"cluster", "nodes", "GPUs", "GPU", "scale-up", "scale-out", "memory"});
        for (const auto& name : shipped_clusters()) {
            const ClusterSpec cluster = load_cluster(name);
            table.row({name, std::to_string(cluster.num_nodes), std::to_string(num_gpus(cluster)),
                       cluster.gpu.name, to_text(cluster.scale_up.bandwidth),
                       to_text(cluster.scale_out.bandwidth), to_text(cluster.gpu.memory)});
            answer.push_back(name);
        }
        write_answer(words.output, Json{{"clusters", answer}});
        if (!words.output.quiet()) std::fputs(table.text().c_str(), stdout);
        return kDone;
    }
    const ClusterSpec cluster = load_cluster(words.cluster);
    const Json answer = answer_of(cluster, build_link_graph(cluster), !words.output.html.empty());
    write_answer(words.output, answer);
    if (!words.output.quiet()) print(cluster, answer);
    return kDone;
}

int import(const ImportFlags& flags) {
    const ClusterSpec cluster = import_cluster(flags.file, flags.words);
    const Json answer = answer_of(cluster, build_link_graph(cluster), !flags.output.html.empty());
    if (!flags.out.empty()) write_whole(flags.out, to_file_text(to_json(cluster)));
    write_answer(flags.output, answer);
    if (!flags.output.quiet() && flags.out != "-") print(cluster, answer);
    return kDone;
}

int export_cluster(const ExportFlags& flags) {
    const ClusterSpec cluster = load_cluster(flags.cluster);
    write_whole(flags.out, flags.to == "json" ? to_file_text(to_json(cluster)) : to_simgrid_xml(cluster));
    return kDone;
}

}  // namespace

void add_cluster(CLI::App& app, Run& run) {
    CLI::App* cluster = app.add_subcommand("cluster", "What a cluster is: GPUs, links, bisection");
    cluster->require_subcommand(1);

    auto show_words = std::make_shared<ShowWords>();
    CLI::App* show_app = cluster->add_subcommand("show", "A cluster in numbers; without a name, all shipped ones");
    show_app->add_option("cluster", show_words->cluster, "A shipped name with its size, localhost, or a file")->type_name("NAME[:N]|FILE");
    add_output_flags(*show_app, show_words->output);
    show_app->footer("Example: moeplan cluster show dgx-h100:16 --html cluster.html");
    show_app->callback([=, &run] { run = [=] { return show(*show_words); }; });

    auto import_flags = std::make_shared<ImportFlags>();
    CLI::App* import_app = cluster->add_subcommand("import", "Read SimGrid platform XML, NCCL topology XML (NCCL_TOPO_DUMP_FILE) or nvidia-smi topo -m");
    import_app->add_option("file", import_flags->file, "The file; its format is told from its content")->required()->type_name("FILE");
    import_app->add_option("--gpu", import_flags->words.gpu, "The GPU, where the file does not name it (h100-sxm …)")->type_name("GPU");
    import_app->add_option("--nodes", import_flags->words.num_nodes, "So many such nodes")->check(CLI::PositiveNumber);
    import_app->add_option("--out", import_flags->out, "Write the cluster file here")->type_name("FILE");
    add_output_flags(*import_app, import_flags->output);
    import_app->footer("Example: nvidia-smi topo -m > topo.txt && moeplan cluster import topo.txt --nodes 16 --out my.json");
    import_app->callback([=, &run] { run = [=] { return import(*import_flags); }; });

    auto export_flags = std::make_shared<ExportFlags>();
    CLI::App* export_app = cluster->add_subcommand("export", "Write a cluster as a SimGrid platform, or as its own JSON");
    export_app->add_option("cluster", export_flags->cluster, "A shipped name with its size, or a file")->required()->type_name("NAME[:N]|FILE");
    export_app->add_option("--to", export_flags->to, "simgrid or json")->check(CLI::IsMember({"simgrid", "json"}));
    export_app->add_option("--out", export_flags->out, "The file (default: standard output)")->type_name("FILE");
    export_app->footer("Example: moeplan cluster export dgx-h100:2 --out dgx.xml");
    export_app->callback([=, &run] { run = [=] { return export_cluster(*export_flags); }; });
}

}  // namespace moeplan::cli
