#pragma once
/// GPUs as sources print them, and the ids of specs/clusters.

#include <optional>
#include <string>

namespace moeplan {

/// "H100 SXM5 80GB" → h100-sxm; "GB200 (one 4-GPU compute tray of an NVL72)" → gb200. Empty where
/// the words fit no GPU or more than one.
std::optional<std::string> gpu_id_of_name(const std::string& name);

}  // namespace moeplan
