#pragma once
/// Being told to stop: SIGINT (Ctrl-C), SIGTERM (a scheduler, `timeout`), SIGHUP (a closed
/// terminal). Nothing half written stays, no child lives on, and the exit status says it.

#include <signal.h>
#include <sys/types.h>

#include <atomic>
#include <filesystem>
#include <stdexcept>
#include <string>

namespace moeplan {

/// What a program's main calls first. From then on each of these signals removes the files that are
/// being written, passes on to children, and ends the program as it would have without us, unless
/// a `StopAwaited` lives. A signal that is ignored (nohup) stays ignored.
void end_cleanly_when_told();

/// While one lives, the first signal is only noted: its owner asks `stop_signal()` now and then and
/// ends in order. One that comes more than two seconds after the first ends the program at once.
class StopAwaited {
  public:
    /// @param also  one more signal that means the same here; 0: none
    explicit StopAwaited(int also = 0);
    StopAwaited(const StopAwaited&) = delete;
    StopAwaited& operator=(const StopAwaited&) = delete;
    ~StopAwaited();

  private:
    int also_;
    struct sigaction before_ {};  ///< what `also_` did
};

/// While one lives, these signals do not interrupt this thread: another thread notes them, or
/// `stop_signal()` finds them waiting. For ranks of a job, which an interrupted exchange must not
/// leave apart. (Damaged heaps had another cause: core/stop_signal.cpp, `own_stack`.)
class UninterruptedThread {
  public:
    explicit UninterruptedThread(int also = 0);
    UninterruptedThread(const UninterruptedThread&) = delete;
    UninterruptedThread& operator=(const UninterruptedThread&) = delete;
    ~UninterruptedThread();

  private:
    sigset_t before_;
};

/// The signal that told this process to stop; 0: none did.
int stop_signal();
const std::atomic<bool>& told_to_stop();

/// "SIGTERM"
std::string signal_name(int signal);

/// Thrown where work was given up because of a signal. Exit status 128 + signal.
class Stopped : public std::runtime_error {
  public:
    explicit Stopped(int signal);
    int signal;
};

/// What goes with this process if a signal ends it. @{
class RemovedWhenTold {  ///< a file
  public:
    explicit RemovedWhenTold(const std::filesystem::path& file);
    RemovedWhenTold(const RemovedWhenTold&) = delete;
    RemovedWhenTold& operator=(const RemovedWhenTold&) = delete;
    ~RemovedWhenTold();

  private:
    int slot_;
};
class ToldToo {  ///< a child's process group
  public:
    explicit ToldToo(pid_t child);
    ToldToo(const ToldToo&) = delete;
    ToldToo& operator=(const ToldToo&) = delete;
    ~ToldToo();

  private:
    int slot_;
};
/// @}

/// In a forked child, which owns nothing of its parent's: signals end it alone, and so does its
/// parent's death.
void belong_to_parent();

}  // namespace moeplan
