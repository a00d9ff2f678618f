#pragma once
/// Times kernels of a backend, on one rank or on several at once, and makes a profile of them.

#include <atomic>
#include <filesystem>
#include <optional>

#include "core/progress.hpp"
#include "core/seed.hpp"
#include "kernels/backend.hpp"
#include "kernels/communicator.hpp"
#include "profiler/measure.hpp"
#include "profiler/measure_points.hpp"
#include "profiler/profile.hpp"

namespace moeplan {

struct MeasureOptions {
    Seconds budget{40};  ///< wall time for kernels; what does not fit is left out
    Bytes working_set;  ///< of one rank's step: whether its tensors stay in a cache until the next;
                        ///< 0: they do not
    SamplingRule rule;
    Seed seed{1};       ///< of the order and of the data
    Progress progress;  ///< on rank 0
    const std::atomic<bool>* stop =
        nullptr;  ///< set by a signal: finish the point, keep what there is
    std::function<void(const Profile&)> keep;  ///< called now and then with what there is so far
};

/// Times every point: warm-up, then samples in the cache state of a training step ("cold"), and
/// samples back to back ("warm"), in random order, all ranks at the same time, a reference GEMM in
/// between.
///
/// A table's `median_s` is the cold one: the tensor that the kernel before has just written lies
/// where that left it; all others were touched a step ago, and are out of every cache (or out of
/// the core's own, if the step's working set fits a shared one).
/// @param known  a profile to continue: its points are not measured again
/// @return       the profile on rank 0; empty on other ranks
Profile measure_kernels(const Backend&, const Communicator&, const std::vector<KernelPoint>&,
                        const MeasureOptions&, const Profile& known = {});

/// A point of a profile that was left out, predicted from the others.
struct HeldOutError {
    std::string kernel;
    int num_points = 0;
    double median = 0, p90 = 0;  ///< of |predicted − measured| / measured
};
/// Leaves every fifth point out (of those that are not at the end of their line), predicts it from
/// the rest; by kernel, the last row ("all") over all.
std::vector<HeldOutError> held_out_errors(const Profile&, Seed);

/// What the measurement stands on, as text: processor, caches, load, ranks at once, kernel, clocks.
std::map<std::string, std::string> machine_conditions(const Backend&, int num_ranks);
/// MHz of the running core as the operating system reports it; 0: unknown.
double clock_mhz();

}  // namespace moeplan
