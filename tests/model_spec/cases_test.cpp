/// Every case that the shared folder puts to `check` and `model show`, where that folder is at
/// hand.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

namespace moeplan {
namespace {

namespace fs = std::filesystem;

TEST(SharedCases, AreAnsweredAsExpected) {
    const char* set = std::getenv("MOEPLAN_SHARED");
    const fs::path shared = set ? fs::path(set) : fs::path(MOEPLAN_SOURCE_DIR) / ".." / "shared";
    if (!fs::exists(shared / "tools" / "ask"))
        GTEST_SKIP() << "no " << shared << " with tools/ask and cases/ (set MOEPLAN_SHARED)";
    if (!fs::exists(MOEPLAN_BINARY)) GTEST_SKIP() << MOEPLAN_BINARY << " is not built";
    const std::string command = "python3 '" + (shared / "tools" / "ask").string() +
                                "' --moeplan '" MOEPLAN_BINARY "' --only 'check,model show' '" +
                                (shared / "cases").string() + "'/*.json";
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
}

}  // namespace
}  // namespace moeplan
