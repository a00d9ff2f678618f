#include "model/kernel_work.hpp"

#include <array>
#include <cassert>

namespace moeplan {
namespace {

// Reads plus writes of one element, from the kernels' definitions in kernels/cpu (each tensor
// touched once).
constexpr std::array kRows = {
    StreamedKernel{"embedding_forward", 2, "token · hidden"},
    StreamedKernel{"embedding_backward", 3, "token · hidden"},  // dy; row read and written
    StreamedKernel{"rms_norm_forward", 2, "token · hidden"},
    StreamedKernel{"rms_norm_backward", 3, "token · hidden"},  // x, dy → dx
    StreamedKernel{"residual_add", 3, "token · hidden"},
    StreamedKernel{"rope_forward", 2, "token · (query + key heads) · head_size"},
    StreamedKernel{"rope_backward", 2, "token · (query + key heads) · head_size"},
    StreamedKernel{"swiglu_forward", 3, "row · inner width"},   // gate, up → y
    StreamedKernel{"swiglu_backward", 5, "row · inner width"},  // gate, up, dy → dgate, dup
    StreamedKernel{"gelu_forward", 2, "row · inner width"},
    StreamedKernel{"gelu_backward", 3, "row · inner width"},
    StreamedKernel{"relu_forward", 2, "row · inner width"},
    StreamedKernel{"relu_backward", 3, "row · inner width"},
    StreamedKernel{"router_forward", 3,
                   "routed unit · expert"},  // logits → probabilities, read again for top-k
    StreamedKernel{"router_backward", 3,
                   "routed unit · expert"},  // probabilities, dgates → dlogits
    StreamedKernel{"document_pool", 3,
                   "token · expert"},  // EMO: sums over documents, mask, second softmax
    StreamedKernel{"permutation_map", 4, "routed unit · choice"},  // ids read, marked, placed; both ways
    StreamedKernel{"permute_forward", 2, "routed row · width"},
    StreamedKernel{"permute_backward", 2, "routed row · width"},
    StreamedKernel{"unpermute_forward", 2, "routed row · width"},  // weighted combine
    StreamedKernel{"unpermute_backward", 3,
                   "routed row · width"},  // dy, expert output → d(expert output), dgate
    StreamedKernel{"cross_entropy_forward", 1, "token · vocabulary"},
    StreamedKernel{"cross_entropy_backward", 2, "token · vocabulary"},
    StreamedKernel{"adamw", 7, "parameter"},  // w, g, m, v → w, m, v in fp32
    StreamedKernel{"gradient_norm", 1, "parameter"},
    StreamedKernel{"copy", 2, "element"},
    StreamedKernel{"zero", 1, "element"},
};

}  // namespace

std::span<const StreamedKernel> streamed_kernels() { return kRows; }

Bytes streamed_bytes(std::string_view kernel, double items, Bytes element) {
    for (const auto& row : kRows)
        if (row.name == kernel) return element * (items * row.elements_moved);
    assert(!"a streamed kernel that is in no row of kernel_work.cpp");
    return {};
}

}  // namespace moeplan
