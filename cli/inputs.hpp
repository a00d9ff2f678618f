#pragma once
/// The words that several subcommands share: --model, --cluster, the layout's flags, --profile,
/// --json … and how they are read.

#include <memory>
#include <optional>
#include <string>

#include "core/json.hpp"
#include "model/layout_words.hpp"
#include "model/model_spec.hpp"
#include "profiler/profile.hpp"
#include "simulator/cluster_spec.hpp"
#include "simulator/step.hpp"

namespace CLI {
class App;
}

namespace moeplan::cli {

/// --model NAME|FILE
struct ModelWords {
    std::string model;
};
void add_model_flag(CLI::App&, ModelWords&, bool required = true);

/// --cluster NAME[:N]|FILE, or --gpu H --nodes N --gpus-per-node G [--nics-per-node N --nic-gbps
/// X].
struct ClusterWords {
    std::string cluster, gpu;
    std::optional<int> nodes, gpus_per_node, gpus, nics_per_node;
    std::optional<double> nic_gbps;
    bool given() const { return !cluster.empty() || !gpu.empty(); }
};
void add_cluster_flags(CLI::App&, ClusterWords&);
/// @throws InputError if nothing was given, or both forms
ClusterSpec read_cluster(const ClusterWords&);

/// --layout NAME|FILE and every flag of `layout_flags()`; switches also have a --no- form.
struct LayoutInput {
    std::string layout;
    LayoutWords words;  ///< what single flags said; they replace the file's
};
void add_layout_flags(CLI::App&, LayoutInput&);
LayoutWords merged_words(const LayoutInput&);
ResolvedLayout read_layout(const LayoutInput&, const ModelSpec&, std::optional<int> world_size);
/// For commands that do something with a layout rather than judge it.
/// @throws InputError  at the first rule that it breaks
ResolvedLayout read_sound_layout(const LayoutInput&, const ModelSpec&,
                                 std::optional<int> world_size);

/// --profile NAME|FILE; without it the shipped profile of the cluster's GPU.
void add_profile_flag(CLI::App&, std::string& profile);
std::shared_ptr<const Profile> read_profile(const std::string& profile, const ClusterSpec&);

/// --trace FILE, --routing balanced|multinomial|zipf:S|hot|document-pools[:E·ρ]|token-drop
struct RoutingInput {
    std::string trace, routing;
};
void add_routing_flags(CLI::App&, RoutingInput&);
std::variant<SyntheticRouting, std::shared_ptr<const TraceReader>> read_routing(
    const RoutingInput&);
SyntheticRouting synthetic_routing(const std::string& word);

/// --json FILE, --html FILE ("-": standard output, then nothing else is printed there).
struct OutputWords {
    std::string json, html;
    bool quiet() const { return json == "-" || html == "-"; }
};
void add_output_flags(CLI::App&, OutputWords&, bool html = true);
/// Before the work and not after it: an answer of hours must not be lost to a wrong folder. A check
/// of a flag; empty where a file can be written.
std::string why_not_writable(const std::string& file);
/// Writes the answer if --json was given, its page if --html was.
void write_answer(const OutputWords&, const Json& answer);

/// --seed N (default 0)
void add_seed_flag(CLI::App&, std::uint64_t& seed);

}  // namespace moeplan::cli
