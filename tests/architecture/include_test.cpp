/// Knowledge flows one way: the folder table of docs/architecture.md, against the link lines and
/// the #include lines.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>

#include "core/text.hpp"

namespace moeplan {
namespace {

namespace fs = std::filesystem;

/// Which rows a row may know, as docs/architecture.md says it.
const std::map<std::string, std::set<std::string>> kMayKnow = {
    {"core", {}},
    {"traces", {"core"}},
    {"model_spec", {"core"}},
    {"profile", {"core", "model_spec"}},
    {"simulator", {"core", "traces", "model_spec", "profile"}},
    {"planner", {"core", "traces", "model_spec", "profile", "simulator"}},
    {"kernels",
     {"core",
      "model_spec"}},  // model_spec: names and work of kernels (model/kernel_work.hpp) alone
    {"model", {"core", "traces", "model_spec", "kernels", "text"}},
    {"profiler", {"core", "model_spec", "profile", "kernels"}},
    {"real_run", {"core", "traces", "model_spec", "profile", "simulator", "kernels", "model"}},
};

/// Words of outside libraries that only some rows may include.
const std::map<std::string, std::set<std::string>> kHidden = {
    {"hdf5.h", {"traces"}},
    {"H5", {"traces"}},
    {"simgrid/", {"simulator"}},
    {"boost/graph", {"simulator"}},
    {"mpi.h", {"kernels"}},
    {"cuda", {"kernels"}},
    {"nccl.h", {"kernels"}},
    {"cublas", {"kernels"}},
    {"oneapi/dnnl", {"kernels"}},
    {"sentencepiece", {"model"}},
    {"CLI/", {}},
    {"pugixml", {"simulator"}},
};

struct Tree {
    std::map<std::string, std::set<std::string>> links;  ///< row → rows on its link line
    std::map<std::string, std::string> row_of;           ///< source or header → row
};

/// Headers belong to the row of the source beside them; a header alone belongs to the only row of
/// its folder, or by this table.
const std::map<std::string, std::string> kHeaderRows = {
    {"traces/routing_trace.hpp", "traces"},
    {"simulator/step.hpp", "simulator"},
};

Tree read_tree() {
    Tree tree;
    std::ifstream in(MOEPLAN_TARGETS);
    std::string line;
    std::map<std::string, std::set<std::string>> rows_of_folder;
    while (std::getline(in, line)) {
        const auto part = split(line, '|');
        const fs::path folder = fs::relative(part.at(2), MOEPLAN_SOURCE_DIR);
        for (const auto& link : split(part.at(1), ','))
            if (link.starts_with("moeplan::")) tree.links[part[0]].insert(link.substr(9));
        tree.links[part[0]];
        for (const auto& source : split(part.at(3), ',')) {
            if (source.empty() || source.starts_with("$") || source.starts_with("/")) continue;
            const fs::path path = (folder / source).lexically_normal();
            tree.row_of[path.string()] = part[0];
            fs::path header = path;
            header.replace_extension(".hpp");
            if (fs::exists(fs::path(MOEPLAN_SOURCE_DIR) / header))
                tree.row_of[header.string()] = part[0];
            for (fs::path up = path.parent_path(); !up.empty(); up = up.parent_path())
                rows_of_folder[up.string()].insert(part[0]);
        }
    }
    for (const auto& [header, row] : kHeaderRows) tree.row_of[header] = row;
    for (const std::string top :
         {"core", "traces", "model", "profiler", "simulator", "planner", "kernels"})
        for (const auto& entry :
             fs::recursive_directory_iterator(fs::path(MOEPLAN_SOURCE_DIR) / top)) {
            const std::string path = fs::relative(entry.path(), MOEPLAN_SOURCE_DIR).string();
            if (entry.path().extension() != ".hpp" || tree.row_of.contains(path)) continue;
            for (fs::path up = fs::path(path).parent_path(); !up.empty(); up = up.parent_path())
                if (const auto found = rows_of_folder.find(up.string());
                    found != rows_of_folder.end()) {
                    if (found->second.size() == 1) tree.row_of[path] = *found->second.begin();
                    break;
                }
        }
    return tree;
}

TEST(Architecture, EveryRowOfTheFolderTableIsATarget) {
    const Tree tree = read_tree();
    for (const auto& [row, knows] : kMayKnow) EXPECT_TRUE(tree.links.contains(row)) << row;
}

TEST(Architecture, LinkLinesNameOnlyWhatARowMayKnow) {
    for (const auto& [row, links] : read_tree().links)
        for (const auto& link : links)
            EXPECT_TRUE(kMayKnow.at(row).contains(link))
                << "moeplan::" << row << " links moeplan::" << link;
}

TEST(Architecture, IncludeLinesNameOnlyWhatARowMayKnow) {
    const Tree tree = read_tree();
    ASSERT_GT(tree.row_of.size(), 20u);
    const std::regex include(R"re(^\s*#\s*include\s*["<]([^">]+)[">])re");
    for (const auto& [path, row] : tree.row_of) {
        std::ifstream in(fs::path(MOEPLAN_SOURCE_DIR) / path);
        std::string line;
        for (int number = 1; std::getline(in, line); ++number) {
            std::smatch match;
            if (!std::regex_search(line, match, include)) continue;
            const std::string name = match[1];
            if (const auto target = tree.row_of.find(name); target != tree.row_of.end()) {
                EXPECT_TRUE(target->second == row || kMayKnow.at(row).contains(target->second))
                    << path << ":" << number << " (" << row << ") includes " << name << " ("
                    << target->second << ")";
            }
            EXPECT_FALSE(name.starts_with("cli/") || name.starts_with("tests/"))
                << path << ":" << number << " includes " << name;
            for (const auto& [word, rows] : kHidden)
                if (name.starts_with(word)) {
                    EXPECT_TRUE(rows.contains(row))
                        << path << ":" << number << " (" << row << ") includes " << name;
                }
        }
    }
}

TEST(Architecture, HeadersMentionNoHiddenLibrary) {
    // "HDF5 hidden", "SimGrid and Boost.Graph hidden": a user of a row compiles without that
    // library. Headers that only sources include are no part of that: no header may include them.
    const std::set<std::string> for_sources_only = {"traces/hdf5_file.hpp"};
    for (const auto& [path, row] : read_tree().row_of) {
        if (!path.ends_with(".hpp") || row == "kernels" || for_sources_only.contains(path)) continue;
        std::ifstream in(fs::path(MOEPLAN_SOURCE_DIR) / path);
        std::string line;
        while (std::getline(in, line)) {
            for (const std::string& internal : for_sources_only)
                EXPECT_EQ(line.find("#include \"" + internal), std::string::npos) << path;
            for (const std::string word : {"<hdf5", "<simgrid", "<boost/graph", "<mpi.h", "<cuda",
                                           "<sentencepiece", "<oneapi"})
                EXPECT_EQ(line.find("#include " + word), std::string::npos) << path << ": " << line;
        }
    }
}

}  // namespace
}  // namespace moeplan
