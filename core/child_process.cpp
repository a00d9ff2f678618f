#include "core/child_process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "core/errors.hpp"
#include "core/stop_signal.hpp"
#include "core/text.hpp"

extern char** environ;

namespace moeplan {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kPatience{60};  ///< for a child that was told to stop

/// Its group ends with this object, however the work is left: grandchildren and what did not stop.
class GroupEnd {
  public:
    explicit GroupEnd(pid_t child) : child_(child), told_too_(child) {}
    GroupEnd(const GroupEnd&) = delete;
    GroupEnd& operator=(const GroupEnd&) = delete;
    ~GroupEnd() { kill(-child_, SIGTERM); }

  private:
    pid_t child_;
    ToldToo told_too_;
};

bool removed(const std::string& name, const std::vector<std::string>& patterns) {
    for (const auto& pattern : patterns) {
        if (pattern == name) return true;
        if (!pattern.empty() && pattern.back() == '*' &&
            name.starts_with(pattern.substr(0, pattern.size() - 1)))
            return true;
    }
    return false;
}

std::vector<std::string> environment_of(const ChildOptions& options) {
    std::vector<std::string> out;
    for (char** entry = environ; *entry; ++entry) {
        const std::string text = *entry, name = text.substr(0, text.find('='));
        if (!options.environment.contains(name) && !removed(name, options.remove_environment))
            out.push_back(text);
    }
    for (const auto& [name, value] : options.environment) out.push_back(name + "=" + value);
    return out;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
    std::vector<char*> out;
    for (auto& text : texts) out.push_back(text.data());
    out.push_back(nullptr);
    return out;
}

struct Pipe {
    int read = -1, write = -1;
    Pipe() {
        std::array<int, 2> ends{};
        if (pipe2(ends.data(), O_CLOEXEC) != 0)
            throw EnvironmentError(std::string("pipe: ") + std::strerror(errno));
        read = ends[0];
        write = ends[1];
    }
    ~Pipe() {
        close_read();
        close_write();
    }
    Pipe(const Pipe&) = delete;
    Pipe& operator=(const Pipe&) = delete;
    void close_read() {
        if (read >= 0) close(read);
        read = -1;
    }
    void close_write() {
        if (write >= 0) close(write);
        write = -1;
    }
};

}  // namespace

std::optional<fs::path> find_program(const std::string& name) {
    if (name.find('/') != std::string::npos)
        return access(name.c_str(), X_OK) == 0 ? std::optional<fs::path>(name) : std::nullopt;
    const char* path = std::getenv("PATH");
    for (const auto& folder : split(path ? path : "/usr/local/bin:/usr/bin:/bin", ':')) {
        const fs::path candidate = fs::path(folder.empty() ? "." : folder) / name;
        std::error_code error;
        if (fs::is_regular_file(candidate, error) && access(candidate.c_str(), X_OK) == 0)
            return candidate;
    }
    return std::nullopt;
}

ChildResult run_child(const std::vector<std::string>& words, const ChildOptions& options) {
    const auto program = find_program(words.at(0));
    if (!program) throw EnvironmentError(words[0] + " was not found on the PATH");

    Pipe input, output, error;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, input.read, STDIN_FILENO);
    if (options.log) {
        posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, options.log->c_str(),
                                         O_WRONLY | O_CREAT | O_TRUNC, 0644);
        posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
    } else {
        posix_spawn_file_actions_adddup2(&actions, output.write, STDOUT_FILENO);
        posix_spawn_file_actions_adddup2(&actions, error.write, STDERR_FILENO);
    }
    posix_spawnattr_t attributes;
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(
        &attributes,
        POSIX_SPAWN_SETPGROUP);  // a group of its own, so that grandchildren end with it
    posix_spawnattr_setpgroup(&attributes, 0);

    std::vector<std::string> arguments = words, environment = environment_of(options);
    const StopAwaited awaited;
    pid_t child = 0;
    const int failed = posix_spawn(&child, program->c_str(), &actions, &attributes,
                                   pointers(arguments).data(), pointers(environment).data());
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    if (failed != 0)
        throw EnvironmentError(program->string() +
                               " could not be started: " + std::strerror(failed));
    const GroupEnd group(child);
    input.close_read();
    output.close_write();
    error.close_write();

    ChildResult result;
    signal(SIGPIPE, SIG_IGN);  // a child that ends without reading its input must not end us
    std::size_t written = 0;
    if (options.input.empty())
        input.close_write();
    else
        fcntl(input.write, F_SETFL, O_NONBLOCK);
    bool exited = false, ended_by_us = false, told = false, killed = false;
    std::chrono::steady_clock::time_point told_at;
    int status = 0;
    while (!exited || output.read >= 0 || error.read >= 0) {
        std::array<pollfd, 3> wait{};
        nfds_t count = 0;
        if (output.read >= 0) wait[count++] = {output.read, POLLIN, 0};
        if (error.read >= 0) wait[count++] = {error.read, POLLIN, 0};
        if (input.write >= 0) wait[count++] = {input.write, POLLOUT, 0};
        ::poll(wait.data(), count, 100);
        for (nfds_t i = 0; i < count; ++i) {
            if (wait[i].revents == 0) continue;
            if (wait[i].fd == input.write) {
                const ssize_t n = write(input.write, options.input.data() + written,
                                        options.input.size() - written);
                if (n > 0) written += static_cast<std::size_t>(n);
                if ((n < 0 && errno != EAGAIN && errno != EINTR) || written == options.input.size())
                    input.close_write();
                continue;
            }
            char buffer[1 << 16];
            const ssize_t n = read(wait[i].fd, buffer, sizeof buffer);
            if (n > 0)
                (wait[i].fd == output.read ? result.output : result.error)
                    .append(buffer, static_cast<std::size_t>(n));
            else if (n == 0 || (errno != EAGAIN && errno != EINTR))
                wait[i].fd == output.read ? output.close_read() : error.close_read();
        }
        if (!exited && waitpid(child, &status, WNOHANG) == child) {
            exited = true;
            input.close_write();
            if (options.log || told) break;
        }
        // The child may have something to finish and to keep; it need not.
        if (!exited && !told && stop_signal() != 0) {
            kill(-child, options.told_by != 0 ? options.told_by : stop_signal());
            told = true;
            told_at = std::chrono::steady_clock::now();
        }
        if (told && !killed && std::chrono::steady_clock::now() - told_at > kPatience) {
            kill(-child, SIGKILL);
            killed = true;
        }
        if (!exited && !ended_by_us && options.poll && !options.poll()) {
            kill(-child, SIGTERM);
            ended_by_us = true;
        }
    }
    if (stop_signal() != 0) throw Stopped(stop_signal());
    result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return result;
}

std::vector<std::string> mpirun_words(int num_ranks, const std::vector<std::string>& command) {
    if (!find_program("mpirun"))
        throw EnvironmentError("mpirun was not found; Debian: apt-get install openmpi-bin");
    std::vector<std::string> out = {"mpirun", "-n", std::to_string(num_ranks), "--oversubscribe"};
    // The scheduler places ranks better than fixed cores where other jobs, containers or
    // hyper-threads are about.
    for (const char* word : {"--bind-to", "none"}) out.emplace_back(word);
    if (static_cast<unsigned>(num_ranks) > std::max(1u, std::thread::hardware_concurrency()))
        for (const char* word : {"--mca", "mpi_yield_when_idle", "1"}) out.emplace_back(word);
    for (const char* word : {"--mca", "plm", "isolated", "--mca", "btl", "self,vader"})
        out.emplace_back(word);
    out.insert(out.end(), command.begin(), command.end());
    return out;
}

std::map<std::string, std::string> mpirun_environment() {
    return {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
            {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
            {"OMP_NUM_THREADS", "1"}};
}

}  // namespace moeplan
