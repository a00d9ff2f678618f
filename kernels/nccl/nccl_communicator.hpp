#pragma once
/// Exchange between GPUs by NCCL, which is a module of its own: a GPU without NCCL still trains, its buffers then travel
/// through host memory.

#include <optional>
#include <string>

#include "kernels/communicator.hpp"

namespace moeplan {

/// A communicator of the same ranks whose buffers may be in device memory (by NCCL) or in host memory (by `hosts`, which must
/// outlive it). Collective: every rank of `hosts` calls it, with its own GPU's ordinal.
/// @return  nothing if NCCL cannot be had on every rank; `why` then says what is missing on this one, or that it is another's
std::optional<Communicator> nccl_communicator(const Communicator& hosts, int ordinal, std::string* why);

/// What moeplan_nccl.so exports under this name.
extern "C" typedef Status (*NcclEntry)(std::uint32_t abi, int ordinal, const CommunicatorTable* hosts, CommunicatorTable* out);
inline constexpr const char* kNcclEntry = "moeplan_nccl";

}  // namespace moeplan
