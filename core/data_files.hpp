#pragma once
/// Where the shipped data (specs/, schemas/) lies: beside an installed binary, or in the source
/// tree that it was built from.

#include <filesystem>
#include <string>
#include <vector>

namespace moeplan {

/// First that exists of $MOEPLAN_DATA, <binary>/../share/moeplan, <binary>/.. (a build folder in
/// the source tree), the source tree built from.
/// @throws EnvironmentError if none holds specs/
std::filesystem::path data_folder();

/// Names without ".json" of the files in a folder of the shipped data ("specs/models"), sorted.
std::vector<std::string> shipped_names(const std::string& folder);
std::filesystem::path shipped_file(const std::string& folder, const std::string& name);

/// The shipped file of that name, or the path itself if it names an existing file.
/// @throws InputError naming the nearest shipped name
std::filesystem::path shipped_or_file(const std::string& flag, const std::string& folder,
                                      const std::string& name_or_file);

/// The running binary.
std::filesystem::path own_binary();

}  // namespace moeplan
