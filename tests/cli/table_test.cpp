#include "cli/table.hpp"

#include <gtest/gtest.h>

namespace moeplan::cli {
namespace {

TEST(Table, AlignsByCharactersNotBytesAndNumbersToTheRight) {
    Table table({"part", "time"});
    table.row({"à-b", "1.5 ms"}).row({"compute", "12.0 ms"});
    EXPECT_EQ(table.text(), "part        time\nà-b       1.5 ms\ncompute  12.0 ms\n");
}

}  // namespace
}  // namespace moeplan::cli
