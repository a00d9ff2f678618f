#pragma once
/// Times exchanges between the ranks of this job.

#include <atomic>
#include <vector>

#include "core/progress.hpp"
#include "kernels/backend.hpp"
#include "kernels/communicator.hpp"
#include "profiler/measure.hpp"
#include "profiler/profile.hpp"

namespace moeplan {

struct LinkOptions {
    Seconds budget{10};
    Bytes largest{16.0 * 1024 * 1024};
    Progress progress;
    const std::atomic<bool>* stop = nullptr;
};

/// send_recv (half of a round trip), all_reduce, all_gather, reduce_scatter and all_to_all over
/// sizes of 64 B … `largest` in steps of four. `bytes` is what one rank's buffer holds: the whole
/// vector of all_reduce and reduce_scatter, the gathered one of all_gather, all that a rank sends
/// in all_to_all, its own share included. The slowest rank counts. On a CPU messages of 16 KiB and
/// more are timed one by one as a step has them: what is sent was just written, the rest is out of
/// the caches.
/// @return  on every rank the same; empty for a single rank
std::vector<LinkCurve> measure_links(const Backend&, const Communicator&, const LinkOptions&);

}  // namespace moeplan
