/// The program told to stop: what it says, what it leaves, and what the next run makes of that.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "core/child_process.hpp"
#include "core/output_file.hpp"

extern char** environ;

namespace moeplan {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string text_of(const fs::path& file) {
    std::ifstream in(file);
    std::stringstream out;
    out << in.rdbuf();
    return out.str();
}

/// A program that runs while we look at what it does; its group ends with this object.
class Running {
  public:
    Running(std::vector<std::string> words, const fs::path& said) {
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, said.c_str(),
                                         O_WRONLY | O_CREAT | O_TRUNC, 0644);
        posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
        posix_spawnattr_t attributes;
        posix_spawnattr_init(&attributes);
        posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
        std::vector<char*> arguments;
        for (std::string& word : words) arguments.push_back(word.data());
        arguments.push_back(nullptr);
        if (posix_spawnp(&process_, arguments[0], &actions, &attributes, arguments.data(),
                         environ) != 0)
            process_ = 0;
    }
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;
    ~Running() {
        if (process_ > 0) kill(-process_, SIGKILL);
        if (process_ > 0 && !ended_) waitpid(process_, nullptr, 0);
    }
    pid_t process() const { return process_; }
    bool lives() {
        if (process_ > 0 && !ended_ && waitpid(process_, &status_, WNOHANG) == process_)
            ended_ = true;
        return process_ > 0 && !ended_;
    }
    /// Whether that came to be while it ran.
    bool until(const std::function<bool()>& seen) {
        const auto begin = std::chrono::steady_clock::now();
        while (lives() && std::chrono::steady_clock::now() - begin < std::chrono::seconds(60)) {
            if (seen()) return true;
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        }
        return false;
    }
    /// As a shell's $?.
    int status_after(int signal) {
        if (lives()) kill(process_, signal);
        if (!ended_) waitpid(process_, &status_, 0);
        ended_ = true;
        return WIFEXITED(status_) ? WEXITSTATUS(status_) : 128 + WTERMSIG(status_);
    }

  private:
    pid_t process_ = 0;
    bool ended_ = false;
    int status_ = 0;
};

/// A folder of its own, which is the temporary folder of what runs in it, too.
class Stopping : public ::testing::Test {
  protected:
    Stopping() {
        fs::create_directories(folder_ / "tmp");
        setenv("TMPDIR", (folder_ / "tmp").c_str(), 1);
    }
    ~Stopping() override {
        unsetenv("TMPDIR");
        fs::remove_all(folder_);
    }
    std::string path(const std::string& name) const { return (folder_ / name).string(); }
    std::vector<std::string> words(std::vector<std::string> rest) const {
        rest.insert(rest.begin(), MOEPLAN_BINARY);
        return rest;
    }
    std::vector<std::string> training(int steps) const {
        return words({"train", "--model", "tiny-top-k", "--data", "synthetic", "--steps",
                      std::to_string(steps), "--seq", "64", "--out", path("log.jsonl"),
                      "--checkpoint", path("checkpoint"), "--trace", path("routing.h5")});
    }
    std::size_t lines() const {
        std::ifstream in(path("log.jsonl"));
        std::size_t count = 0;
        for (std::string line; std::getline(in, line);) ++count;
        return count;
    }
    /// Half-written files and folders that nobody will end.
    std::vector<std::string> left_over() const {
        std::vector<std::string> out;
        for (const auto& entry : fs::recursive_directory_iterator(folder_)) {
            const std::string name = entry.path().filename().string();
            if (name.ends_with(".part") || name.ends_with(".writing") ||
                name.starts_with("moeplan-run."))
                out.push_back(name);
        }
        return out;
    }
    std::string said() const { return text_of(path("said")); }

    fs::path folder_ = fs::temp_directory_path() / ("moeplan_stopping_" + std::to_string(getpid()));
};

TEST_F(Stopping, TrainingKeepsWhatItHasAndItsStatusIsTheSignals) {
    for (const auto& [signal, name] : {std::pair{SIGTERM, "SIGTERM"}, {SIGINT, "SIGINT"}}) {
        fs::remove(path("log.jsonl"));
        Running run(training(100'000), path("said"));
        ASSERT_TRUE(run.until([&] { return lines() >= 3; })) << said();
        EXPECT_EQ(run.status_after(signal), 128 + signal);
        EXPECT_THAT(said(), HasSubstr(std::string("stopped by ") + name + " after "));
        EXPECT_THAT(said(), HasSubstr("--continue"));
        EXPECT_THAT(said(), HasSubstr("routing.h5"));
        EXPECT_TRUE(fs::exists(path("routing.h5")));
        EXPECT_FALSE(fs::is_empty(path("checkpoint")));
        EXPECT_THAT(left_over(), IsEmpty());
    }
}

TEST_F(Stopping, ARunThatIsGoneOnWithHasEveryStepOnce) {
    Running run(training(100'000), path("said"));
    ASSERT_TRUE(run.until([&] { return lines() >= 3; })) << said();
    EXPECT_EQ(run.status_after(SIGTERM), 143);
    const std::size_t done = lines();
    auto rest = training(static_cast<int>(done) + 2);
    rest.push_back("--continue");
    EXPECT_EQ(run_child(rest).status, 0);
    std::ifstream in(path("log.jsonl"));
    int expected = 0;
    for (std::string line; std::getline(in, line); ++expected)
        EXPECT_EQ(nlohmann::json::parse(line).at("step"), expected);
    EXPECT_EQ(expected, static_cast<int>(done) + 2);
}

TEST_F(Stopping, RanksOfATrainingStopTogether) {
    if (!find_program("mpirun")) GTEST_SKIP() << "no mpirun here";
    for (const auto& [name, value] : mpirun_environment()) setenv(name.c_str(), value.c_str(), 1);
    // mpirun hands SIGUSR1 on to every rank. Others tell the ranks themselves, in the middle of
    // their exchanges, which must not harm them.
    for (const auto& [signal, to_ranks] : {std::pair{SIGUSR1, false}, {SIGTERM, true}}) {
        fs::remove(path("log.jsonl"));
        Running run(mpirun_words(2, training(100'000)), path("said"));
        if (!run.until([&] { return lines() >= 3; })) {
            if (said().find("MPI") != std::string::npos) GTEST_SKIP() << said();
            FAIL() << said();
        }
        if (to_ranks) {
            const std::string process = std::to_string(run.process());
            std::istringstream ranks(
                text_of("/proc/" + process + "/task/" + process + "/children"));
            for (pid_t rank = 0; ranks >> rank;) kill(rank, signal);
        }
        EXPECT_EQ(run.status_after(to_ranks ? 0 : signal), 128 + signal);
        EXPECT_THAT(said(), HasSubstr("stopped by "));
        EXPECT_THAT(left_over(), IsEmpty());
    }
}

TEST_F(Stopping, AProfileKeepsItsPointsAndCanBeGoneOnWith) {
    const auto profiling = words(
        {"profile", "--model", "tiny-top-k", "--seconds", "60", "--out", path("profile.json")});
    for (const int ranks : {1, 2}) {
        if (ranks > 1 && !find_program("mpirun")) continue;
        fs::remove(path("profile.json"));
        auto command = profiling;
        command.insert(command.end(), {"--ranks", std::to_string(ranks)});
        Running run(command, path("said"));
        ASSERT_TRUE(run.until([&] { return fs::exists(path("profile.json")); })) << said();
        EXPECT_EQ(run.status_after(SIGTERM), 143) << said();
        EXPECT_THAT(said(), HasSubstr("stopped by SIGTERM; kept: "));
        EXPECT_THAT(said(), HasSubstr("--continue"));
        const auto kept = nlohmann::json::parse(text_of(path("profile.json")));
        EXPECT_FALSE(kept.at("kernels").empty());
        EXPECT_THAT(left_over(), IsEmpty());
    }
}

TEST_F(Stopping, LinesThatFindNoRoomEndTheTrainingAndSaySo) {
    const ChildResult result =
        run_child(words({"train", "--model", "tiny-top-k", "--data", "synthetic", "--steps", "2",
                         "--seq", "64", "--out", "/dev/full"}));
    EXPECT_EQ(result.status, 2);
    EXPECT_THAT(result.error, HasSubstr("/dev/full: expected room to write"));
}

/// A program that takes a scratch folder and a child, as a real run does, and is told to stop.
TEST_F(Stopping, AChildIsToldAndTheScratchFolderGoes) {
    const pid_t process = fork();
    if (process == 0) {
        end_cleanly_when_told();
        int status = 0;
        try {
            const ScratchFolder scratch;
            std::ofstream(scratch.path() / "job.json") << "{}";
            run_child({"sh", "-c", "sleep 61 & echo $! > " + path("grandchild") + "; sleep 60"});
        } catch (const Stopped& stopped) {
            status = 128 + stopped.signal;
        }
        _exit(status);
    }
    for (int i = 0; i < 2000 && text_of(path("grandchild")).empty(); ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    kill(process, SIGTERM);
    int status = 0;
    waitpid(process, &status, 0);
    EXPECT_EQ(WEXITSTATUS(status), 143);
    EXPECT_THAT(left_over(), IsEmpty());
    const pid_t grandchild = std::atoi(text_of(path("grandchild")).c_str());
    ASSERT_GT(grandchild, 0);
    bool gone = false;
    for (int i = 0; i < 400 && !gone; ++i) {  // a zombie nobody waits for is gone, too
        const std::string state = text_of("/proc/" + std::to_string(grandchild) + "/stat");
        gone = state.empty() || state.find(") Z") != std::string::npos;
        if (!gone) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    EXPECT_TRUE(gone);
}

TEST_F(Stopping, AFileThatIsBeingWrittenGoesWithTheSignal) {
    const pid_t process = fork();
    if (process == 0) {
        end_cleanly_when_told();
        const PendingFile pending(path("answer.json"));
        std::ofstream(pending.temporary()) << "half" << std::flush;
        std::ofstream(path("ready")) << "yes" << std::flush;
        sleep(60);
        _exit(0);
    }
    for (int i = 0; i < 2000 && text_of(path("ready")).empty(); ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_FALSE(left_over().empty());
    kill(process, SIGINT);
    int status = 0;
    waitpid(process, &status, 0);
    EXPECT_EQ(WTERMSIG(status), SIGINT);
    EXPECT_THAT(left_over(), IsEmpty());
}

TEST_F(Stopping, WhatAKilledProcessLeftIsRemovedByTheNextAndNothingElse) {
    const pid_t process = fork();
    if (process == 0) {
        const PendingFile pending(path("answer.json"));
        std::ofstream(pending.temporary()) << "half" << std::flush;
        const ScratchFolder scratch;
        std::ofstream(scratch.path() / "job.json") << "{}" << std::flush;
        std::ofstream(path("ready")) << "yes" << std::flush;
        sleep(60);
        _exit(0);
    }
    for (int i = 0; i < 2000 && text_of(path("ready")).empty(); ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    const auto left_by_next = [&] {
        const pid_t next = fork();
        if (next == 0) {
            { const ScratchFolder scratch; }
            write_whole(path("other.json"), "{}");
            _exit(0);
        }
        waitpid(next, nullptr, 0);
        return left_over();
    };
    EXPECT_EQ(left_by_next().size(), 2u);  // it lives: its files are its own
    kill(process, SIGKILL);
    waitpid(process, nullptr, 0);
    std::ofstream(path(".somebody.else.1.part")) << "mine";
    EXPECT_EQ(left_by_next(), std::vector<std::string>{".somebody.else.1.part"});
}

}  // namespace
}  // namespace moeplan
