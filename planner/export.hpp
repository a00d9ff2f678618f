#pragma once
/// A candidate in another system's words: what one pastes to run it there.

#include <cstdint>
#include <string>
#include <vector>

#include "core/enum_names.hpp"
#include "simulator/step.hpp"

namespace moeplan {

enum class ExportTarget : std::uint8_t { megatron, deepspeed, torchtitan, slurm };

struct Exported {
    std::string text;                ///< the file
    std::vector<std::string> notes;  ///< what that system decides by itself, or cannot say
    std::string refused;  ///< why this candidate cannot be run there; then there is no text
};

/// Flags of Megatron-LM's pretrain_gpt.py as a bash script.
/// @source NVIDIA/Megatron-LM: megatron/training/arguments.py,
/// megatron/core/transformer/moe/README.md
Exported to_megatron(const StepCase&);
/// A DeepSpeed configuration (JSON): batch, precision and ZeRO; sizes of expert groups as the model
/// code takes them (`deepspeed.moe.layer.MoE(ep_size=…)`).
/// @source deepspeed.ai, configuration JSON; deepspeedai/Megatron-DeepSpeed: examples_deepspeed/MoE
Exported to_deepspeed(const StepCase&);
/// A torchtitan job configuration (TOML).
/// @source pytorch/torchtitan: torchtitan/config (Training, Parallelism, ActivationCheckpoint)
Exported to_torchtitan(const StepCase&);
/// A Slurm batch script that starts one torchrun a node with the right counts.
Exported to_slurm(const StepCase&);

Exported export_to(ExportTarget, const StepCase&);

template <>
const EnumNames<ExportTarget>& enum_names<ExportTarget>();

}  // namespace moeplan
