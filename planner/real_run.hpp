#pragma once
/// A training step measured for real, as a report like any other.

#include <filesystem>
#include <memory>

#include "core/progress.hpp"
#include "kernels/communicator.hpp"
#include "model/text/token_data.hpp"
#include "simulator/step.hpp"

namespace moeplan {

struct RealRunOptions {
    std::filesystem::path
        tokens;  ///< a tokens file (`write_tokens`) to train on; empty: invented text
    int warm_up = 3, least_steps = 10, most_steps = 1000;
    Seconds longest{20};  ///< of measured steps; they stop earlier once their median is known well
    std::filesystem::path
        trace;  ///< the routing of the measured steps is recorded there; empty: not
    std::filesystem::path binary;  ///< whose hidden `_measure` the ranks run; empty: this program
    Progress progress;
};

/// Trains the case's model in its layout on this machine and reports the median step. With more
/// than one rank, this program runs itself under mpirun. Parts are rank 0's (waiting for a slower
/// rank is in the exchanges); `exposed.host` is what is no kernel and no exchange: reading text,
/// losses. Cluster, profile and routing of the case are not used, but for the peak rate behind
/// `mfu`.
/// @throws InputError if the trainer cannot run the layout, EnvironmentError without MPI or if the
/// ranks fail
StepReport measure_step(const StepCase&, const RealRunOptions&);
StepReport measure_step(const StepCase&);

/// What one rank does: the run itself. The report is whole on rank 0.
StepReport measure_on_ranks(const ModelSpec&, const ParallelLayout&, const StepSchedule&,
                            std::uint64_t seed, const RealRunOptions&, Communicator&);

/// The hidden `_measure`: reads the file that measure_step wrote, runs on the ranks of this job,
/// writes the report.
void measure_worker(const std::filesystem::path& job, const std::filesystem::path& report);

}  // namespace moeplan
