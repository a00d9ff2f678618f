#pragma once
/// What ranks wait for one another at their exchanges although their work is the same: one of them
/// was interrupted, or its memory was slow. Of a machine whose profile has measured that
/// (`Profile::stretches`), where nothing overlaps and every exchange is waited for: a CPU.
///
/// With U₁ ≥ U₂ ≥ … the undisturbed work of the ranks of a group since they last met, S(U, k) what
/// U takes on the slowest of k ranks over U, and P what that work was priced at, the exchange waits
///
///     wait = max over k of U_k · S(U_k, k)  −  P          (0 if that is less)
///
/// The k slowest ranks have U_k at least, so that each term is a lower bound; k = all is exact
/// where loads are equal, k = 1 where one rank has far more to do than the others. What the others
/// wait for unequal loads is in P already, and what disturbs kernels so often that it is in their
/// medians: a kernel of t seconds counts t / typical(t) as undisturbed.

#include <span>
#include <vector>

#include "simulator/job_prices.hpp"

namespace moeplan {

/// @param undisturbed  [columns] seconds of the ranks of a lane since they last met
/// @param priced       seconds that the step's kernels took meanwhile
/// @param per_column   ranks of the group that a column stands for (folded replicas)
/// @param num_ranks    of the group; no more columns than that count
double wait_for_slowest(const Profile&, std::vector<double> undisturbed, double priced,
                        int per_column, int num_ranks);

/// Of the time of kernels that follow one another.
double undisturbed_share(const Profile&, std::span<const double> seconds);

/// [ops] waits of every exchange; empty where the profile does not tell them.
std::vector<double> rank_waits(const StepGraph&, const StepCase&, const JobPrices&);

}  // namespace moeplan
