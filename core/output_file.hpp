#pragma once
/// Files that appear whole or not at all.

#include <filesystem>
#include <optional>
#include <string_view>

#include "core/stop_signal.hpp"

namespace moeplan {

/// Write to a temporary file beside the target, then rename. "-" writes to standard output.
/// @throws InputError  if the folder is missing or cannot be written; nothing is left behind
void write_whole(const std::filesystem::path& file, std::string_view content);

/// For writers of other libraries (HDF5): write to `temporary()`, then `keep()`. Unkept files
/// vanish with the object, and with a signal that ends the program. What a killed program left in
/// the folder is removed.
class PendingFile {
  public:
    explicit PendingFile(
        std::filesystem::path target);  ///< @throws InputError if its folder cannot be written
    PendingFile(const PendingFile&) = delete;
    PendingFile& operator=(const PendingFile&) = delete;
    ~PendingFile();

    const std::filesystem::path& temporary() const { return temporary_; }
    void keep();

  private:
    std::filesystem::path target_, temporary_;
    std::optional<RemovedWhenTold> removed_when_told_;
    bool kept_ = false;
};

/// A folder under the temporary one, which goes away with the object. What killed programs left
/// there goes too.
class ScratchFolder {
  public:
    ScratchFolder();  ///< @throws EnvironmentError if there is no room for one
    ScratchFolder(const ScratchFolder&) = delete;
    ScratchFolder& operator=(const ScratchFolder&) = delete;
    ~ScratchFolder();
    const std::filesystem::path& path() const { return path_; }

  private:
    std::filesystem::path path_;
};

}  // namespace moeplan
