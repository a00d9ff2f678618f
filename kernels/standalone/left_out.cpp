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

void save_checkpoint(const std::filesystem::path&, const CheckpointState&, Runtime&, Transformer&, const Communicator&, bool) {
    only_in_the_full_build("a checkpoint");
}
std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path&) { only_in_the_full_build("a checkpoint"); }
CheckpointState read_checkpoint_state(const std::filesystem::path&) { only_in_the_full_build("a checkpoint"); }
void load_checkpoint(const std::filesystem::path&, Runtime&, Transformer&) { only_in_the_full_build("a checkpoint"); }

struct TraceWriter::File {};
TraceWriter::~TraceWriter() = default;
TraceRecorder::TraceRecorder(const std::filesystem::path&, const TraceHeader&, const Communicator& world, bool) : world_(world), gates_(false) {
    only_in_the_full_build("recording routing");
}
void TraceRecorder::add(int, const TokenBatch&, std::vector<MoeChoices>) {}
void TraceRecorder::end_step(int, double) {}
void TraceRecorder::finish() {}

}  // namespace moeplan
