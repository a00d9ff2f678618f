#include "core/child_process.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>

#include "core/errors.hpp"

namespace moeplan {
namespace {

TEST(ChildProcess, OutputErrorAndStatusComeBack) {
    const auto result = run_child({"sh", "-c", "cat; echo wrong >&2; exit 3"}, {.input = "hello"});
    EXPECT_EQ(result.output, "hello");
    EXPECT_EQ(result.error, "wrong\n");
    EXPECT_EQ(result.status, 3);
}

TEST(ChildProcess, InputAndOutputLargerThanAPipeDoNotBlock) {
    // 8 MB through a pipe of 64 KiB, in both directions at once.
    const std::string input(8 << 20, 'x');
    EXPECT_EQ(run_child({"cat"}, {.input = input}).output, input);
}

TEST(ChildProcess, AChildThatDoesNotReadItsInputHurtsNobody) {
    EXPECT_EQ(run_child({"true"}, {.input = std::string(4 << 20, 'x')}).status, 0);
}

TEST(ChildProcess, EnvironmentIsSetAndRemoved) {
    setenv("MOEPLAN_TEST_GONE", "1", 1);
    const auto result = run_child(
        {"sh", "-c", "echo $MOEPLAN_TEST_SET$MOEPLAN_TEST_GONE"},
        {.environment = {{"MOEPLAN_TEST_SET", "yes"}}, .remove_environment = {"MOEPLAN_TEST_G*"}});
    EXPECT_EQ(result.output, "yes\n");
}

TEST(ChildProcess, PollEndsAChildAndItsChildren) {
    const auto begin = std::chrono::steady_clock::now();
    const auto result =
        run_child({"sh", "-c", "sleep 60 & sleep 60"}, {.poll = [] { return false; }});
    EXPECT_EQ(result.status, 128 + 15);
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST(ChildProcess, AMissingProgramIsNamed) {
    EXPECT_THROW(run_child({"no-such-program-here"}), EnvironmentError);
}

}  // namespace
}  // namespace moeplan
