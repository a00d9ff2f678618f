#include "kernels/communicator.hpp"

#include <gtest/gtest.h>

#include "core/child_process.hpp"
#include "core/errors.hpp"

namespace moeplan {
namespace {

TEST(Communicator, RanksExchangeWhatEachCanSayBeforehand) {
    if (!built_with_mpi() || !find_program("mpirun")) GTEST_SKIP() << "no mpirun here";
    ChildOptions options;
    options.environment = mpirun_environment();
    for (const int ranks : {3}) {
        const ChildResult child = run_child(mpirun_words(ranks, {MOEPLAN_EXCHANGE_RANKS}), options);
        EXPECT_EQ(child.status, 0) << child.error;
        EXPECT_EQ(child.output, "ok\n") << ranks << " ranks";
    }
}

TEST(Communicator, AloneItCopiesAndSumsToItself) {
    const Communicator alone;
    const std::int64_t size = 3;
    char out[4] = {};
    alone.all_to_all_v("abc", std::span(&size, 1), out, std::span(&size, 1));
    EXPECT_STREQ(out, "abc");
    EXPECT_EQ(alone.all_reduce_sum(2.5), 2.5);
    EXPECT_EQ(alone.split(7, 0).size(), 1);
    EXPECT_THROW(alone.send("a", 1, 0), EnvironmentError);
}

}  // namespace
}  // namespace moeplan
