#pragma once
/// Another program run to its end: our own binary under mpirun, or one simulation a process.

#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace moeplan {

struct ChildOptions {
    std::string input;                               ///< given on standard input
    std::map<std::string, std::string> environment;  ///< set on top of ours
    std::vector<std::string> remove_environment;  ///< names, or prefixes that end in "*" ("OMPI_*")
    std::optional<std::filesystem::path>
        log;          ///< standard output and error go there; absent: both are returned
    int told_by = 0;  ///< signal that tells the child to stop when we are told; 0: the same. mpirun
                      ///< hands SIGUSR1 on to its ranks and waits; after SIGTERM it kills them
    std::function<bool()> poll;  ///< called some ten times a second; false ends the child
};

struct ChildResult {
    int status = 0;             ///< exit status; 128 + signal if a signal ended it
    std::string output, error;  ///< unless logged
};

/// Runs a program (looked up on the PATH) and waits. If this process is told to stop
/// (core/stop_signal.hpp), the child and its children are told too, and are waited for.
/// @throws EnvironmentError if it cannot be started; Stopped if we were told to stop
ChildResult run_child(const std::vector<std::string>& words, const ChildOptions& options = {});

/// Full path of a program on the PATH.
std::optional<std::filesystem::path> find_program(const std::string& name);

/// Words that start `num_ranks` processes of a command on this machine with Open MPI, one thread
/// each: mpirun and its options, works as root and in containers, may put more ranks than cores.
/// The environment it needs is in `mpirun_environment`.
/// @throws EnvironmentError if there is no mpirun, with how to get it
std::vector<std::string> mpirun_words(int num_ranks, const std::vector<std::string>& command);
std::map<std::string, std::string> mpirun_environment();

}  // namespace moeplan
