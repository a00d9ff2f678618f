#include "core/output_file.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <utility>

#include "core/errors.hpp"

namespace moeplan {
namespace fs = std::filesystem;

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
    temporary_ =
        folder / ("." + target_.filename().string() + "." + std::to_string(getpid()) + ".part");
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
