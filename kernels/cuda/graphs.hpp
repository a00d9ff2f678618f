#pragma once
/// CUDA graphs as the backend's table has them.

#include "kernels/backend.hpp"

namespace moeplan::cuda {

extern const GraphSet kGraphs;

}  // namespace moeplan::cuda
