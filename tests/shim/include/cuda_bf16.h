#pragma once
/// For the kernels compiled as C++: see cuda_on_cpu.hpp.
#include "cuda_on_cpu.hpp"
