#pragma once
/// Files that appear whole or not at all.

#include <filesystem>
#include <string_view>

namespace moeplan {

/// Write to a temporary file beside the target, then rename. "-" writes to standard output.
/// @throws InputError  if the folder is missing or cannot be written; nothing is left behind
void write_whole(const std::filesystem::path& file, std::string_view content);

/// For writers of other libraries (HDF5): write to `temporary()`, then `keep()`. Unkept files
/// vanish with the object.
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
    bool kept_ = false;
};

}  // namespace moeplan
