#pragma once
/// Where modules (moeplan_cuda.so, moeplan_nccl.so) are looked for.

#include <filesystem>
#include <vector>

namespace moeplan {

/// $MOEPLAN_MODULES, beside the binary, and where an installation puts them; in that order.
std::vector<std::filesystem::path> module_folders();

}  // namespace moeplan
