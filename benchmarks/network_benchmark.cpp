/// What the network models cost: one uneven all-to-all of a group, and the closed form's table of
/// link loads.

#include <benchmark/benchmark.h>

#include <cmath>
#include <numeric>

#include "benchmarks/peak_memory.hpp"
#include "core/memory_steps.hpp"
#include "core/seed.hpp"
#include "simulator/collective.hpp"
#include "simulator/network.hpp"

namespace moeplan {
namespace {

/// 64 MiB a GPU in the mean: hot destinations (log-normal, sigma 0.6), every pair with its own noise
/// where `full`.
TrafficMatrix skewed(int n, bool full) {
    TrafficMatrix out(n);
    DrawStream draws{Seed{1}};
    std::vector<double> hot;
    for (int d = 0; d < n; ++d) hot.push_back(std::exp(0.6 * draws.normal()));
    for (int s = 0; s < n; ++s)
        for (int d = 0; d < n; ++d)
            out.at(s, d) =
                Bytes{std::floor(64.0 * (1 << 20) / n * hot[d] *
                                 (full ? std::exp(0.6 * draws.normal()) : 1))};
    return out;
}

std::vector<int> all_gpus(int n) {
    std::vector<int> group(static_cast<std::size_t>(n));
    std::iota(group.begin(), group.end(), 0);
    return group;
}

/// Matrix → flows → loads → time; the graph is built once a cluster.
void closed_form(benchmark::State& state) {
    const int gpus = static_cast<int>(state.range(0));
    const LinkGraph graph = build_link_graph(load_cluster("dgx-h100:" + std::to_string(gpus / 8)));
    const TrafficMatrix traffic = skewed(gpus, true);
    const CollectiveCall call{
        Collective::all_to_all, all_gpus(gpus), {}, Algorithm::direct, &traffic};
    for (auto _ : state) benchmark::DoNotOptimize(time_alone(make_exchange(graph, call)));
    state.counters["peak_MB"] = peak_megabytes();
}
BENCHMARK(closed_form)->Arg(64)->Arg(256)->Arg(1024)->Arg(4096)->Unit(benchmark::kMillisecond);

/// SimGrid holds one platform a process: run with --benchmark_filter for one size at a time.
void play(benchmark::State& state, NetworkModel model) {
    const int gpus = static_cast<int>(state.range(0));
    const LinkGraph graph = build_link_graph(load_cluster("dgx-h100:" + std::to_string(gpus / 8)));
    const TrafficMatrix traffic = skewed(gpus, state.range(1) != 0);
    const Exchange exchange = make_exchange(
        graph, {Collective::all_to_all, all_gpus(gpus), {}, Algorithm::direct, &traffic});
    state.counters["flows"] = static_cast<double>(exchange.stages.front().flows.size());
    try {
        for (auto _ : state) benchmark::DoNotOptimize(play_alone(model, graph, exchange));
    } catch (const std::logic_error& error) {
        state.SkipWithError(error.what());
    }
    state.counters["peak_MB"] = peak_megabytes();
}
BENCHMARK_CAPTURE(play, simgrid, NetworkModel::simgrid)
    ->ArgsProduct({{64, 256}, {0, 1}})
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(play, fluid, NetworkModel::fluid)
    ->ArgsProduct({{64, 256, 1024}, {0, 1}})
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(play, closed_form, NetworkModel::closed_form)
    ->ArgsProduct({{64, 256, 1024}, {0}})
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace moeplan

/// As the commands have it.
int main(int argc, char** argv) {
    moeplan::take_memory_in_large_steps();
    benchmark::Initialize(&argc, argv);
    benchmark::RunSpecifiedBenchmarks();
}
