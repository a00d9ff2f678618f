#pragma once
/// The state of a training run in a folder: DIR/step-000120/{state.json, shard-R.bin}. A checkpoint
/// appears whole or not at all (it is written beside and renamed), and loads into any layout: a
/// number is found by its parameter's name and its place in the whole model's tensor.

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "core/json.hpp"
#include "kernels/communicator.hpp"
#include "model/layers/transformer.hpp"

namespace moeplan {

struct CheckpointState {
    std::int64_t step = 0;  ///< steps done
    std::uint64_t seed = 0;
    Json model;               ///< its spec
    Json layout;              ///< of the run that wrote it; for people
    std::string data_digest;  ///< of what it was trained on; data position and draws follow from
                              ///< step and seed
};

/// Collective: every element is written once, by the first of its holders or by the one that has
/// its moments.
/// @throws InputError if the folder cannot be written
void save_checkpoint(const std::filesystem::path& folder, const CheckpointState&, Runtime&,
                     Transformer&, const RankGroups&, const Communicator& world);

/// The newest whole checkpoint under the folder (or the folder itself if it is one).
std::optional<std::filesystem::path> latest_checkpoint(const std::filesystem::path& folder);
/// @throws InputError for a truncated or foreign file, naming it
CheckpointState read_checkpoint_state(const std::filesystem::path& checkpoint);
/// Values and moments of every parameter of `model`. @throws InputError if one is missing or of
/// another shape
void load_checkpoint(const std::filesystem::path& checkpoint, Runtime&, Transformer&);

}  // namespace moeplan
