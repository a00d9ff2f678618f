#pragma once
/// Times how unsteadily ranks compute: what one waits for another whose work is the same.

#include <vector>

#include "core/seed.hpp"
#include "kernels/backend.hpp"
#include "kernels/communicator.hpp"
#include "kernels/machine_pace.hpp"
#include "profiler/profile.hpp"

namespace moeplan {

/// The piece of `MachinePace` again and again, on all ranks at once and without waiting for one
/// another.
class StretchTimer {
  public:
    StretchTimer(const Backend&, const Communicator&, Seed);
    /// So much of it now. Called at several times of a run, the pieces tell of all of it.
    void go_on(Seconds);
    /// What stretches take on the slowest of several ranks; on rank 0, without rows on others.
    /// @param window  about a step
    StretchCurve curve(Seconds window = {0.1}) const;

  private:
    const Communicator& ranks_;
    Seed seed_;  ///< of the places where stretches are taken
    MachinePace pace_;
    std::vector<double> pieces_;
};

/// What stretches take on the slowest of 1, 2, 4 … 64 ranks, over as many medians of a piece (the
/// mean over the ranks, as kernels are timed). A
/// window is so many stretches one after another, each as long as its slowest rank; ranks are
/// pieces in a row, from a place of one rank's series that is drawn for each: so ranks are taken to
/// be disturbed independently. The median of the windows counts.
/// @param pieces  [ranks][pieces] seconds that one took after the other
StretchCurve stretches_of(const std::vector<std::vector<double>>& pieces, Seconds window, Seed);

}  // namespace moeplan
