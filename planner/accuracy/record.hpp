#pragma once
/// Published measurements, as validation/published/README.md describes their forms.

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/json.hpp"
#include "core/number_format.hpp"
#include "core/units.hpp"
#include "model/model_spec.hpp"
#include "model/step_schedule.hpp"
#include "planner/accuracy/stated_software.hpp"

namespace moeplan {

/// Who measured it, and where it stands.
struct RecordSource {
    std::string title, repository, path, table, date;
};

enum class Recomputation : std::uint8_t { none, selective, full };

/// Network adapters of a node, where the source states them.
struct StatedNetwork {
    std::optional<int> nics_per_node;
    std::optional<double> nic_gbps;  ///< of one adapter, one direction
};

/// The same recipe in another release, at tokens a second a GPU.
struct OtherRelease {
    std::string release;
    double tokens_per_second = 0;
};

/// One whole training step, measured.
struct TrainingRecord {
    std::string id, model_name, kind, notes;
    RecordSource source;
    std::string sweep;  ///< of a table of runs: its id; empty for records of their own
    ModelSpec model;
    std::vector<std::string> model_assumptions;  ///< what the architecture left open
    std::string gpu;                             ///< id of a shipped cluster and profile
    int gpus = 1;
    std::optional<int> gpus_per_node;
    StatedNetwork network;
    int seq = 0, micro_batch = 0, global_batch = 0;
    int tp = 1, pp = 1, vpp = 1, cp = 1, ep = 1;
    std::optional<int> etp;
    Precision precision = Precision::bf16;
    std::optional<Recomputation> recompute;
    std::string recompute_modules;  ///< in the source's words
    std::optional<Sharding> sharding;
    std::optional<std::string> routing;  ///< balanced, token_drop, natural
    StatedSoftware software;
    std::optional<Seconds> step_time;
    std::optional<double> tflops_per_gpu;
    std::string tflops_convention;
    std::optional<Bytes> peak_memory;
    std::string peak_memory_kind;  ///< allocated, reserved
    std::vector<OtherRelease> other_releases;
};

/// A curve or point of a collective or a kernel: read by those who predict them.
struct CurveRecord {
    std::string id, group;  ///< collectives, kernels
    std::string source;     ///< title
    JsonReader value;       ///< the record as it stands
};

/// What cannot be predicted, and why. Told, counted, never guessed.
struct SkippedRecord {
    std::string id, group, source, reason;
    std::string rule;  ///< short, for counting: not_a_target, missing, unknown_gpu, layout …
};

using Record = std::variant<TrainingRecord, CurveRecord, SkippedRecord>;

/// Every record of a file: a list, one record, or a table of runs (columns and rows). A record
/// whose fields are wrong becomes a SkippedRecord; a file that is no JSON, or of no known form, an
/// InputError.
std::vector<Record> read_records(const JsonReader& file);

/// All files in order; an id that came before is skipped as a duplicate.
std::vector<Record> read_record_files(const std::vector<std::string>& files);

const std::string& id_of(const Record&);

/// A model from the `architecture` of a record. @param assumptions  what had to be taken for
/// granted  @param sequence_length  as many positions are learned, where they are  @throws
/// InputError
ModelSpec model_of_architecture(const JsonReader& architecture, const std::string& name,
                                int sequence_length,
                                const std::map<std::string, std::string>& arguments,
                                std::vector<std::string>& assumptions);

/// "InfiniBand NDR 400 Gb/s per GPU (8 NICs per node)", "1x ConnectX-4" → adapters.
StatedNetwork stated_network(const std::string& inter, const std::string& nic, int gpus_per_node);

}  // namespace moeplan
