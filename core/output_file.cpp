#include "core/output_file.hpp"

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "core/errors.hpp"

namespace moeplan {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kPart = ".part";
constexpr std::string_view kScratch = "moeplan-run.";

/// "host.1234": whose it is. Folders may be shared between machines.
std::string owner() {
    char host[256] = {};
    gethostname(host, sizeof host - 1);
    return std::string(host) + "." + std::to_string(getpid());
}

/// Whether a name ends in an owner of this machine that is no more.
bool is_left_behind(std::string_view name) {
    const auto dot = name.rfind('.');
    if (dot == std::string_view::npos) return false;
    const std::string_view digits = name.substr(dot + 1);
    if (digits.empty() || digits.size() > 9 ||
        digits.find_first_not_of("0123456789") != std::string_view::npos)
        return false;
    char host[256] = {};
    gethostname(host, sizeof host - 1);
    const std::string_view before = name.substr(0, dot), here = host;
    if (!before.ends_with(here) || before.size() <= here.size() ||
        before[before.size() - here.size() - 1] != '.')
        return false;
    const pid_t process = std::atoi(std::string(digits).c_str());
    return process > 0 && kill(process, 0) != 0 && errno == ESRCH;
}

/// Files that a killed program was writing here, as `.answer.json.host.1234.part`.
void remove_left_behind(const fs::path& folder) {
    std::error_code error;
    for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
        const std::string name = at->path().filename().string();
        std::error_code ignored;
        if (name.starts_with('.') && name.ends_with(kPart) &&
            is_left_behind(std::string_view(name).substr(0, name.size() - kPart.size())))
            fs::remove(at->path(), ignored);
    }
}

/// Once a folder and process is enough.
bool is_new(const fs::path& folder) {
    static std::mutex mutex;
    static std::set<fs::path> seen;
    const std::lock_guard lock(mutex);
    return seen.insert(folder).second;
}

}  // namespace

PendingFile::PendingFile(fs::path target) : target_(std::move(target)) {
    std::error_code error;
    if (target_.empty()) throw InputError("output file", "", "an empty name", "a file name");
    // A link keeps pointing at its file; a device or pipe must never be replaced by a file.
    if (fs::is_symlink(target_, error) && fs::exists(target_, error))
        target_ = fs::canonical(target_, error);
    if (fs::exists(target_, error) && !fs::is_regular_file(target_, error) &&
        !fs::is_directory(target_, error))
        throw InputError(target_.string(), "", "a device or pipe", "a file name");
    const fs::path folder = target_.has_parent_path() ? target_.parent_path() : fs::path(".");
    if (!fs::is_directory(folder, error))
        throw InputError(target_.string(), "", "",
                         "a file in an existing folder; " + folder.string() + " is none");
    if (fs::is_directory(target_, error))
        throw InputError(target_.string(), "", "a folder", "a file name");
    if (access(folder.c_str(), W_OK) != 0)
        throw InputError(
            target_.string(), "", "",
            "a folder that can be written (" + std::string(std::strerror(errno)) + ")");
    if (is_new(folder)) remove_left_behind(folder);
    temporary_ = folder / ("." + target_.filename().string() + "." + owner() + std::string(kPart));
    removed_when_told_.emplace(temporary_);
}

PendingFile::~PendingFile() {
    std::error_code error;
    if (!kept_) fs::remove(temporary_, error);
}

void PendingFile::keep() {
    if (std::rename(temporary_.c_str(), target_.c_str()) != 0)
        throw InputError(target_.string(), "", "",
                         "a file that can be replaced (" + std::string(std::strerror(errno)) + ")");
    kept_ = true;
}

ScratchFolder::ScratchFolder() {
    const fs::path folder = fs::temp_directory_path();
    std::error_code error;
    for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
        // moeplan-run.0.host.1234
        const std::string name = at->path().filename().string();
        std::error_code ignored;
        if (name.starts_with(kScratch) && is_left_behind(name)) fs::remove_all(at->path(), ignored);
    }
    static std::atomic<int> count{0};
    int failed = 0;
    do {  // an earlier process of the same number, of another user perhaps, may have left one
        path_ = folder / (std::string(kScratch) + std::to_string(count++) + "." + owner());
        failed = mkdir(path_.c_str(), 0700);
    } while (failed != 0 && errno == EEXIST && count < 1000);
    if (failed != 0)
        throw EnvironmentError("no temporary folder under " + folder.string() + " (" +
                               std::strerror(errno) + "): set TMPDIR to a writable one");
}

ScratchFolder::~ScratchFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
}

void write_whole(const fs::path& file, std::string_view content) {
    if (file == "-") {
        const bool whole = std::fwrite(content.data(), 1, content.size(), stdout) == content.size();
        if (!whole || std::fflush(stdout) != 0)
            throw InputError("standard output", "", "",
                             std::string("room to write (") + std::strerror(errno) + ")");
        return;
    }
    std::error_code error;
    if (fs::exists(file, error) && !fs::is_regular_file(file, error) &&
        !fs::is_directory(file, error)) {
        // A device or a pipe (/dev/null, /dev/stdout) cannot be replaced: write into it.
        std::ofstream out(file, std::ios::binary);
        out.write(content.data(), static_cast<std::streamsize>(content.size()));
        out.flush();
        if (!out)
            throw InputError(file.string(), "", "",
                             std::string("room to write (") + std::strerror(errno) + ")");
        return;
    }
    PendingFile pending(file);
    {
        std::ofstream out(pending.temporary(), std::ios::binary);
        out.write(content.data(), static_cast<std::streamsize>(content.size()));
        out.flush();
        if (!out)
            throw InputError(file.string(), "", "",
                             "room to write (" + std::string(std::strerror(errno)) + ")");
    }
    pending.keep();
}

}  // namespace moeplan
