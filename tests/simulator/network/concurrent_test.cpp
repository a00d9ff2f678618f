#include "tests/simulator/network/concurrent_cases.hpp"

#include <gtest/gtest.h>

#include "tests/tolerance.hpp"

namespace moeplan {
namespace {

double last_of(const std::vector<Seconds>& ends) {
    return std::max_element(ends.begin(), ends.end())->value;
}

TEST(ConcurrentCollectives, ClosedFormIsWithinThreePercentOfFlowsAtTheMedian) {
    // docs/simgrid.md has the distribution over 1,000 cases, and what the largest gaps come from.
    std::vector<double> gaps;
    for (std::uint64_t number = 0; number < 60; ++number) {
        const ConcurrentCase one = concurrent_case(number);
        gaps.push_back(std::abs(last_of(ends_of(one, NetworkModel::closed_form)) /
                                    last_of(ends_of(one, NetworkModel::fluid)) -
                                1));
    }
    std::sort(gaps.begin(), gaps.end());
    EXPECT_LT(gaps[gaps.size() / 2], 0.03);
    EXPECT_LT(gaps[gaps.size() * 9 / 10], 0.20);
    EXPECT_GT(gaps.back(), 1e-6);  // they are cases that contend
}

/// Nothing is through before its links could carry it: after it began, its time alone; all of them,
/// what the fullest link has to carry.
TEST(ConcurrentCollectives, NeitherModelIsFasterThanTheLinks) {
    for (std::uint64_t number = 100; number < 140; ++number) {
        const ConcurrentCase one = concurrent_case(number);
        const LinkGraph graph = build_link_graph(one.cluster);
        std::vector<double> load(graph.links.size(), 0);
        for (const Exchange& exchange : one.exchanges)
            for (const ExchangeStage& stage : exchange.stages)
                for (const LinkLoad& part : stage.loads)
                    load[part.link] += part.bytes / graph.links[part.link].bandwidth /
                                       Seconds{exchange.efficiency};
        const double fullest = *std::max_element(load.begin(), load.end());
        for (const auto model : {NetworkModel::closed_form, NetworkModel::fluid}) {
            const auto ends = ends_of(one, model);
            for (std::size_t i = 0; i < ends.size(); ++i)
                EXPECT_GE(ends[i].value,
                          (one.starts[i] + time_alone(one.exchanges[i])).value * (1 - kFlowEngines))
                    << one.what;
            EXPECT_GE(last_of(ends), fullest * (1 - kFlowEngines)) << one.what;
        }
    }
}

/// SimGrid holds one platform a process, so each case is a test of its own.
class ConcurrentFlows : public testing::TestWithParam<std::uint64_t> {};

TEST_P(ConcurrentFlows, EndTogetherInTheFluidSolverAndInSimGrid) {
    const ConcurrentCase one = concurrent_case(GetParam());
    const auto fluid = ends_of(one, NetworkModel::fluid),
               simgrid = ends_of(one, NetworkModel::simgrid);
    for (std::size_t i = 0; i < fluid.size(); ++i)
        EXPECT_TRUE(close(fluid[i].value, simgrid[i].value, kFlowEngines))
            << one.what << ": " << fluid[i].value << " " << simgrid[i].value;
}

INSTANTIATE_TEST_SUITE_P(Numbers, ConcurrentFlows, testing::Range<std::uint64_t>(0, 12));

}  // namespace
}  // namespace moeplan
