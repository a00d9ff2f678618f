#pragma once
/// How fast this machine is just now: what it shares with others changes by the minute.

#include "core/seed.hpp"
#include "kernels/backend.hpp"
#include "kernels/communicator.hpp"
#include "kernels/kernel_rows.hpp"

namespace moeplan {

/// A short piece of work of a training step's kind: a product of 256³ and a copy of 256 KiB out of
/// the caches. On a CPU whose memory and cores others share, a step takes a constant number of
/// pieces where its seconds change by a fifth (docs/profiles.md).
class MachinePace {
  public:
    MachinePace(const Backend&, const Communicator& ranks, Seed = {1});
    MachinePace(const MachinePace&) = delete;
    MachinePace& operator=(const MachinePace&) = delete;
    ~MachinePace();
    void piece();
    /// Seconds of a piece: the median of some, all ranks at once, in the mean over the ranks.
    /// Collective; takes 3 ms or so.
    Seconds now();

  private:
    const Backend& backend_;
    const Communicator& ranks_;
    PreparedKernel product_;
    void *from_ = nullptr, *to_ = nullptr;
    std::size_t at_ = 0;
};

}  // namespace moeplan
