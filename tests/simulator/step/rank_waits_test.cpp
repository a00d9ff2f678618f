#include "simulator/rank_waits.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "simulator/step_walk.hpp"
#include "tests/simulator/step/cases.hpp"
#include "tests/tolerance.hpp"

namespace moeplan {
namespace {

/// A CPU on which work takes `alone` times as long on one rank, `two` and `four` times on the
/// slower of 2 and the slowest of 4, however long it is; kernels' medians have `typical` of it.
std::shared_ptr<const Profile> unsteady_core(double alone, double two, double four,
                                             double typical = 1) {
    Profile core = *tests::plain_profile();
    core.host_overlap = 0;
    core.stretches = StretchCurve{"", {0.1}, {"num_ranks", "stretch_s", "slowest", "typical"}, {}};
    for (const auto& [ranks, slowest] :
         {std::pair{1, alone}, std::pair{2, two}, std::pair{4, four}})
        for (const double stretch : {1e-6, 1.0})
            core.stretches->rows.push_back({double(ranks), stretch, slowest, typical});
    prepare(core);
    return std::make_shared<const Profile>(core);
}

StepCase trainer_case(std::shared_ptr<const Profile> profile, int ep, int dp) {
    StepCase step = tests::small_case(1);
    step.schedule.software.framework = "moeplan";
    step.schedule.precision = Precision::fp32;
    step.schedule.num_micro_batches = 1;
    step.schedule.sharding = Sharding::none;
    step.layout.data_parallel_size = dp;
    step.layout.expert_parallel_size = ep;
    step.profile = std::move(profile);
    return step;
}

double sum(const std::vector<double>& values) {
    return std::accumulate(values.begin(), values.end(), 0.0);
}

TEST(WaitForSlowest, OfEqualRanksIsWhatTheSlowestTakesLonger) {
    const auto profile = unsteady_core(1.1, 1.3, 1.6);
    // max(10 · 1.1, 10 · 1.3) − 10 = 3 ms; of four 6 ms
    EXPECT_NEAR(wait_for_slowest(*profile, {0.010, 0.010}, 0.010, 1, 2), 0.003, 1e-15);
    EXPECT_NEAR(wait_for_slowest(*profile, std::vector<double>(4, 0.010), 0.010, 1, 4), 0.006,
                1e-15);
    // one column that stands for four replicas
    EXPECT_NEAR(wait_for_slowest(*profile, {0.010}, 0.010, 4, 4), 0.006, 1e-15);
    // a lane of four in groups of two
    EXPECT_NEAR(wait_for_slowest(*profile, std::vector<double>(4, 0.010), 0.010, 1, 2), 0.003,
                1e-15);
}

TEST(WaitForSlowest, DoesNotCountUnequalLoadsTwice) {
    const auto profile = unsteady_core(1.1, 1.3, 1.6);
    // max(10 · 1.1, 5 · 1.3) − 10 = 1 ms: the other is done whatever disturbs it
    EXPECT_NEAR(wait_for_slowest(*profile, {0.005, 0.010}, 0.010, 1, 2), 0.001, 1e-15);
    // max(10 · 1.1, 9 · 1.3) − 10 = 1.7 ms
    EXPECT_NEAR(wait_for_slowest(*profile, {0.010, 0.009}, 0.010, 1, 2), 0.0017, 1e-15);
    EXPECT_EQ(wait_for_slowest(*unsteady_core(1, 1, 1), {0.010, 0.009}, 0.010, 1, 2), 0);
}

TEST(WaitForSlowest, LeavesOutWhatKernelsHaveInTheirMedians) {
    // Kernels of 3 and 7 ms whose medians are 1.05 times undisturbed: 10 / 1.05 · 1.3 − 10 = 2.381
    // ms
    const auto profile = unsteady_core(1.1, 1.3, 1.6, 1.05);
    const double share = undisturbed_share(*profile, std::vector{0.003, 0.007});
    EXPECT_NEAR(share, 1 / 1.05, 1e-15);
    EXPECT_NEAR(wait_for_slowest(*profile, {0.010 * share, 0.010 * share}, 0.010, 1, 2),
                0.010 / 1.05 * 1.3 - 0.010, 1e-15);
    EXPECT_EQ(wait_for_slowest(*unsteady_core(1, 1, 1, 1.05), {0.010 / 1.05}, 0.010, 1, 1), 0);
    EXPECT_EQ(undisturbed_share(*tests::plain_profile(), std::vector{0.003}), 1);
}

TEST(RankWaits, AddToTheStepWhatEveryExchangeWaits) {
    for (const auto& [ep, dp] : {std::pair{1, 4}, std::pair{2, 2}, std::pair{4, 4}}) {
        const StepCase steady = trainer_case(unsteady_core(1, 1, 1), ep, dp),
                       unsteady = trainer_case(unsteady_core(1.1, 1.2, 1.3), ep, dp);
        const StepGraph graph = build_step_graph(unsteady);
        const JobPrices prices = price_jobs(graph, unsteady);
        ASSERT_EQ(prices.waits.size(), graph.ops.size());
        const double waited = sum(prices.waits);
        EXPECT_GT(waited, 0);
        // balanced: all work, the update in the next step's first stretch, waits as the group does,
        // W · (S(n) − 1)
        double work = 0;
        for (const Op& op : graph.ops)
            if (!op.exchange) work += prices.jobs[op.demand].device;
        if (ep == dp || ep == 1) {
            EXPECT_TRUE(close(waited, work * (dp == 4 ? 0.3 : 0.2), 1e-9)) << ep << " " << dp;
        }
        EXPECT_TRUE(close(estimate_step(unsteady).step_time.value,
                          estimate_step(steady).step_time.value + waited, 1e-9));
        // the flow engines wait alike
        EXPECT_TRUE(close(simulate_step(unsteady).step_time.value,
                          estimate_step(unsteady).step_time.value, 1e-9));
    }
}

TEST(RankWaits, MoreRanksWaitLonger) {
    const auto profile = unsteady_core(1.1, 1.2, 1.3);
    const auto waited = [&](int ranks) {
        const StepCase step = trainer_case(profile, 1, ranks);
        const StepGraph graph = build_step_graph(step);
        return sum(price_jobs(graph, step).waits);
    };
    EXPECT_EQ(waited(1), 0);  // meets nobody
    EXPECT_LT(waited(2), waited(4));
    EXPECT_EQ(waited(4), waited(8));  // beyond what was measured: the edge
}

TEST(RankWaits, AreOurOwnTrainersOnACpuAlone) {
    StepCase gpu = trainer_case(unsteady_core(1.1, 1.2, 1.3), 2, 2);
    Profile other = *gpu.profile;
    other.host_overlap = 1;
    gpu.profile = std::make_shared<const Profile>(other);
    EXPECT_TRUE(price_jobs(build_step_graph(gpu), gpu).waits.empty());
    StepCase unmeasured = trainer_case(tests::plain_profile(), 2, 2);
    Profile silent = *tests::plain_profile();
    silent.host_overlap = 0;
    unmeasured.profile = std::make_shared<const Profile>(silent);
    EXPECT_TRUE(price_jobs(build_step_graph(unmeasured), unmeasured).waits.empty());
}

TEST(RankWaits, AreNamedInTheReport) {
    const StepReport report = estimate_step(trainer_case(unsteady_core(1.5, 2, 3), 2, 2));
    const auto named = std::find_if(report.losses.begin(), report.losses.end(), [](const Loss& l) {
        return l.what.find("disturbed") != std::string::npos;
    });
    ASSERT_NE(named, report.losses.end());
    EXPECT_GT(named->time.value, 0);
}

TEST(TrainersExchanges, AreOneForEachTensorAndCarryEveryGradientOnce) {
    const StepCase here = trainer_case(unsteady_core(1, 1, 1), 2, 4);
    StepCase there = here;  // on a device that overlaps: layer by layer
    Profile gpu = *here.profile;
    gpu.host_overlap = 1;
    there.profile = std::make_shared<const Profile>(gpu);
    const auto carried = [](const StepCase& step, int& count) {
        double bytes = 0;
        const StepGraph graph = build_step_graph(step);
        for (const Op& op : graph.ops)
            if (op.exchange && op.part == Part::data_comm)
                bytes += graph.exchanges[op.demand].payload.value, ++count;
        return bytes;
    };
    int tensors = 0, buckets = 0;
    EXPECT_TRUE(close(carried(here, tensors), carried(there, buckets), 1e-12));
    // 4 layers of q, k, v, o, two of experts and what is small; embedding; head and last norm
    EXPECT_EQ(tensors, 4 * 7 + 1 + 2);
}

TEST(TrainersExchanges, AmongExpertsTakeWhatTheProfileMeasured) {
    // 2 ranks, 512 tokens, top-2, balanced: half of 1,024 rows of 256 · 4 B leave, 0.5 MiB. The
    // curve counts the own half too: 1 MiB takes 3 ms.
    Profile core = *unsteady_core(1, 1, 1);
    core.links = {{"all_to_all",
                   2,
                   Basis::measured,
                   "",
                   {"bytes", "median_s"},
                   {{1 << 10, 1e-5}, {1 << 20, 3e-3}}}};
    prepare(core);
    const StepCase step = trainer_case(std::make_shared<const Profile>(core), 2, 2);
    const StepGraph graph = build_step_graph(step);
    StepNetwork network(step, graph);
    int exchanges = 0;
    for (const Op& op : graph.ops)
        if (op.exchange && op.part == Part::dispatch) {
            EXPECT_TRUE(close(network.alone(op.demand), 3e-3, 1e-9));
            ++exchanges;
        }
    EXPECT_EQ(exchanges, 4 * 2);
    EXPECT_TRUE(
        close(simulate_step(step).step_time.value, estimate_step(step).step_time.value, 1e-9));
}

TEST(TrainersMoeLayer, CopiesNoTokensAtOneHead) {
    const StepCase step = trainer_case(unsteady_core(1, 1, 1), 2, 2);
    for (const Work& work : build_step_graph(step).works)
        for (const KernelCall& call : work.calls)
            if (call.kernel == "copy") {
                EXPECT_TRUE(call.fp32);  // gradients set to zero
            }
}

TEST(TrainersMoeLayer, MapsRowsAndZeroesGradientsAtThePricesThatTheProfileHas) {
    Profile core = *unsteady_core(1, 1, 1);
    for (const char* kernel : {"zero", "permutation_map"})
        core.kernels.push_back({kernel,
                                Precision::fp32,
                                Basis::measured,
                                "",
                                {"bytes", "width", "median_s"},
                                {{1e3, 1, 1e-6}, {1e6, 1, 1e-3}}});
    prepare(core);
    const StepCase step = trainer_case(std::make_shared<const Profile>(core), 2, 2);
    int maps = 0, zeroed = 0, copies = 0;
    for (const Work& work : build_step_graph(step).works)
        for (const KernelCall& call : work.calls) {
            maps += call.kernel == "permutation_map";
            zeroed += call.kernel == "zero";
            copies += call.kernel == "copy";
        }
    EXPECT_EQ(maps, 2);  // of a layer's kind: of its own tokens, and of the rows that came
    EXPECT_EQ(zeroed, 1);
    EXPECT_EQ(copies, 0);
}

}  // namespace
}  // namespace moeplan
