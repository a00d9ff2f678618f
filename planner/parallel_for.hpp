#pragma once
/// Independent work on all cores. The results are placed by index, so that they do not depend on
/// the number of threads.

#include <cstddef>
#include <functional>

namespace moeplan {

/// Calls `work(i)` for i in 0 … count − 1, each once, in any order.
/// An exception of the lowest index that threw is thrown again when all have ended.
/// @param num_threads  0: as many as there are cores
/// @param done         called on the calling thread now and then with the number finished; may be
/// empty
void parallel_for(std::size_t count, int num_threads, const std::function<void(std::size_t)>& work,
                  const std::function<void(std::size_t)>& done = {});

}  // namespace moeplan
