#include "simulator/network/flow_shares.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "core/seed.hpp"
#include "simulator/network/shared_links.hpp"
#include "tests/tolerance.hpp"

namespace moeplan {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

struct Message {
    std::vector<std::uint32_t> links;
    double bytes = 0, weight = 1, start = 0;
};

/// When each message is through, in the solver that fills entity by entity.
std::vector<double> ends_by_entities(const std::vector<double>& capacity,
                                     const std::vector<Message>& messages) {
    SharedLinks links(capacity.size());
    std::vector<double> ends(messages.size());
    std::vector<std::uint64_t> owners;
    std::size_t begun = 0;
    double now = 0;
    while (true) {
        links.settle(now);
        const double start = begun < messages.size() ? messages[begun].start : kNever,
                     finish = links.next_finish();
        if (start == kNever && finish == kNever) return ends;
        now = std::max(now, std::min(start, finish));
        if (finish <= start) {
            owners.clear();
            links.take_finished(now, owners);
            for (const auto m : owners) ends[m] = now;
            continue;
        }
        std::vector<SharedLinks::Use> uses;
        for (const auto link : messages[begun].links) uses.push_back({link, 1 / capacity[link]});
        links.add(uses, messages[begun].bytes, messages[begun].weight, begun);
        ++begun;
    }
}

std::vector<double> ends_by_parts(const std::vector<double>& capacity,
                                  const std::vector<Message>& messages) {
    FlowShares flows(capacity);
    std::vector<double> ends(messages.size(), -1);
    std::vector<std::uint64_t> owners;
    std::size_t begun = 0;
    double now = 0;
    while (true) {
        flows.settle(now);
        const double start = begun < messages.size() ? messages[begun].start : kNever,
                     finish = flows.next_finish();
        if (start == kNever && finish == kNever) return ends;
        now = std::max(now, std::min(start, finish));
        if (finish <= start) {
            owners.clear();
            flows.take_finished(now, owners);
            EXPECT_FALSE(owners.empty()) << now;
            for (const auto m : owners) {
                EXPECT_EQ(ends[m], -1) << m;
                ends[m] = now;
            }
            continue;
        }
        while (begun < messages.size() && messages[begun].start <= now) {
            const Message& m = messages[begun];
            flows.add(m.links, m.bytes, m.weight, begun++);
        }
    }
}

/// How a case's messages look: few long routes, or very many between two rows of ports.
struct Shape {
    const char* name;
    int links, messages, hops;
    bool ports, weights;
};

class FlowSharesOn : public testing::TestWithParam<Shape> {};

TEST_P(FlowSharesOn, RandomMessagesEndWhenTheSolverOfEntitiesSays) {
    const Shape& shape = GetParam();
    DrawStream draws{Seed{31}};
    for (int trial = 0; trial < 12; ++trial) {
        std::vector<double> capacity;
        for (int l = 0; l < shape.links; ++l)
            capacity.push_back(std::exp(draws.normal()) * 50e9);
        std::vector<Message> messages;
        double start = 0;
        for (int m = 0; m < shape.messages; ++m) {
            Message message;
            if (shape.ports) {
                const auto half = static_cast<std::uint64_t>(shape.links / 2);
                message.links = {static_cast<std::uint32_t>(draws.below(half)),
                                 static_cast<std::uint32_t>(half + draws.below(half))};
            } else {
                const std::size_t hops = 1 + draws.below(static_cast<std::uint64_t>(shape.hops));
                while (message.links.size() < hops) {
                    const auto link = static_cast<std::uint32_t>(
                        draws.below(static_cast<std::uint64_t>(shape.links)));
                    if (std::find(message.links.begin(), message.links.end(), link) ==
                        message.links.end())
                        message.links.push_back(link);
                }
            }
            message.bytes = std::exp(draws.normal()) * 1e6;
            message.weight = shape.weights ? 1 + static_cast<double>(draws.below(4)) : 1;
            // a third of them in crowds, the others one by one
            if (draws.below(3) == 0) start += draws.exponential() * 5e-6;
            message.start = start;
            messages.push_back(message);
        }
        const auto expected = ends_by_entities(capacity, messages),
                   found = ends_by_parts(capacity, messages);
        for (std::size_t m = 0; m < messages.size(); ++m)
            ASSERT_TRUE(close(found[m], expected[m], kFlowEngines))
                << shape.name << " trial " << trial << " message " << m << ": " << found[m]
                << " and " << expected[m];
    }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, FlowSharesOn,
    testing::Values(Shape{"one_link", 1, 40, 1, false, true}, Shape{"ports", 16, 400, 2, true, false},
                    Shape{"weighted_ports", 16, 400, 2, true, true},
                    Shape{"many_ports", 128, 3000, 2, true, false},
                    Shape{"sparse", 200, 150, 2, false, true},
                    Shape{"long_routes", 60, 300, 5, false, true}),
    [](const auto& info) { return info.param.name; });

TEST(FlowShares, MeetingAndPartingChangesNoRate) {
    // Two pairs on ports of their own, 100 bytes at 10 a second. A third message joins them over
    // one port of each for 2 s (10 bytes at 5): from 1 s on it and both others have 5 a second
    // until 3 s. 10 + 10 bytes by then; the other 80 at 10 a second end at 11 s.
    FlowShares flows({10, 10, 10, 10});
    const std::vector<std::uint32_t> first = {0, 1}, second = {2, 3}, bridge = {1, 2};
    flows.add(first, 100, 1, 1);
    flows.add(second, 100, 1, 2);
    flows.settle(0);
    EXPECT_EQ(flows.next_finish(), 10);
    flows.add(bridge, 10, 1, 3);
    flows.settle(1);
    EXPECT_TRUE(close(flows.next_finish(), 3));
    std::vector<std::uint64_t> owners;
    flows.take_finished(flows.next_finish(), owners);
    EXPECT_EQ(owners, std::vector<std::uint64_t>{3});
    flows.settle(3);
    EXPECT_TRUE(close(flows.next_finish(), 11));
    owners.clear();
    flows.take_finished(flows.next_finish(), owners);
    EXPECT_EQ(owners, (std::vector<std::uint64_t>{1, 2}));  // in order of their addition
    flows.settle(11);
    EXPECT_EQ(flows.next_finish(), kNever);
}

}  // namespace
}  // namespace moeplan
