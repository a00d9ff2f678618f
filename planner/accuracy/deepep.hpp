#pragma once
/// Dispatch and combine as DeepEP's normal kernels run them, alone on their links.
///
///     one domain:  t = α + T·(c·b/β + (c + 2)·τ + d/μ) + min(T, 256)·c·b/φ
///     two nodes:   t = α + T·c·b/σ·(24/SMs)^p
///
/// T tokens a GPU, k experts a token, c = n·(1 − (1 − 1/n)^k) ranks that a token visits, b bytes of
/// a copy (dispatch: fp8 and a scale of 4 bytes a 128 elements; combine: bf16), d bytes of a token
/// in bf16. β: link; τ: bookkeeping of a copy, and of the token itself where it is sent and where it
/// arrives; μ: the pass that sums a token's copies (combine); φ: until the ranks' buffers are full
/// (256 tokens), senders and receivers do not overlap; σ: what 24 multiprocessors move between nodes,
/// where p > 1 says that few channels stall each other more.

#include <optional>
#include <string>

#include "core/units.hpp"

namespace moeplan {

struct DeepEpCall {
    std::string gpu;  ///< id of a profile
    int num_ranks = 8, num_nodes = 1, sms = 24;
    int tokens = 0, hidden = 0, top_k = 0;
    bool combine = false;
};

/// Empty where no constants are known of that GPU and number of nodes.
std::optional<Seconds> deepep_time(const DeepEpCall&);

/// Whether the constants were fitted on this call's curve (docs/collectives.md), or only checked.
bool deepep_fitted_on(const std::string& record_id);

}  // namespace moeplan
