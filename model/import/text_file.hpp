#pragma once
#include <filesystem>
#include <string>

namespace moeplan {

/// The whole of a small text file. @throws InputError for a folder, an unreadable file, or one over
/// 16 MiB
std::string read_text_file(const std::filesystem::path& file);

}  // namespace moeplan
