#pragma once
/// Times how unsteadily ranks compute: what one waits for another whose work is the same.

#include <vector>

#include "core/seed.hpp"
#include "kernels/backend.hpp"
#include "kernels/communicator.hpp"
#include "profiler/profile.hpp"

namespace moeplan {

struct StretchOptions {
    Seconds budget{2};
    Seconds window{0.1};  ///< about a step
    Seed seed{1};         ///< of the places where stretches are taken
};

/// The same short piece of work (a product of 256³ and a copy out of the caches) again and again,
/// on all ranks at once and without waiting for one another, and what stretches of it take on the
/// slowest of several ranks.
/// @return  on rank 0; without rows on others
StretchCurve measure_stretches(const Backend&, const Communicator&, const StretchOptions&);

/// What stretches take on the slowest of 1, 2, 4 … 64 ranks, over as many medians of a piece (the
/// mean over the ranks, as kernels are timed). A
/// window is so many stretches one after another, each as long as its slowest rank; ranks are
/// pieces in a row, from a place of one rank's series that is drawn for each: so ranks are taken to
/// be disturbed independently. The median of the windows counts.
/// @param pieces  [ranks][pieces] seconds that one took after the other
StretchCurve stretches_of(const std::vector<std::vector<double>>& pieces, Seconds window, Seed);

}  // namespace moeplan
