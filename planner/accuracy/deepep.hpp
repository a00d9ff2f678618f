#pragma once
/// Dispatch and combine as DeepEP's normal kernels run them, alone on their links.
///
///     one domain:  t = α + T·(c·b/β + c·τ + d/μ)          c = n·(1 − (1 − 1/n)^k) ranks a token
///     visits two nodes:   t = α + T·(r·b/β + c·b/(SMs·σ))        r = N·(1 − (1 − 1/N)^k)·(1 − 1/N)
///     of them far
///
/// T tokens a GPU, k experts a token, b bytes a copy (dispatch: fp8 and a scale of 4 bytes a 128
/// elements; combine: bf16), d bytes of a token in bf16. β: link, τ: a copy's bookkeeping, μ:
/// memory pass of a token, σ: what one multiprocessor moves.

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
