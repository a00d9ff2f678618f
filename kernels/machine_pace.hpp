#pragma once
/// How fast this machine is just now: what it shares with others changes by the minute.

#include <functional>
#include <memory>

#include "core/seed.hpp"
#include "kernels/backend.hpp"
#include "kernels/communicator.hpp"
#include "kernels/kernel_rows.hpp"

namespace moeplan {

/// A short piece of work of a training step's kind: a product of 256³ and a copy of 256 KiB out of
/// the caches. For CPUs, whose memory and cores others may share: a step takes nearly the same number
/// of pieces where its seconds change by a fifth (docs/profiles.md).
class MachinePace {
  public:
    MachinePace(const Backend&, const Communicator& ranks, Seed = {1});
    MachinePace(const MachinePace&) = delete;
    MachinePace& operator=(const MachinePace&) = delete;
    void piece();
    /// Seconds of a piece: the median of some, all ranks at once, in the mean over the ranks.
    /// Collective; takes 3 ms or so.
    Seconds now();

  private:
    const Backend& backend_;
    const Communicator& ranks_;
    PreparedKernel product_;
    std::unique_ptr<char, std::function<void(char*)>> from_, to_;
    std::size_t at_ = 0;
};

}  // namespace moeplan
