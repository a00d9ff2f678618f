#include "core/data_files.hpp"

#include <algorithm>
#include <cstdlib>

#include "core/errors.hpp"
#include "core/text.hpp"

namespace moeplan {
namespace fs = std::filesystem;

fs::path own_binary() {
    std::error_code error;
    return fs::read_symlink("/proc/self/exe", error);
}

fs::path data_folder() {
    std::vector<fs::path> places;
    if (const char* set = std::getenv("MOEPLAN_DATA"); set && *set) places.emplace_back(set);
    const fs::path here = own_binary().parent_path();
    places.push_back(here.parent_path() / "share" / "moeplan");
    places.push_back(here.parent_path());
    places.emplace_back(MOEPLAN_BUILT_FROM);
    std::error_code error;
    for (const auto& place : places)
        if (fs::is_directory(place / "specs", error)) return place;
    throw EnvironmentError("the shipped files (specs/) were not found beside " +
                           own_binary().string() +
                           "; set MOEPLAN_DATA to the folder that holds specs/");
}

std::vector<std::string> shipped_names(const std::string& folder) {
    std::vector<std::string> out;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(data_folder() / folder, error))
        if (entry.path().extension() == ".json") out.push_back(entry.path().stem().string());
    std::sort(out.begin(), out.end());
    return out;
}

fs::path shipped_file(const std::string& folder, const std::string& name) {
    return data_folder() / folder / (name + ".json");
}

fs::path shipped_or_file(const std::string& flag, const std::string& folder,
                         const std::string& name_or_file) {
    const auto names = shipped_names(folder);
    if (std::find(names.begin(), names.end(), name_or_file) != names.end())
        return shipped_file(folder, name_or_file);
    std::error_code error;
    if (fs::exists(name_or_file, error)) return name_or_file;
    const std::string near = nearest_word(name_or_file, names);
    throw InputError(flag, "", "\"" + name_or_file + "\"",
                     near.empty() ? "a file, or one of the shipped names: " + join(names, ", ")
                                  : "a file or a shipped name (\"" + near + "\" perhaps)");
}

}  // namespace moeplan
