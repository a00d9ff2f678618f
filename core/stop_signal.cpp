#include "core/stop_signal.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <mutex>

namespace moeplan {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};
constexpr int kSlots = 64;  // files and children at once; more are not remembered
constexpr int kNoSlot = -1;
constexpr double kPatience = 2;  ///< seconds: `timeout` and launchers send a signal twice at once

// What a handler reads must need no lock. A file's name is never freed: the handler may be reading
// it in another thread.
std::array<std::atomic<const char*>, kSlots> files{};
std::array<std::atomic<pid_t>, kSlots> children{};
std::atomic<int> first_signal{0}, awaiting{0}, uninterrupted{0}, also_waiting{0};
std::atomic<bool> told{false};
std::atomic<double> first_time{0};

std::mutex installing;
int installed = 0;
std::array<struct sigaction, NSIG> before;

double now() {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

sigset_t all_signals() {
    sigset_t set;
    sigemptyset(&set);
    for (const int signal : kSignals) sigaddset(&set, signal);
    return set;
}

void end_now(int signal) {
    for (const auto& file : files)
        if (const char* name = file.load()) unlink(name);
    for (const auto& child : children)
        if (const pid_t group = child.load(); group > 0) kill(-group, signal);
    // Die of the signal ourselves, as whoever sent it expects.
    struct sigaction plain {};
    plain.sa_handler = SIG_DFL;
    sigaction(signal, &plain, nullptr);
    sigset_t only;
    sigemptyset(&only);
    sigaddset(&only, signal);
    pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
    raise(signal);
}

/// Whether it is the first.
bool note(int signal) {
    int none = 0;
    const bool first = first_signal.compare_exchange_strong(none, signal);
    if (first) first_time = now();
    told = true;
    return first;
}

void when_told(int signal) {
    const bool first = note(signal);
    if (awaiting.load() == 0 || (!first && now() - first_time.load() > kPatience)) end_now(signal);
}

/// A stack of its own for the handlers of this thread. Products compiled at run time (oneDNN's) use the
/// stack pointer for other things meanwhile: a signal's frame there overwrites what they point at,
/// and the program goes on with a damaged heap.
void own_stack() {
    static thread_local std::array<char, std::size_t{1} << 18> memory;
    stack_t stack{};
    stack.ss_sp = memory.data();
    stack.ss_size = memory.size();
    sigaltstack(&stack, nullptr);
}

void handle(int signal) {
    own_stack();
    struct sigaction ours {};
    ours.sa_handler = when_told;
    // a signal that is only noted must not fail a read or a write
    ours.sa_flags = SA_RESTART | SA_ONSTACK;
    sigemptyset(&ours.sa_mask);
    sigaction(signal, nullptr, &before[static_cast<std::size_t>(signal)]);
    if (before[static_cast<std::size_t>(signal)].sa_handler != SIG_IGN)
        sigaction(signal, &ours, nullptr);
}

void install() {
    const std::lock_guard lock(installing);
    if (installed++ == 0)
        for (const int signal : kSignals) handle(signal);
}
void uninstall() {
    const std::lock_guard lock(installing);
    if (--installed == 0)
        for (const int signal : kSignals)
            sigaction(signal, &before[static_cast<std::size_t>(signal)], nullptr);
}

template <class T>
int take_slot(std::array<std::atomic<T>, kSlots>& slots, T value) {
    for (int i = 0; i < kSlots; ++i) {
        T free{};
        if (slots[static_cast<std::size_t>(i)].compare_exchange_strong(free, value)) return i;
    }
    return kNoSlot;
}

}  // namespace

void end_cleanly_when_told() { install(); }

StopAwaited::StopAwaited(int also) : also_(also) {
    install();
    if (also_ != 0) {
        sigaction(also_, nullptr, &before_);
        handle(also_);
    }
    ++awaiting;
}
StopAwaited::~StopAwaited() {
    --awaiting;
    if (also_ != 0) sigaction(also_, &before_, nullptr);
    uninstall();
}

UninterruptedThread::UninterruptedThread(int also) {
    sigset_t set = all_signals();
    if (also != 0) {
        sigaddset(&set, also);
        also_waiting = also;
    }
    pthread_sigmask(SIG_BLOCK, &set, &before_);
    ++uninterrupted;
}
UninterruptedThread::~UninterruptedThread() {
    stop_signal();  // what waits must not end us now that it was awaited
    --uninterrupted;
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

int stop_signal() {
    if (uninterrupted.load() > 0 && first_signal.load() == 0) {
        sigset_t set = all_signals();
        if (also_waiting.load() != 0) sigaddset(&set, also_waiting.load());
        const timespec at_once{};
        if (const int signal = sigtimedwait(&set, nullptr, &at_once); signal > 0) note(signal);
    }
    return first_signal.load();
}
const std::atomic<bool>& told_to_stop() { return told; }

std::string signal_name(int signal) {
    const char* name = sigabbrev_np(signal);
    return name ? std::string("SIG") + name : "signal " + std::to_string(signal);
}

Stopped::Stopped(int of) : std::runtime_error("stopped by " + signal_name(of)), signal(of) {}

RemovedWhenTold::RemovedWhenTold(const std::filesystem::path& file)
    : slot_(take_slot<const char*>(files, strdup(file.c_str()))) {}
RemovedWhenTold::~RemovedWhenTold() {
    if (slot_ != kNoSlot) files[static_cast<std::size_t>(slot_)] = nullptr;
}

ToldToo::ToldToo(pid_t child) : slot_(take_slot<pid_t>(children, child)) {}
ToldToo::~ToldToo() {
    if (slot_ != kNoSlot) children[static_cast<std::size_t>(slot_)] = 0;
}

void belong_to_parent() {
    for (const int signal : kSignals) {
        struct sigaction now {};
        sigaction(signal, nullptr, &now);
        if (now.sa_handler != SIG_IGN) ::signal(signal, SIG_DFL);
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
}

}  // namespace moeplan
