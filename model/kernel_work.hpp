#pragma once
/// The names and the work of kernels, defined once: the trainer runs them, the profiler times them,
/// the step graph prices them.

#include <cstdint>
#include <span>
#include <string_view>

#include "core/units.hpp"

namespace moeplan {

/// A memory-bound kernel: each item (an element of its main tensor) moves so many elements, reads
/// and writes together.
struct StreamedKernel {
    std::string_view name;
    double elements_moved;  ///< per item
    std::string_view item;  ///< what one item is
};

/// The rows: rms_norm_forward … adamw. GEMMs ("gemm", "grouped_gemm") and attention
/// ("attention_forward", "attention_backward") have shapes of their own (profiler/profile.hpp).
std::span<const StreamedKernel> streamed_kernels();

/// Bytes that a streamed kernel moves for this many items of this element size. Asserts that the
/// name is one of the rows.
Bytes streamed_bytes(std::string_view kernel, double items, Bytes element);

}  // namespace moeplan
