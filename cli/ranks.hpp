#pragma once
/// What all ranks of a job do together.

#include <functional>

#include "kernels/communicator.hpp"

namespace moeplan::cli {

/// Runs the body. What goes wrong on one of several ranks is said and ends all of them: the others
/// would wait for it for ever. One rank alone throws.
int on_every_rank(const Communicator& world, const std::function<int()>& body);

}  // namespace moeplan::cli
