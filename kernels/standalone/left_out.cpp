// What the trainer can do only in the full build (JSON, HDF5): here it says so.

#include <nlohmann/json.hpp>

#include "core/errors.hpp"
#include "model/checkpoint.hpp"
#include "model/trace_recorder.hpp"

namespace moeplan {
namespace {

[[noreturn]] void only_in_the_full_build(const char* what) {
    throw EnvironmentError(std::string(what) + " needs the full build (cmake --preset release): this one is for machines with a GPU and little else");
}

}  // namespace

Json to_json(const ModelSpec& model) { return model.name; }
Json to_json(const ParallelLayout& layout) { return layout.data_parallel_size; }   // for the state of checkpoints alone

void save_checkpoint(const std::filesystem::path&, const CheckpointState&, Runtime&, Transformer&, const RankGroups&, const Communicator&) {
    only_in_the_full_build("a checkpoint");
}
std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path&) { only_in_the_full_build("a checkpoint"); }
CheckpointState read_checkpoint_state(const std::filesystem::path&) { only_in_the_full_build("a checkpoint"); }
void load_checkpoint(const std::filesystem::path&, Runtime&, Transformer&) { only_in_the_full_build("a checkpoint"); }

struct TraceWriter::File {};
TraceWriter::~TraceWriter() = default;
TraceRecorder::TraceRecorder(const std::filesystem::path&, const TraceHeader&, const Communicator& world, const RankPlace& place, bool) : world_(world), place_(place), gates_(false) {
    only_in_the_full_build("recording routing");
}
void TraceRecorder::add(int, const TokenBatch&, std::vector<MoeChoices>, int) {}
void TraceRecorder::end_step(int, double) {}
void TraceRecorder::finish() {}

}  // namespace moeplan
