/// How far the closed form is from the flows where collectives meet: random clusters, unequal parts.
///
///     build/benchmarks/benchmark_agreement [CASES [LARGEST]]
///
/// Prints the distribution of the gap (closed form over flows, less one) of the time until all are
/// through and of each collective's own end, by what the cases have in common, and the largest ones.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "tests/simulator/network/concurrent_cases.hpp"

namespace moeplan {
namespace {

struct Gap {
    std::uint64_t number = 0;
    double gap = 0;
    std::string what;
};

void print(const char* name, std::vector<double> gaps) {
    if (gaps.empty()) return;
    std::size_t same = 0;
    for (double& gap : gaps) same += (gap = std::abs(gap)) <= 1e-9;
    std::sort(gaps.begin(), gaps.end());
    const auto at = [&](double share) {
        return 100 * gaps[std::min(gaps.size() - 1,
                                   static_cast<std::size_t>(share *
                                                            static_cast<double>(gaps.size())))];
    };
    fmt::print("| {} | {} | {:.1f} | {:.2f} | {:.2f} | {:.2f} | {:.2f} |\n", name, gaps.size(),
               100.0 * static_cast<double>(same) / static_cast<double>(gaps.size()), at(0.5),
               at(0.9), at(0.99), at(1));
}

void compare(std::uint64_t cases, std::size_t largest) {
    std::vector<Gap> all;
    std::vector<double> whole, each, small, large, even, skewed;
    double closed_seconds = 0, flow_seconds = 0;
    const auto timed = [](double& sum, const auto& work) {
        const auto begin = std::chrono::steady_clock::now();
        auto out = work();
        sum += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
        return out;
    };
    for (std::uint64_t number = 0; number < cases; ++number) {
        const ConcurrentCase one = concurrent_case(number);
        const auto closed = timed(closed_seconds,
                                  [&] { return ends_of(one, NetworkModel::closed_form); });
        const auto flows =
            timed(flow_seconds, [&] { return ends_of(one, NetworkModel::fluid); });
        for (std::size_t i = 0; i < closed.size(); ++i) each.push_back(closed[i] / flows[i] - 1);
        const double gap = *std::max_element(closed.begin(), closed.end()) /
                               *std::max_element(flows.begin(), flows.end()) -
                           1;
        whole.push_back(gap);
        (num_gpus(one.cluster) <= 8 ? small : large).push_back(gap);
        (one.skew < 0.5 ? even : skewed).push_back(gap);
        all.push_back({number, gap, one.what});
    }
    fmt::print("| gap, % | cases | none, % | median | p90 | p99 | largest |\n"
               "| --- | --- | --- | --- | --- | --- | --- |\n");
    print("until all are through", whole);
    print("— up to 8 GPUs", small);
    print("— more GPUs", large);
    print("— skew below 0.5", even);
    print("— skew of 0.5 to 1", skewed);
    print("each collective's own end", each);
    std::sort(all.begin(), all.end(),
              [](const Gap& a, const Gap& b) { return std::abs(a.gap) > std::abs(b.gap); });
    fmt::print("\nlargest:\n");
    for (std::size_t i = 0; i < std::min(largest, all.size()); ++i)
        fmt::print("{:+.1f} %  case {}: {}\n", 100 * all[i].gap, all[i].number, all[i].what);
    fmt::print("\n{:.2f} s at closed form, {:.2f} s by flows\n", closed_seconds, flow_seconds);
}

}  // namespace
}  // namespace moeplan

int main(int count, char** words) {
    moeplan::compare(count > 1 ? std::strtoull(words[1], nullptr, 10) : 1000,
                     count > 2 ? std::strtoull(words[2], nullptr, 10) : 10);
}
